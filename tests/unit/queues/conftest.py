from __future__ import annotations

import pytest

from tests.unit.queues.bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
