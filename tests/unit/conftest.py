"""What the tests of single parts share: quick passwords, and nothing in memory that outlives the test that put it there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import override_settings
from whitenoise.middleware import WhiteNoiseMiddleware

from dashboard.core import prices
from dashboard.hub import runtime
from tests.support import quick_settings


@pytest.fixture(autouse=True)
def _no_prices_of_another_test() -> Iterator[None]:
    """The database is emptied after each test; the copy in memory is, too."""
    yield
    prices._stored = None


@pytest.fixture(scope="module", autouse=True)
def _no_runtime_of_another_module() -> Iterator[None]:
    """Its storage has ended since: each reading would wait for it, and those of one test for 20 s."""
    runtime.use(None)
    yield
    runtime.use(None)


@pytest.fixture(scope="session", autouse=True)
def _quick_passwords() -> Iterator[None]:
    """A thousandth of the rounds: tests of how long hashing takes choose their own hasher."""
    with override_settings(PASSWORD_HASHERS=quick_settings.PASSWORD_HASHERS):
        yield


@pytest.fixture(scope="session", autouse=True)
def _static_files_are_looked_up_once() -> Iterator[None]:
    """Each `Client` loads the middleware, which would look up a hundred files anew for each test."""
    look_up = WhiteNoiseMiddleware.add_files_from_finders
    found: dict[str, dict[str, object]] = {}

    def remembered(middleware: WhiteNoiseMiddleware) -> None:
        if middleware.static_prefix not in found:
            look_up(middleware)
            found[middleware.static_prefix] = dict(middleware.files)
        middleware.files.update(found[middleware.static_prefix])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WhiteNoiseMiddleware, "add_files_from_finders", remembered)
        yield
