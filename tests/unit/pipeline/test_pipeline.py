"""A pipeline in memory: split, process, count; each delivery made by hand, twice if need be."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from coordinator.errors import ConfigurationError, NotFound, StorageUnreachable
from coordinator.pipelines import sending
from coordinator.pipelines.aggregating import STUMBLES
from coordinator.pipelines.control import PipelineError
from coordinator.pipelines.ledger import BatchLedger
from coordinator.pipelines.messages import BatchOrder, Head, ItemChunk
from coordinator.pipelines.pipeline import CHUNK_ATTEMPTS, Pipeline
from coordinator.pipelines.sending import first_sizes, next_items
from coordinator.queues.delivery import Reject
from coordinator.tables.operations import Insert
from coordinator.tables.optimistic import optimistic_update
from coordinator.tables.table import Table
from coordinator.testing.clock import ManualClock
from coordinator.testing.pipeline import MemoryReports, memory_pipeline
from coordinator.testing.tables import MemoryTableStore
from tests.support.dying import HastyClock


class Site:
    """Squares the numbers below the source and adds them up; `bad` numbers fail."""

    def __init__(self, initiator: Callable[..., Any] | None = None, **options: Any) -> None:
        self.clock: ManualClock = options.pop("clock", None) or ManualClock()
        self.reports = MemoryReports()
        self.parts = MemoryTableStore("batchparts", clock=self.clock)
        self.processed: Counter[int] = Counter()
        self.bad: set[int] = set()
        options = {"chunk_items": 10, "chunk_seconds": 0, "item": int, "result": int, **options}
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


async def test_of_two_who_retry_at_once_the_second_is_told_so() -> None:
    site = Site()
    site.bad = {3}
    await site.pipeline.start("b1", 95)
    await site.run(times=2)
    told = await asyncio.gather(*(site.pipeline.retry_failed("b1") for _ in range(2)), return_exceptions=True)
    (lost,) = [each for each in told if each is not None]
    assert isinstance(lost, PipelineError) and "somebody else has just retried or cancelled it" in str(lost)


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


# --- what fails outside the processor ---------------------------------------------------------------------------


async def until_failed(site: Site, kind: str) -> int:
    """Deliver until the batch has failed; how many deliveries failed before that."""
    failures = 0
    for _ in range(20):
        try:
            await site.deliver(kind)
        except (ValueError, OSError, KeyError):
            failures += 1
        if (await site.pipeline.status("b1")).state == "failed":
            return failures
        await site.clock.advance(61)
    raise AssertionError("the batch does not fail")


@pytest.mark.parametrize("after", [0, 3, 45])
async def test_an_initiator_that_fails_ends_the_batch_with_its_cause_and_a_retry_goes_on(after: int) -> None:
    broken = True

    def numbers(source: int) -> Iterator[int]:
        for number in range(source):
            if number == after and broken:
                raise ValueError("line 7 is damaged")
            yield number

    site = Site(numbers)
    await site.pipeline.start("b1", 95)
    assert await until_failed(site, "orders") == STUMBLES - 1
    status = await site.pipeline.status("b1")
    assert status.cause == "the initiator: ValueError: line 7 is damaged"
    broken = False
    await site.pipeline.retry_failed("b1")
    assert (await site.pipeline.status("b1")).state == "running"
    await site.run()
    status = await site.pipeline.status("b1")
    assert (status.state, status.cause, site.report()) == ("complete", "", TOTAL)


async def test_an_initiator_that_rejects_ends_the_batch_at_once() -> None:
    def numbers(source: int) -> Iterator[int]:
        raise Reject("no such file")

    site = Site(numbers)
    await site.pipeline.start("b1", 95)
    assert await until_failed(site, "orders") == 0


@pytest.mark.parametrize("part", ["controller", "reporter", "store of reports"])
async def test_a_controller_or_report_that_fails_ends_the_batch_and_a_retry_goes_on(part: str) -> None:
    site = Site()
    counter: Any = site.pipeline._counter
    working = dict(vars(counter))

    def fail(*_: Any) -> Any:
        raise KeyError("total")

    if part == "controller":
        counter._controller = fail
    elif part == "reporter":
        counter._reporter = fail
    else:
        counter._reports = SimpleNamespace(write_once=fail)
    await site.pipeline.start("b1", 95)
    await site.deliver("orders")
    await site.deliver("work")
    assert await until_failed(site, "results") <= STUMBLES
    status = await site.pipeline.status("b1")
    assert (status.items_counted, "KeyError: 'total'" in status.cause) == (95, True)
    vars(counter).update(working)
    await site.pipeline.retry_failed("b1")
    await site.run()
    assert ((await site.pipeline.status("b1")).state, site.report()) == ("complete", TOTAL)


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        (lambda n: "x" * 200_000, "the results of its chunk have 2000030 bytes"),
        (lambda n: object(), "cannot be combined or sent"),
    ],
    ids=["too large", "no JSON"],
)
async def test_results_that_cannot_be_stored_are_failures_of_their_items(
    processor: Callable[[int], Any], words: str
) -> None:
    site = Site()
    site.pipeline._items.processor = processor
    await site.pipeline.start("b1", 95)
    await site.run()
    status = await site.pipeline.status("b1")
    assert (status.state, status.items_failed) == ("partial", 95)
    assert words in await anext(each.error async for each in site.pipeline.failures("b1"))
    site.pipeline._items.processor = site.square
    await site.pipeline.retry_failed("b1")
    await site.run()
    assert site.report() == TOTAL


async def test_a_combine_that_fails_fails_its_chunk_and_not_the_batch() -> None:
    def combine(results: list[int]) -> list[int]:
        if 0 in results:
            raise KeyError("zero")
        return results

    site = Site(combine=combine)
    await site.pipeline.start("b1", 95)
    await site.run()
    status = await site.pipeline.status("b1")
    assert (status.state, status.items_failed) == ("partial", 10)


async def test_errors_that_a_row_cannot_hold_are_cut_and_the_batch_ends() -> None:
    site = Site(chunk_items=3000)

    def fail(number: int) -> int:
        raise ValueError("ü" * 1000)

    site.pipeline._items.processor = fail
    await site.pipeline.start("b1", 3000)
    await site.run()
    assert (await site.pipeline.status("b1")).items_failed == 3000


async def test_a_chunk_whose_process_ends_each_time_is_given_up_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site()
    monkeypatch.setattr("coordinator.pipelines.pipeline._attempt", lambda: CHUNK_ATTEMPTS + 1)
    await site.pipeline.start("b1", 5)
    await site.run()
    assert (await site.pipeline.status("b1")).state == "partial"
    assert "may end its process" in await anext(each.error async for each in site.pipeline.failures("b1"))


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_an_item_that_hangs_fails_and_the_others_are_done(kind: str) -> None:
    site, release = Site(item_seconds=0.05), threading.Event()

    def hang(number: int) -> int:
        if number in (3, 7):
            release.wait(10)
        return number * number

    async def hang_async(number: int) -> int:
        if number in (3, 7):
            await asyncio.Event().wait()
        return number * number

    site.pipeline._items.processor = hang if kind == "def" else hang_async
    await site.pipeline.start("b1", 20)
    await site.run()
    release.set()
    status = await site.pipeline.status("b1")
    assert (status.state, status.items_counted) == ("partial", 18)
    assert [(each.index, each.error) async for each in site.pipeline.failures("b1")] == [
        (3, "took longer than 0.05 s"),
        (7, "took longer than 0.05 s"),
    ]


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_an_item_has_tries_of_its_own(kind: str) -> None:
    site, tries = Site(item_attempts=3), Counter[int]()

    def sometimes(number: int) -> int:
        tries[number] += 1
        if number == 5:
            raise Reject("never")
        if number in (1, 2) and tries[number] < 2 * number:
            raise TimeoutError("mine")
        return number * number

    async def sometimes_async(number: int) -> int:
        return sometimes(number)

    site.pipeline._items.processor = sometimes if kind == "def" else sometimes_async
    await site.pipeline.start("b1", 10)
    running = asyncio.create_task(site.run())
    while not running.done():
        await site.clock.advance(1)
        await asyncio.sleep(0)
    await running
    assert [tries[number] for number in (0, 1, 2, 5)] == [1, 2, 3, 1]
    assert [(each.index, each.error) async for each in site.pipeline.failures("b1")] == [
        (2, "TimeoutError: mine"),
        (5, "Reject: never"),
    ]


async def test_a_batch_that_stands_still_is_stalled_within_a_minute_and_its_rate_fades() -> None:
    site = Site()
    await site.pipeline.start("b1", 95, sla_seconds=86_400)
    await site.deliver("orders")
    await site.deliver("work")
    for message in await site.pipeline.results.transport.get(4, visibility_seconds=3600):
        await site.clock.advance(5)
        _, items = await site.pipeline.results.open(message.text)
        await site.pipeline._counter.count([item for _, item in items if not isinstance(item, Exception)])
    status = await site.pipeline.status("b1")
    assert (status.is_stalled, status.sla_risk) == (False, "on track")
    assert status.eta_seconds is not None
    await site.clock.advance(40)
    slower = await site.pipeline.status("b1")
    assert 0 < slower.per_second < status.per_second
    await site.clock.advance(20)
    still = await site.pipeline.status("b1")
    assert (still.is_stalled, still.per_second, still.eta_seconds, still.sla_risk) == (
        True,
        0.0,
        None,
        "at risk",
    )
    assert still.progressed_at == pytest.approx(site.clock.time() - 60)


async def test_a_batch_that_nobody_begins_is_stalled_within_a_minute() -> None:
    site = Site()
    await site.pipeline.start("b1", 95)
    await site.clock.advance(59)
    assert (await site.pipeline.status("b1")).is_stalled


# --- chunks, names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [100, 1000])
async def test_a_few_slow_items_are_spread_over_many_chunks(items: int) -> None:
    site = Site(chunk_items=500, chunk_seconds=0.5)
    await site.pipeline.start("b1", items)
    sizes = []
    await site.pipeline.initiate(BatchOrder("b1"))
    while messages := await site.pipeline.work.transport.get(32, visibility_seconds=60):
        for message in messages:
            sizes += [len(chunk.items) for _, chunk in (await site.pipeline.work.open(message.text))[1]]
            await site.pipeline.work.transport.delete(message.id, message.receipt)
    assert sum(sizes) == items
    assert len(sizes) >= 12
    assert max(sizes) <= (16 if items == 100 else 256)


@pytest.mark.parametrize(
    ("item_seconds", "most", "chunk_seconds", "items"),
    [
        (0.0, 500, 0.5, 500),
        (1e-5, 500, 0.5, 500),
        (0.001, 500, 0.5, 500),
        (0.05, 500, 0.5, 10),
        (60.0, 500, 0.5, 1),
        (0.05, 500, 0.0, 500),
    ],
)
def test_chunks_take_as_long_as_wanted_once_items_are_measured(
    item_seconds: float, most: int, chunk_seconds: float, items: int
) -> None:
    assert next_items(item_seconds, most, chunk_seconds) == items


@pytest.mark.parametrize(
    ("count", "most", "is_all", "sizes"),
    [
        (0, 500, True, []),
        (1, 500, True, [1]),
        (100, 500, True, [7] * 14 + [2]),
        (3999, 500, True, [250] * 15 + [249]),
        (30, 1, True, [1] * 30),
        (4000, 500, False, [4, 16, 64, 416, *[500] * 7]),
        (80, 10, False, [4, 6, *[10] * 7]),
        (16, 2, False, [2] * 8),
        (3, 500, False, [4, 16, 64]),  # huge items: the bytes of a window are used up
    ],
)
def test_the_first_chunks_spread_a_small_batch_and_measure_a_large_one(
    count: int, most: int, is_all: bool, sizes: list[int]
) -> None:
    assert first_sizes(count, most, is_all=is_all) == sizes


async def test_huge_items_are_cut_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "CHUNK_BYTES", 2000)
    site = Site(chunk_items=500, chunk_seconds=0.5, item=str, initiator=lambda count: ["x" * 998] * count)
    await site.pipeline.start("b1", 100)
    await site.pipeline.initiate(BatchOrder("b1"))
    assert await site.pipeline.work.depth() == 50


class Busy:
    """A site with slow starts of each chunk, as a busy processor has them, and requests counted."""

    def __init__(self, **options: Any) -> None:
        self.clock = HastyClock()
        self.site = Site(chunk_items=500, clock=self.clock, **options)
        self.chunks = self.requests = 0
        self.seconds = 0.0

    def count(self, owner: Any, *names: str) -> None:
        for name in names:
            call = getattr(owner, name)

            async def counted(*arguments: Any, call: Any = call, **options: Any) -> Any:
                self.requests += 1
                return await call(*arguments, **options)

            setattr(owner, name, counted)

    async def run(self, batch: str, items: int) -> None:
        pipeline = self.site.pipeline
        await pipeline.start(batch, items)
        self.requests = self.chunks = 0
        run = pipeline._items.run

        async def slow(chunk: Any) -> Any:
            self.chunks += 1
            self.clock.skip(0.08)  # no thread was free
            return await run(chunk)

        def square(number: int) -> int:
            self.clock.skip(self.seconds)
            return number * number

        pipeline._items.run = slow  # type: ignore[method-assign]
        pipeline._items.processor = square
        save = pipeline._sender._ledger.save_sent

        async def worked_meanwhile(*arguments: Any) -> str:
            await self.site.deliver("work")
            await self.site.deliver("results")
            return await save(*arguments)

        pipeline._sender._ledger.save_sent = worked_meanwhile  # type: ignore[method-assign]
        for owner in (pipeline.work.transport, pipeline.results.transport):
            self.count(owner, "put", "get", "delete")
        before = self.site.parts.requests
        await self.site.run()
        self.requests += self.site.parts.requests - before
        assert (await pipeline.status(batch)).items_counted == items
        pipeline._items.run = run  # type: ignore[method-assign]
        pipeline._sender._ledger.save_sent = save  # type: ignore[method-assign]


async def test_cheap_items_cost_no_more_chunks_and_requests_than_full_chunks_would() -> None:
    fixed, sized = Busy(chunk_seconds=0), Busy(chunk_seconds=0.5)
    for each in (fixed, sized):
        each.seconds = 20e-6
        await each.run("b1", 20_000)
    assert fixed.chunks == 40
    assert sized.chunks <= 1.1 * fixed.chunks
    assert fixed.requests < sized.requests <= 1.1 * fixed.requests


async def test_slow_items_travel_in_small_chunks_as_soon_as_they_are_measured() -> None:
    busy = Busy(chunk_seconds=0.5)
    busy.seconds = 0.05
    await busy.run("b1", 20_000)
    assert busy.chunks > 1000
    await busy.run("b2", 100)
    assert 10 <= busy.chunks <= 12


@pytest.mark.parametrize("window", [0, 1, 2])
async def test_an_initiator_that_dies_cuts_the_same_chunks_again(window: int) -> None:
    site = Site(chunk_items=500, chunk_seconds=0.5)
    await site.pipeline.start("b1", 15_000)
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
    sender._item_seconds = 0.001  # the next initiator has measured others
    await site.run()
    assert site.report() == sum(n * n for n in range(15_000))
    assert (await site.pipeline.status("b1")).items_counted == 15_000


async def test_a_batch_that_an_older_version_began_is_cut_as_it_was() -> None:
    site = Site(chunk_items=10, chunk_seconds=0.5)
    await site.pipeline.start("b1", 95)
    heads = site.pipeline._ledger.heads
    await optimistic_update(
        heads, ("squares", "b1"), lambda row: {**row, "first_items": 0, "report_name": ""}
    )
    await site.pipeline.initiate(BatchOrder("b1"))
    assert await site.pipeline.work.depth() == 10
    await site.run()
    assert site.report() == TOTAL


async def test_a_forgotten_name_used_again_has_a_report_of_its_own() -> None:
    site = Site()
    site.reports.reports["squares/b1.json"] = b'"old"'
    await site.pipeline.start("b1", 95)
    await site.run()
    status = await site.pipeline.status("b1")
    assert status.report != "squares/b1.json"
    assert msgspec.json.decode(site.reports.reports[status.report]) == TOTAL
    assert site.reports.reports["squares/b1.json"] == b'"old"'


async def test_what_is_late_for_a_forgotten_batch_is_not_counted_for_its_successor() -> None:
    site = Site()
    await site.pipeline.start("b1", 40)
    await site.deliver("orders")
    await site.deliver("work", keep=True)
    late = []
    for message in await site.pipeline.results.transport.get(32, visibility_seconds=60):
        late += [item for _, item in (await site.pipeline.results.open(message.text))[1]]
    assert len(late) == 4 and late[0].run
    site.parts.rows.clear()
    heads: Any = site.pipeline._ledger.heads.store
    heads.rows.clear()
    site.pipeline._wanted.clear()

    await site.pipeline.start("b1", 20)
    await site.pipeline._counter.count(late[:1])
    await site.deliver("orders")
    assert (await site.pipeline.status("b1")).items_counted == 0
    await site.clock.advance(61)
    await site.deliver("work")  # both batches' chunks
    await site.deliver("results", keep=True)
    await site.pipeline._counter.count(late)
    status = await site.pipeline.status("b1")
    assert (status.state, status.items_counted) == ("complete", 20)
    assert site.report() == sum(n * n for n in range(20))


async def test_messages_of_an_older_version_without_a_run_are_counted() -> None:
    site = Site()
    await site.pipeline.start("b1", 20)
    await site.deliver("orders")
    for message in await site.pipeline.work.transport.get(32, visibility_seconds=60):
        for _, chunk in (await site.pipeline.work.open(message.text))[1]:
            old = msgspec.json.decode(msgspec.json.encode(chunk))
            del old["run"]
            await site.pipeline.process(msgspec.json.decode(msgspec.json.encode(old), type=ItemChunk))
    await site.deliver("results")
    assert (await site.pipeline.status("b1")).items_counted == 20


async def test_two_pipelines_never_share_a_ledger() -> None:
    names = [("a|b", "c"), ("a", "b|c"), ("a~1b", "c"), ("a~", "1b|c")]
    heads, parts = Table(MemoryTableStore("heads")), Table(MemoryTableStore("parts"))
    partitions = [BatchLedger(pipeline, heads, parts).partition(batch) for pipeline, batch in names]
    assert len(set(partitions)) == 4
    assert BatchLedger("squares", heads, parts).partition("b1") == "squares|b1"


async def test_a_ledger_of_an_older_version_stays_where_it_is() -> None:
    heads, parts = Table(MemoryTableStore("heads")), Table(MemoryTableStore("parts"))
    old = Head(source="1", state="running", chunk_items=10, started_at=1.0)
    await heads.write(Insert(("a|b", "c"), msgspec.structs.asdict(old)))
    ledger = BatchLedger("a|b", heads, parts)
    await ledger.head("c")
    assert ledger.partition("c") == "a|b|c"
    await heads.write(
        Insert(("a|b", "d"), msgspec.structs.asdict(msgspec.structs.replace(old, first_items=4)))
    )
    await ledger.head("d")
    assert ledger.partition("d") == "a~1b|d"


async def test_nonsense_is_refused_by_name() -> None:
    site = Site()
    with pytest.raises(ConfigurationError, match="chunk_items"):
        Site(chunk_items=0)
    with pytest.raises(ConfigurationError, match="sla_seconds"):
        await site.pipeline.start("b1", 1, sla_seconds=-1)
    with pytest.raises(NotFound):
        await site.pipeline.status("nobody")
