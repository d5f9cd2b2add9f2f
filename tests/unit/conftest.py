"""What a process keeps between two looks at the database must not outlive the test that put it there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dashboard.core import prices


@pytest.fixture(autouse=True)
def _no_prices_of_another_test() -> Iterator[None]:
    """The database is emptied after each test; the copy in memory is, too."""
    yield
    prices._stored = None
