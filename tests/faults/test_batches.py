"""Batches when a part of the pipeline, or any request of it, crashes, hangs, is cancelled, lost, late or refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from coordinator.errors import StorageError
from coordinator.pipelines.pipeline import Pipeline
from coordinator.testing.faults import (
    DROP_ANSWER,
    FAILED_COMMITTED,
    HANGS_AFTER,
    RESET_BEFORE,
    FaultOrders,
    FaultyStore,
    answer_delayed,
    throttled,
)
from coordinator.testing.pipeline import MemoryReports, memory_pipeline
from coordinator.testing.queues import MemoryQueueTransport
from coordinator.testing.tables import MemoryTableStore
from tests.support.dying import HastyClock, Killed, Mortal
from tests.support.reliability import Cell
from tests.support.reliability import Table as Promises

ITEMS = 40
QUEUES = ("orders", "work", "results")
PARTS = dict(zip(("initiator", "processor", "controller"), QUEUES, strict=True))
REQUESTS = {
    "request lost": RESET_BEFORE,
    "answer lost": DROP_ANSWER,
    "500, carried out": FAILED_COMMITTED,
    "answer late": answer_delayed(2.0),
    "connection hangs": HANGS_AFTER,
    "503 with Retry-After": throttled(3),
    "429 with Retry-After": throttled(3, status=429),
}
ONCE = "the batch ends `complete`, each item counted once, with one report"
LOST = [Cell(fault, part, f"Each request in turn: {ONCE}") for fault in REQUESTS for part in PARTS]
KILLED = [Cell("process killed", part, f"Before or after each request: {ONCE}") for part in PARTS]
CANCELLED = [Cell("part cancelled", part, f"At each moment: {ONCE}") for part in PARTS]
DEPLOYED = [Cell("deployment with other chunk sizes", "initiator", f"At each request: {ONCE}")]
HANGS = [
    Cell("hang", "initiator", "The batch is shown as stalled within a minute, without a rate or an ETA"),
    Cell("hang", "processor", "The item is on the failure list after its time; the others are done"),
    Cell("hang", "controller", "The batch is shown as stalled within a minute, without a rate or an ETA"),
]
FAILS = [
    Cell(
        "exception",
        "initiator",
        "After five attempts the batch is `failed` with the cause; a retry continues where it stopped",
    ),
    Cell(
        "exception",
        "processor",
        "The item is on the failure list; the others are done; a retry processes it again",
    ),
    Cell(
        "exception",
        "combine",
        "The items of that chunk are on the failure list; a retry processes them again",
    ),
    Cell(
        "exception",
        "controller",
        "After five attempts the batch is `failed` with the cause; a retry continues where it stopped",
    ),
    Cell(
        "exception",
        "reporter",
        "After five attempts the batch is `failed` with the cause; a retry continues where it stopped",
    ),
    Cell(
        "exception",
        "store of reports",
        "After five attempts the batch is `failed` with the cause; a retry continues where it stopped",
    ),
    Cell(
        "result that cannot be stored",
        "processor",
        "The items of that chunk are on the failure list, with the limit",
    ),
]
TABLE = Promises(
    "Batches",
    "An initiator, processors and a controller over queues. Each fault of a request meets each request of that part in turn.",
    (*LOST, *KILLED, *CANCELLED, *DEPLOYED, *HANGS, *FAILS),
    order=42,
)


class Site:
    """A pipeline whose stores outlive its processes."""

    def __init__(self) -> None:
        self.clock = HastyClock()
        self.heads = MemoryTableStore("batches", clock=self.clock)
        self.parts = MemoryTableStore("batchparts", clock=self.clock)
        self.transports = {name: MemoryQueueTransport(name, clock=self.clock) for name in QUEUES}
        self.reports = MemoryReports()
        self.functions: dict[str, Callable[..., Any]] = {}

    def process(self, wrap: Callable[[Any], Any] = lambda store: store, **options: Any) -> Pipeline:
        """The pipeline as one process has it."""
        functions = {"initiator": range, "processor": _square, "controller": _add, **self.functions}
        named: dict[str, Any] = {
            name: functions.pop(name) for name in ("combine", "reporter") if name in functions
        }
        pipeline = memory_pipeline(
            "squares", *(functions[part] for part in PARTS), clock=self.clock, reports=wrap(self.reports), item=int,
            result=int, heads=wrap(self.heads), parts=wrap(self.parts), **{"chunk_items": 10, **named, **options},
        )  # fmt: skip
        for name in QUEUES:
            getattr(pipeline, name).transport = wrap(self.transports[name])
        return pipeline

    async def start(self) -> None:
        for transport in self.transports.values():
            await transport.create()
        await self.process().start("b1", ITEMS)

    async def work(self, pipeline: Pipeline, *queues: str, most: int = 400) -> None:
        """What listeners do with the messages of these queues, until there are none or the batch has failed."""
        for name in queues or QUEUES:
            handlers: dict[str, Any] = {"orders": pipeline.initiate, "work": pipeline.process}
            handle = handlers.get(name, lambda item: pipeline._counter.count([item]))
            transport: Any = getattr(pipeline, name).transport
            for _ in range(most):
                try:
                    messages = await transport.get(1, visibility_seconds=30)
                    if not messages:
                        break
                    message = messages[0]
                    for _, item in (await getattr(pipeline, name).open(message.text))[1]:
                        await handle(item)
                    await transport.delete(message.id, message.receipt)
                except (StorageError, ValueError):
                    self.clock.skip(31)

    async def recovered(self) -> Pipeline:
        """Another process, after a while."""
        pipeline = self.process()
        for _ in range(3):
            self.clock.skip(400)
            await pipeline._outbox.relay("squares")
            await self.work(pipeline)
        return pipeline

    async def must_be_complete(self, pipeline: Pipeline) -> None:
        status = await pipeline.status("b1")
        assert (status.state, status.items_counted, status.items_failed) == ("complete", ITEMS, 0), status
        assert msgspec.json.decode(self.reports.reports[status.report]) == sum(n * n for n in range(ITEMS))
        assert self.reports.written == 1


def _square(number: int) -> int:
    return number * number


def _add(total: Any, results: list[int]) -> int:
    return (total or 0) + sum(results)


async def reached(part: str) -> Site:
    """A batch that this part is the next to have in hand."""
    site = Site()
    await site.start()
    for name in QUEUES[: QUEUES.index(PARTS[part])]:
        await site.work(site.process(), name)
    return site


@pytest.mark.parametrize("cell", LOST, ids=str)
async def test_each_request_of_a_part_may_fail(cell: Cell) -> None:
    orders = FaultOrders()
    turns = 0
    for turn in orders.for_each_request(REQUESTS[cell.fault]):
        turns += 1
        site = await reached(cell.subject)

        def wrap(store: Any, site: Site = site) -> Any:
            faulty: Any = FaultyStore(store, clock=site.clock)
            faulty._decide = orders._decide
            return faulty

        with turn:
            await site.work(site.process(wrap), PARTS[cell.subject])
        await site.must_be_complete(await site.recovered())
    assert turns > 10


@pytest.mark.parametrize("cell", KILLED, ids=str)
async def test_a_process_may_be_killed_at_each_request(cell: Cell) -> None:
    deaths = 0
    for after in (False, True):
        for number in range(1, 200):
            site, mortal = await reached(cell.subject), Mortal(number, after=after)
            try:
                await site.work(site.process(mortal.wrap), PARTS[cell.subject])
            except Killed:
                deaths += 1
                await site.must_be_complete(await site.recovered())
                continue
            break
    assert deaths > 20


@pytest.mark.parametrize("cell", CANCELLED, ids=str)
async def test_a_part_may_be_cancelled_at_each_moment(cell: Cell) -> None:
    for moments in range(1, 120, 3):
        site = await reached(cell.subject)
        working = asyncio.create_task(site.work(site.process(), PARTS[cell.subject]))
        for _ in range(moments):
            await asyncio.sleep(0)
        if working.done():
            break
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await site.must_be_complete(await site.recovered())
    assert moments > 10


@pytest.mark.parametrize("cell", DEPLOYED, ids=str)
async def test_chunk_sizes_may_change_at_each_request(cell: Cell) -> None:
    for number in range(1, 100):
        site, mortal = await reached(cell.subject), Mortal(number, after=True)
        try:
            await site.work(site.process(mortal.wrap), "orders")
        except Killed:
            site.clock.skip(400)
            changed = site.process(chunk_items=3, chunk_seconds=0)
            changed._sender._item_seconds = 0.2
            await site.work(changed)
            await site.must_be_complete(await site.recovered())
            continue
        break
    assert number > 5


@pytest.mark.parametrize("cell", HANGS, ids=str)
async def test_a_part_may_hang(cell: Cell) -> None:
    site, release = await reached(cell.subject), threading.Event()
    if cell.subject == "processor":

        def hang(number: int) -> int:
            return int(release.wait(10)) if number == 7 else number * number

        site.functions["processor"] = hang
        pipeline = site.process(item_seconds=0.02)
        await site.work(pipeline)
        release.set()
        assert [(each.index, each.error) async for each in pipeline.failures("b1")] == [
            (7, "took longer than 0.02 s")
        ]
        assert (await pipeline.status("b1")).items_counted == ITEMS - 1
        return

    begun = threading.Event()

    def stop(*_: Any) -> Any:
        begun.set()
        release.wait(10)
        return iter(()) if cell.subject == "initiator" else 0

    site.functions[cell.subject] = stop
    working = asyncio.create_task(site.work(site.process(), PARTS[cell.subject]))
    await asyncio.wait_for(asyncio.to_thread(begun.wait, 10), 10)
    site.clock.skip(59)
    status = await site.process().status("b1")
    assert (status.state, status.is_stalled, status.eta_seconds or None) == ("running", True, None)
    assert status.per_second == 0.0
    release.set()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


@pytest.mark.parametrize("cell", FAILS, ids=str)
async def test_a_part_may_fail(cell: Cell) -> None:
    site = Site()
    await site.start()
    broken = True

    def numbers(source: int) -> Any:
        for number in range(source):
            if broken and number == 15:
                raise ValueError("line 15 is damaged")
            yield number

    def fail(*given: Any) -> Any:
        if broken and (cell.subject != "processor" or given[0] == 7):
            raise ValueError("broken")
        return {"processor": _square, "controller": _add, "combine": list, "reporter": msgspec.json.encode}[
            cell.subject
        ](*given)

    def large(number: int) -> Any:
        return "x" * 500_000 if broken and number < 3 else number * number

    write = site.reports.write_once

    async def refuse(name: str, content: bytes) -> bool:
        if broken:
            raise ValueError("broken")
        return await write(name, content)

    if cell.subject == "store of reports":
        site.reports.write_once = refuse  # type: ignore[method-assign]
    else:
        site.functions[cell.subject] = numbers if cell.subject == "initiator" else fail
    if cell.fault == "result that cannot be stored":
        site.functions["processor"] = large
    pipeline = site.process()
    for _ in range(3):
        await site.work(pipeline, most=60)
    status = await pipeline.status("b1")
    if cell.subject in ("processor", "combine"):
        failed = [failure async for failure in pipeline.failures("b1")]
        assert status.state == "partial"
        if cell.fault != "exception":
            assert "the results of its chunk have 1500" in failed[0].error
        elif cell.subject == "processor":
            assert [(each.index, each.error) for each in failed] == [(7, "ValueError: broken")]
    else:
        assert (status.state, "ValueError: " in status.cause) == ("failed", True), status
    broken = False
    await pipeline.retry_failed("b1")
    await site.work(pipeline)
    await site.must_be_complete(pipeline)
