"""Why a queue does not drain: the most telling cause, in one sentence with a link."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.realtime.protocol import GateStatus, ListenerStatus, WorkerState
from dashboard.live.fleet import Fleet, GateView, Headline, QueueView, StorageView, WorkerView
from dashboard.queues.reasons import why

WAITING = GateStatus("month-end", state="closed", epoch=3, waiting=True)


def worker(
    name: str,
    *,
    presence: str = "ok",
    mode: Any = "running",
    gates: tuple[GateStatus, ...] = (),
    **listener: Any,
) -> WorkerView:
    status = ListenerStatus(
        **({"queue": "orders", "active_tasks": 1, "total_tasks": 4, "wanted_tasks": 1} | listener)
    )
    state = WorkerState(mode=mode, gates=gates, listeners=(status,))
    return WorkerView(name, name, "host", 1, 0.0, "1", presence, 0.0, state)


def reason(
    *workers: WorkerView, depth: int | None = 100, in_hand: int = 4, gates: tuple[GateView, ...] = ()
) -> str:
    queue = QueueView("orders", depth=depth, in_flight=in_hand)
    fleet = Fleet(
        10_000.0, Headline("running", ""), StorageView(), gates=gates, queues=(queue,), workers=workers
    )
    found = why(fleet, queue)
    return found.text if found else ""


@pytest.mark.parametrize("depth", [None, 0])
def test_an_empty_queue_needs_no_reason(depth: int | None) -> None:
    assert reason(depth=depth) == ""


def test_a_queue_that_drains_needs_no_reason() -> None:
    assert reason(worker("a"), worker("b")) == ""


def test_no_worker_that_is_heard_of_listens() -> None:
    assert reason().startswith("No consumers")
    assert reason(worker("a", presence="lost"), worker("b", queue="other")).startswith("No consumers")


def test_the_gate_that_holds_the_workers_is_named_with_who_closed_it_and_when() -> None:
    gate = GateView("month-end", "closed", 3, by="adam", since=10_000.0 - 11 * 60)
    held = worker("a", gates=(WAITING,))
    assert (
        reason(held, held, gates=(gate,))
        == "All workers wait at gate month-end, which is closed (adam, 11 min ago)."
    )
    assert reason(held, worker("b"), gates=(gate,)).startswith("1 of 2 workers wait at gate month-end")
    assert reason(held).endswith("which is unknown.")


def test_draining_failing_idle_and_busy_workers_are_reasons() -> None:
    assert "draining" in reason(worker("a", mode="draining"))
    assert reason(worker("a", failed=80, done=20)).startswith(
        "The handler fails: 80 failed attempts, 20 items done (80 %)"
    )
    assert reason(worker("a", failed=9)) == ""
    assert reason(worker("a", active_tasks=0, wanted_tasks=0, reason="rule stored by olga")) == (
        "The workers' desired tasks are 0: rule stored by olga."
    )
    assert (
        reason(worker("a", active_tasks=4, oldest_seconds=250.0))
        == "All 4 tasks are busy, the longest for 4 min."
    )
    assert reason(worker("a", active_tasks=4, oldest_seconds=5.0)) == ""
    # A message may be held for long by a batch of which each item is short: what counts is how long a handler has run.
    assert reason(worker("a", active_tasks=4, oldest_seconds=250.0, oldest_task_seconds=5.0)) == ""
