"""What the observer makes of a queue, with and without reports of the workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from coordinator.queues.queue import Queue
from coordinator.scaling.decision import AgentState, Observation, decide
from coordinator.scaling.observing import PoolObserver, QueueObserver, combined
from coordinator.scaling.policy import ScalingPolicy
from coordinator.scaling.reports import WorkerReport
from coordinator.testing.clock import ManualClock
from coordinator.testing.queues import memory_queue

POLICY = ScalingPolicy(
    maximum=20, target_seconds=60, boot_seconds=10, instance_per_second=10, slots=10, idle_seconds=30
)


class Work:
    """A queue on a clock of its own, and the reports of its workers."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.queue: Queue[int] = memory_queue("work", type=int, clock=self.clock)
        self.reports: list[WorkerReport] = []

    async def read(self) -> Sequence[WorkerReport]:
        return self.reports

    def observer(self, *, reports: bool = True) -> QueueObserver:
        return QueueObserver(self.queue, reports=self.read if reports else None)

    async def put(self, count: int, **options: float) -> None:
        await asyncio.gather(*(self.queue.put(number, **options) for number in range(count)))

    async def take(self, count: int) -> None:
        while count:
            taken = await self.queue.transport.get(min(32, count), visibility_seconds=100_000)
            count -= len(taken)

    def report(self, worker: str = "w", **values: float) -> WorkerReport:
        fields = {"at": self.clock.time(), "started_at": 0.0, "slots": 10, **values}
        return WorkerReport(worker=worker, queue="work", **fields)  # type: ignore[arg-type]


@pytest.fixture
def work() -> Work:
    return Work()


async def test_a_queue_is_seen_with_two_requests(work: Work) -> None:
    observer = work.observer(reports=False)
    assert (await observer(1)).visible == 0
    await work.put(20)
    await work.take(5)
    await work.clock.advance(10)
    seen = await observer(1)
    assert (seen.visible, seen.in_flight) == (15, 5)
    assert seen.oldest_seconds == pytest.approx(10.0, abs=1.0)
    await work.put(60)
    assert (await observer(1)).visible == 80


async def test_arrivals_are_the_change_of_the_count_and_what_was_done(work: Work) -> None:
    """A steady 35/s at 8 instances that could do 80/s is 35/s, not 80."""
    observer, done = work.observer(), 0
    for _ in range(10):
        work.reports = [work.report(f"w-{n}", items=done + n, item_seconds=1.0) for n in range(8)]
        seen = await observer(8)
        await work.clock.advance(15)
        done += 35 * 15 // 8
    assert seen.arrival_per_second == pytest.approx(35, rel=0.05)
    assert seen.most_per_second == pytest.approx(35, rel=0.1)
    assert seen.instance_per_second == pytest.approx(10)
    assert decide(POLICY, seen, AgentState(8)).wanted == 4


async def test_without_reports_instances_count_as_busy_as_they_seem(work: Work) -> None:
    observer = work.observer(reports=False)
    await work.put(35)
    await work.take(35)
    for _ in range(10):
        seen = await observer(8)
        await work.clock.advance(15)
    assert seen.arrival_per_second == pytest.approx(35, rel=0.01)


async def test_items_count_and_not_the_messages_that_hold_them(work: Work) -> None:
    await work.queue.put(*range(500))
    count = await work.queue.depth()
    seen = await work.observer(reports=False)(0)
    assert seen.visible == count < 50
    assert seen.visible * seen.items_per_message == pytest.approx(500)
    assert "500 to do" in decide(POLICY, seen, AgentState(0)).reason


async def test_what_is_in_flight_keeps_its_floor_beyond_32_visible_messages(work: Work) -> None:
    """Ten instances with 40 in flight did become one as soon as 32 others were visible."""
    await work.put(80)
    await work.take(40)
    observer = work.observer(reports=False)
    seen = await observer(10)
    assert seen.in_flight is not None and seen.in_flight >= 40
    work.reports = [work.report(f"w-{n}", in_flight=4, item_seconds=1.0) for n in range(10)]
    seen = await work.observer()(10)
    assert (seen.visible, seen.in_flight) == (40, 40)


async def test_what_is_not_due_is_no_work_until_it_is(work: Work) -> None:
    observer = work.observer()
    await work.put(300, delay=6 * 3600)
    work.reports = [work.report(in_flight=0)]
    seen = await observer(1)
    assert (seen.visible, seen.in_flight, seen.delayed) == (0, 0, 300)
    await work.put(50)
    await work.clock.advance(5)
    seen = await observer(1)
    assert (seen.visible, seen.delayed) == (50, 300)
    await work.take(50)
    await work.clock.advance(6 * 3600)
    work.reports = [work.report(in_flight=50)]
    seen = await observer(1)
    assert seen.delayed == 0 and seen.visible is not None and seen.visible >= 300
    assert seen.oldest_seconds is not None


async def test_messages_that_come_between_the_count_and_the_peek_leave_no_count_below_nothing(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    await work.put(5)

    async def before() -> int:
        return 3

    monkeypatch.setattr(work.queue, "depth", before)
    seen = await work.observer(reports=False)(1)
    assert (seen.visible, seen.in_flight, seen.delayed) == (5, 0, 0)


async def test_a_message_that_was_delayed_is_as_old_as_its_appearance(work: Work) -> None:
    observer = work.observer()
    await work.put(3, delay=3600)
    work.reports = [work.report()]
    for _ in range(2):
        seen = await observer(1)
        assert seen.oldest_seconds == 0
        await work.clock.advance(3590)
    await work.clock.advance(20)
    work.reports = [work.report()]
    await observer(1)
    await work.clock.advance(20)
    seen = await observer(1)
    assert (seen.visible, seen.delayed) == (3, 0)
    assert seen.oldest_seconds is not None and seen.oldest_seconds < 3700


async def test_a_rate_is_measured_where_handlers_share_a_processor(work: Work) -> None:
    """Ten handlers of a second each that do only four a second together: four is what an instance does."""
    observer = work.observer()
    await work.put(3000)
    for turn in range(20):
        work.reports = [work.report(items=40 * turn, item_seconds=1.0, in_flight=10)]
        seen = await observer(1)
        await work.clock.advance(10)
    assert seen.instance_per_second == pytest.approx(4, rel=0.1)


async def test_workers_that_never_report_are_not_taken_for_idle(work: Work) -> None:
    observer = work.observer()
    seen = await observer(3)
    assert seen.ready is None
    work.reports = [work.report(leaving=True)]
    assert (await observer(3)).ready == 0
    await work.clock.advance(200)
    assert (await observer(3)).ready is None


async def test_instances_that_boot_have_done_nothing(work: Work) -> None:
    """A burst for an empty pool: as long as the first message waits, nothing was done, so nothing more arrived."""
    observer = work.observer(reports=False)
    await observer(0)
    await work.put(600)
    for _ in range(6):
        await work.clock.advance(15)
        seen = await observer(30)
    assert seen.arrival_per_second == 0.0
    await work.take(40)
    await work.clock.advance(15)
    assert (await observer(30)).arrived == 15 * 300  # without a report, those that have begun seem busy


async def test_what_was_measured_is_kept_while_no_instance_is_there(work: Work) -> None:
    observer = work.observer()
    for turn in range(3):
        work.reports = [work.report(items=60 * turn, item_seconds=2.0, in_flight=6)]
        await observer(1)
        await work.clock.advance(15)
    work.reports = [work.report(items=120, item_seconds=2.0, leaving=True)]
    await observer(0)
    work.reports = []
    await work.put(500)
    for _ in range(6):
        await work.clock.advance(15)
        seen = await observer(12)
    assert (seen.instance_per_second, seen.item_seconds, seen.slots) == (pytest.approx(5.0), 2.0, 10)
    assert (seen.ready, seen.arrival_per_second) == (None, 0.0)
    await work.clock.advance(15)
    work.reports = [work.report("new", started_at=work.clock.time() - 9, items=40, item_seconds=2.0)]
    assert (await observer(12)).arrived == 40


def test_several_queues_are_counted_by_the_time_their_items_take() -> None:
    """600 at 10/s and 60 at 1/s are two minutes of one instance, in whatever items they are counted."""
    fast = Observation(0.0, 1, 600, 0, 5.0, 0.0, 10.0, ages=((5.0, 600.0),), most_per_second=0.0)
    slow = Observation(0.0, 1, 60, 3, 9.0, 0.0, 1.0, ages=((9.0, 60.0),), most_per_second=0.0)
    both = combined([fast, slow])
    assert both.visible is not None and both.instance_per_second is not None
    assert both.visible / both.instance_per_second == pytest.approx(120, rel=0.01)
    assert (both.in_flight, both.oldest_seconds, both.ages[0][0]) == (3, 9.0, 9.0)
    assert combined([fast]) is fast


async def test_a_pool_of_two_queues_is_one_observation(work: Work) -> None:
    other = Work()
    await work.put(5)
    await other.put(7)
    seen = await PoolObserver([work.observer(reports=False), other.observer(reports=False)])(2)
    assert seen.visible == 12
