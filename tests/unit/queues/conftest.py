from __future__ import annotations

import pytest

from tests.unit.queues.harness import ListenerHarness


@pytest.fixture
def harness() -> ListenerHarness:
    return ListenerHarness()
