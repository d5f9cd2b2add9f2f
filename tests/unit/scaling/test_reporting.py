"""Reports of workers: when they are stored, and what they add up to."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator import Worker
from coordinator.errors import ConfigurationError, StorageUnreachable
from coordinator.scaling.reporting import PoolReporter
from coordinator.scaling.reports import Completions, WorkerReport
from coordinator.testing.clock import ManualClock

ENVIRON = {"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"}


def report(worker: str = "w", **values: Any) -> WorkerReport:
    return WorkerReport(
        **{"worker": worker, "queue": "work", "at": 0.0, "started_at": 0.0, "slots": 10, **values}
    )


class Table:
    """Keeps what was stored; refuses while `is_away`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stored: list[WorkerReport] = []
        self.state: dict[str, int] = {}
        self.is_away = False
        self.reporter = PoolReporter(self._make, self._save, clock=self.clock)

    def _make(self) -> list[WorkerReport]:
        return [report(at=self.clock.time(), **self.state)]

    async def _save(self, one: WorkerReport) -> None:
        if self.is_away:
            raise StorageUnreachable("away")
        self.stored.append(one)

    async def steps(self, count: int) -> int:
        before = len(self.stored)
        for _ in range(count):
            await self.reporter.step()
            await self.clock.advance(10)
        return len(self.stored) - before


async def test_a_busy_worker_reports_each_time_and_an_idle_one_six_times_an_hour() -> None:
    table = Table()
    table.state = {"in_flight": 3}
    assert await table.steps(6) == 6
    table.state = {"done": 3}
    assert await table.steps(6) == 1
    assert await table.steps(360) == 6


async def test_what_storage_did_not_take_is_said_by_the_next_report() -> None:
    table = Table()
    table.is_away, table.state = True, {"done": 5}
    assert await table.steps(2) == 0
    table.is_away = False
    assert await table.steps(2) == 1


async def test_a_worker_that_leaves_says_so() -> None:
    table = Table()
    await table.reporter.step()
    await table.reporter.step(leaving=True)
    assert [each.leaving for each in table.stored] == [False, True]


def test_completions_add_up_over_workers_that_come_and_go() -> None:
    seen = Completions()
    assert seen.measure([report("a", at=0.0, items=1000, in_flight=1)], 0.0).done == 0
    both = [
        report("a", at=10.0, items=1100, in_flight=1),
        report("b", at=10.0, started_at=5.0, items=20, in_flight=1),
    ]
    assert seen.measure(both, 10.0).done == 120
    gone = [
        report("a", at=12.0, items=1110, leaving=True),
        report("b", at=20.0, started_at=5.0, items=60, in_flight=1),
    ]
    after = seen.measure(gone, 20.0)
    assert (after.done, after.ready) == (170, 1)
    again = [report("b", at=30.0, started_at=28.0, items=7, in_flight=1)]
    assert seen.measure(again, 30.0).done == 177, "a worker that began again counts from nothing"


def test_between_two_reports_the_last_rate_is_assumed_for_a_while() -> None:
    seen = Completions()
    seen.measure([report(at=0.0, in_flight=1)], 0.0)
    newest = [report(at=10.0, items=50, in_flight=1)]
    assert seen.measure(newest, 14.0).done == pytest.approx(70)
    assert seen.measure(newest, 40.0).done == pytest.approx(125)
    assert seen.measure([report(at=41.0, items=52, in_flight=1)], 41.0).done == pytest.approx(52)


def test_the_time_until_the_first_item_is_done_says_nothing_of_the_rate() -> None:
    seen, spans = Completions(), []
    for at, items in ((0.0, 0), (10.0, 40), (20.0, 90)):
        spans.append(seen.measure([report(at=at, items=items, in_flight=1)], at).spans)
    assert spans == [(), (), ((10.0, 20.0, 50),)]


def test_only_workers_that_still_report_are_ready() -> None:
    idle, busy = report("idle"), report("busy", in_flight=2)
    for now, ready in ((40.0, 2), (60.0, 1), (901.0, 0)):
        assert Completions().measure([idle, busy], now).ready == ready


def test_a_worker_gets_its_bound_from_the_environment() -> None:
    assert Worker("w", environ=ENVIRON).stop_seconds == 20
    assert Worker("w", environ={**ENVIRON, "KENNEL_STOP_SECONDS": "600"}).stop_seconds == 600
    assert Worker("w", environ={**ENVIRON, "KENNEL_STOP_SECONDS": "600"}, stop_seconds=3).stop_seconds == 3


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "1e9"])
def test_a_bound_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="KENNEL_STOP_SECONDS"):
        Worker("w", environ={**ENVIRON, "KENNEL_STOP_SECONDS": text})
