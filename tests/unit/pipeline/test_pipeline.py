"""A pipeline in memory: split, process, count; each delivery made by hand, twice if need be."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest

from coordinator.errors import ConfigurationError, NotFound, StorageUnreachable
from coordinator.pipeline import sending
from coordinator.pipeline.control import PipelineError
from coordinator.pipeline.parts import BatchOrder
from coordinator.pipeline.pipeline import Pipeline
from coordinator.testing.clock import ManualClock
from coordinator.testing.pipeline import MemoryReports, memory_pipeline
from coordinator.testing.tables import MemoryTableStore


class Site:
    """Squares the numbers below the source and adds them up; `bad` numbers fail."""

    def __init__(self, initiator: Callable[..., Any] | None = None, **options: Any) -> None:
        self.clock = ManualClock()
        self.reports = MemoryReports()
        self.parts = MemoryTableStore("batchparts", clock=self.clock)
        self.processed: Counter[int] = Counter()
        self.bad: set[int] = set()
        options = {"chunk_items": 10, "item": int, "result": int, **options}
        self.pipeline: Pipeline = memory_pipeline(
            "squares",
            initiator or range,
            self.square,
            lambda total, results: (total or 0) + sum(results),
            clock=self.clock,
            reports=self.reports,
            parts=self.parts,
            **options,
        )

    @property
    def done(self) -> Any:
        outbox = self.pipeline._counter._outbox
        assert outbox is not None
        return outbox.queue

    def square(self, number: int) -> int:
        self.processed[number] += 1
        if number in self.bad:
            raise ValueError(f"{number} is bad")
        return number * number

    async def deliver(self, kind: str, *, times: int = 1, keep: bool = False) -> int:
        """Hand every message of a queue to its part, so many times; how many messages there were."""
        queue: Any = getattr(self.pipeline, kind)
        handle: Any = {"orders": self.pipeline.initiate, "work": self.pipeline.process}.get(kind)
        count = 0
        await queue.create()
        while messages := await queue.transport.get(32, visibility_seconds=60):
            for message in messages:
                _, items = await queue.open(message.text)
                for _ in range(times):
                    for _, item in items:
                        await (handle(item) if handle else self.pipeline._counter.count([item]))
                if not keep:
                    await queue.transport.delete(message.id, message.receipt)
            count += len(messages)
        return count

    async def run(self, **options: Any) -> None:
        for kind in ("orders", "work", "results"):
            await self.deliver(kind, **options)

    def report(self, batch: str = "b1") -> Any:
        return msgspec.json.decode(self.reports.reports[f"squares/{batch}.json"])


TOTAL = sum(n * n for n in range(95))


async def test_every_item_is_processed_counted_and_reported() -> None:
    site = Site()
    assert await site.pipeline.start("b1", 95)
    await site.run()
    status = await site.pipeline.status("b1")
    assert (status.state, status.items_counted, status.items_total) == ("complete", 95, 95)
    assert (site.report(), len(site.processed)) == (TOTAL, 95)
    events = [item for message in await site.done.peek() for item in message.items]
    assert [(each.batch, each.items, each.failed) for each in events] == [("b1", 95, 0)]


async def test_an_empty_batch_is_complete() -> None:
    site = Site()
    await site.pipeline.start("b1", 0)
    await site.run()
    assert (await site.pipeline.status("b1")).state == "complete"
    assert site.report() is None


async def test_a_batch_whose_size_is_a_multiple_of_the_window_ends() -> None:
    site = Site()
    size = 10 * sending.WINDOW_CHUNKS * 2
    await site.pipeline.start("b1", size)
    await site.run()
    assert (await site.pipeline.status("b1")).items_counted == size


async def test_whatever_is_delivered_again_is_counted_once() -> None:
    site = Site()
    await site.pipeline.start("b1", 95)
    await site.run(times=3)
    status = await site.pipeline.status("b1")
    assert (status.state, status.items_counted, site.report()) == ("complete", 95, TOTAL)
    assert site.reports.written == 1
    assert set(site.processed.values()) == {3}


async def test_a_batch_is_started_once_by_its_name() -> None:
    site = Site()
    assert await site.pipeline.start("b1", 95)
    assert not await site.pipeline.start("b1", 7)
    await site.run()
    assert (await site.pipeline.status("b1")).items_counted == 95


@pytest.mark.parametrize("window", [0, 1, 2])
async def test_an_initiator_that_dies_is_resumed_and_nothing_is_missed_or_doubled(window: int) -> None:
    """It dies after its chunks were put and before that was noted: the worst moment."""
    items = 10 * sending.WINDOW_CHUNKS * 3 + 5
    site = Site()
    await site.pipeline.start("b1", items)
    sender: Any = site.pipeline._sender
    save, calls = sender._ledger.save_sent, 0

    async def die(*arguments: Any) -> str:
        nonlocal calls
        calls += 1
        if calls == window + 1:
            raise RuntimeError("killed")
        return await save(*arguments)  # type: ignore[no-any-return]

    sender._ledger.save_sent = die
    with pytest.raises(RuntimeError):
        await site.pipeline.initiate(BatchOrder("b1"))
    sender._ledger.save_sent = save
    await site.run()
    status = await site.pipeline.status("b1")
    assert (status.state, status.items_counted) == ("complete", items)
    assert site.report() == sum(n * n for n in range(items))
    assert max(site.processed.values()) == 2  # the window was sent twice


async def test_an_initiator_may_skip_by_itself() -> None:
    skips = []

    def numbers(source: int, skip: int) -> Iterator[int]:
        skips.append(skip)
        yield from range(skip, source)

    site = Site(numbers)
    await site.pipeline.start("b1", 95)
    await site.run()
    assert (site.report(), skips) == (TOTAL, [0])


async def test_an_initiator_may_be_asynchronous() -> None:
    async def numbers(source: int) -> AsyncIterator[int]:
        for number in range(source):
            yield number

    site = Site(numbers)
    await site.pipeline.start("b1", 95)
    await site.run()
    assert site.report() == TOTAL


async def test_failed_items_are_listed_retried_and_then_the_report_is_written() -> None:
    site = Site()
    site.bad = {3, 41, 42, 94}
    await site.pipeline.start("b1", 95)
    await site.run()
    status = await site.pipeline.status("b1")
    assert (status.state, status.items_counted, status.items_failed) == ("partial", 91, 4)
    assert site.reports.written == 0
    failures = [failure async for failure in site.pipeline.failures("b1")]
    assert [(each.index, each.error) for each in failures] == [
        (number, f"ValueError: {number} is bad") for number in (3, 41, 42, 94)
    ]
    site.bad = {42}
    await site.pipeline.retry_failed("b1")
    await site.run(times=2)
    status = await site.pipeline.status("b1")
    assert (status.state, status.items_counted, status.items_failed) == ("partial", 94, 1)
    assert [each.index async for each in site.pipeline.failures("b1")] == [42]
    site.bad = set()
    await site.pipeline.retry_failed("b1")
    await site.run(times=2)
    status = await site.pipeline.status("b1")
    assert (status.state, status.items_counted, status.items_failed) == ("complete", 95, 0)
    assert (site.report(), site.reports.written) == (TOTAL, 1)
    with pytest.raises(PipelineError, match="is complete"):
        await site.pipeline.retry_failed("b1")


async def test_failures_may_be_accepted() -> None:
    site = Site()
    site.bad = {3}
    await site.pipeline.start("b1", 95)
    await site.run()
    await site.pipeline.accept_failures("b1")
    status = await site.pipeline.status("b1")
    assert (status.state, status.items_failed, site.report()) == ("complete", 1, TOTAL - 9)


async def test_an_item_that_is_no_item_fails_alone() -> None:
    site = Site(lambda source: iter([1, "two", 3]))
    await site.pipeline.start("b1", None)
    await site.run()
    failures = [failure async for failure in site.pipeline.failures("b1")]
    assert [(each.index, bytes(each.item)) for each in failures] == [(1, b'"two"')]


async def test_a_cancelled_batch_is_dropped_and_never_reported() -> None:
    site = Site()
    await site.pipeline.start("b1", 95)
    await site.deliver("orders")
    await site.pipeline.cancel("b1")
    await site.run()
    assert (await site.pipeline.status("b1")).state == "cancelled"
    assert (site.processed, site.reports.written) == (Counter(), 0)


async def test_results_combined_before_they_travel_give_the_same_report() -> None:
    site = Site(combine=lambda results: [sum(results)])
    await site.pipeline.start("b1", 95)
    await site.run()
    assert site.report() == TOTAL
    assert (await site.pipeline.status("b1")).items_counted == 95


@pytest.mark.parametrize("done", [True, False], ids=["written", "not written"])
async def test_a_count_whose_answer_was_lost_is_counted_once(done: bool) -> None:
    site = Site()
    await site.pipeline.start("b1", 95)
    await site.deliver("orders")
    await site.deliver("work")
    site.parts.fail_next(StorageUnreachable("cut", maybe_done=True), done=done)
    counting = site.deliver("results")
    task = asyncio.create_task(counting)
    while not task.done():
        await site.clock.advance(1.0)
    assert (await site.pipeline.status("b1")).items_counted == 95
    assert site.report() == TOTAL


async def test_a_controller_that_died_before_the_report_is_followed_by_another() -> None:
    site = Site()
    await site.pipeline.start("b1", 95)
    await site.deliver("orders")
    await site.deliver("work")

    async def die(name: str, content: bytes) -> bool:
        raise RuntimeError("killed")

    write, site.reports.write_once = site.reports.write_once, die  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        await site.deliver("results", keep=True)
    site.reports.write_once = write  # type: ignore[method-assign]
    await site.clock.advance(61)
    await site.deliver("results")
    assert ((await site.pipeline.status("b1")).state, site.report()) == ("complete", TOTAL)


async def test_many_results_are_counted_in_one_transaction() -> None:
    site = Site()
    await site.pipeline.start("b1", 500)
    await site.deliver("orders")
    await site.deliver("work")
    queue = site.pipeline.results
    results: list[Any] = []
    while messages := await queue.transport.get(32, visibility_seconds=60):
        for message in messages:
            results += [item for _, item in (await queue.open(message.text))[1]]
    before = site.parts.requests
    await site.pipeline._counter.count(results[:32])
    assert site.parts.requests - before <= 3  # the sums, the transaction, the look whether all is done


async def test_a_batch_in_time_is_told_from_one_that_is_not() -> None:
    site = Site()
    await site.pipeline.start("b1", 95, sla_seconds=100, expected_items=95)
    await site.deliver("orders")
    await site.clock.advance(10)
    await site.deliver("work")
    messages = await site.pipeline.results.transport.get(2, visibility_seconds=60)
    assert (await site.pipeline.status("b1")).sla_risk == "on track"
    for message in messages:
        _, items = await site.pipeline.results.open(message.text)
        await site.pipeline._counter.count([item for _, item in items if not isinstance(item, Exception)])
        await site.clock.advance(20)
    status = await site.pipeline.status("b1")
    assert status.per_second == pytest.approx(0.5, rel=0.6)
    assert status.eta_seconds == pytest.approx(75 / status.per_second)
    assert status.sla_risk == "at risk"
    await site.clock.advance(60)
    assert (await site.pipeline.status("b1")).sla_risk == "missed"


async def test_nonsense_is_refused_by_name() -> None:
    site = Site()
    with pytest.raises(ConfigurationError, match="chunk_items"):
        Site(chunk_items=0)
    with pytest.raises(ConfigurationError, match="sla_seconds"):
        await site.pipeline.start("b1", 1, sla_seconds=-1)
    with pytest.raises(NotFound):
        await site.pipeline.status("nobody")
