"""Batches that end while something of them is on its way, and results on their way out."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from coordinator.errors import ConfigurationError, PreconditionFailed, StorageBusy
from coordinator.pipelines.control import PipelineError
from coordinator.pipelines.exports import csv_lines, json_lines
from coordinator.pipelines.messages import SENT, BatchOrder
from coordinator.tables.operations import ANY, Delete, Replace
from coordinator.testing.tables import MemoryTableStore
from tests.unit.pipeline.test_pipeline import TOTAL, Site


async def forget(site: Site, batch: str = "b1") -> None:
    """What `prune` does to a batch."""
    await site.pipeline._ledger.heads.write(Delete(("squares", batch), ANY))


async def test_what_is_on_its_way_for_a_batch_that_is_gone_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = Site()
    await site.pipeline.start("b1", 95)
    await site.deliver("orders", keep=True)
    await site.clock.advance(61)
    await forget(site)
    await site.run()
    assert not site.processed and not site.reports.written
    assert "is gone; its order is dropped" in caplog.text


async def test_a_batch_that_is_cancelled_while_it_is_split_is_split_no_further() -> None:
    site = Site()

    def numbers(count: int) -> Any:
        for number in range(count):
            if number == 300:
                asyncio.run_coroutine_threadsafe(site.pipeline.cancel("b1"), loop).result()
                site.pipeline._wanted.clear()
            yield number

    loop = asyncio.get_running_loop()
    site = Site(numbers)
    await site.pipeline.start("b1", 100_000)
    await site.deliver("orders")
    status = await site.pipeline.status("b1")
    assert status.state == "cancelled"
    assert await site.pipeline.work.depth() < 2_000
    with_head = await site.pipeline.status("b1")
    await site.pipeline.cancel("b1")
    assert (await site.pipeline.status("b1")).state == with_head.state, "cancelled twice is cancelled once"


async def test_a_complete_batch_is_not_cancelled() -> None:
    site = Site()
    await site.pipeline.start("b1", 9)
    await site.run()
    with pytest.raises(PipelineError, match="it cannot be cancelled"):
        await site.pipeline.cancel("b1")
    assert (await site.pipeline.status("b1")).state == "complete"


async def test_an_order_that_ends_its_process_each_time_ends_the_batch_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site()
    await site.pipeline.start("b1", 9)
    monkeypatch.setattr("coordinator.pipelines.pipeline._attempt", lambda: 1000)
    await site.deliver("orders")
    status = await site.pipeline.status("b1")
    assert (
        status.state == "failed" and "without an outcome: the initiator may end its process" in status.cause
    )


async def test_an_order_that_meets_an_outage_comes_again_and_fails_nothing() -> None:
    site = Site()
    await site.pipeline.start("b1", 9)
    put, site.pipeline.work.put = site.pipeline.work.put, _busy  # type: ignore[method-assign]
    with pytest.raises(StorageBusy):
        await site.pipeline.initiate(BatchOrder("b1", 0))
    site.pipeline.work.put = put  # type: ignore[method-assign]
    assert (await site.pipeline.status("b1")).state == "running"
    await site.run()
    assert (await site.pipeline.status("b1")).state == "complete"


async def _busy(*_: Any, **__: Any) -> Any:
    raise StorageBusy("503", status=503)


async def test_a_late_order_of_a_batch_that_ended_changes_nothing() -> None:
    site = Site()
    await site.pipeline.start("b1", 95)
    await site.run()
    before = site.report()
    await site.pipeline.initiate(BatchOrder("b1", 0))
    await site.pipeline.initiate(BatchOrder("b1", 3))
    assert await site.pipeline.work.depth() == 0
    assert site.report() == before == TOTAL


async def test_two_initiators_of_one_batch_send_each_item_once() -> None:
    """The slower one finds that the other has gone on, and leaves it to it."""

    class Overtaken(MemoryTableStore):
        hit = False

        async def write(self, operation: Any) -> str:
            if not self.hit and operation.key[1] == SENT and isinstance(operation, Replace):
                self.hit = True
                raise PreconditionFailed("another initiator was faster", status=412)
            return await super().write(operation)

    site = Site()
    site.parts.__class__ = Overtaken
    await site.pipeline.start("b1", 2_000)
    await site.pipeline.initiate(BatchOrder("b1", 0))
    await site.pipeline.initiate(BatchOrder("b1", 0))
    await site.run()
    status = await site.pipeline.status("b1")
    assert (status.state, status.items_counted) == ("complete", 2_000)


async def test_counters_that_meet_in_one_row_count_each_result_once() -> None:
    class Contended(MemoryTableStore):
        lost = 3

        async def transact(self, operations: Any) -> list[str]:
            if self.lost and any(isinstance(each, Replace) for each in operations):
                self.lost -= 1
                raise PreconditionFailed("another counter was faster", status=412)
            return await super().transact(operations)

    site = Site()
    site.parts.__class__ = Contended
    await site.pipeline.start("b1", 95)
    running = asyncio.create_task(site.run())
    while not running.done():
        await site.clock.advance(0.5)
    await running
    assert (await site.pipeline.status("b1")).state == "complete"
    assert site.report() == TOTAL


async def test_a_batch_can_be_awaited() -> None:
    site = Site()
    await site.pipeline.start("b1", 9)
    waiting = asyncio.create_task(site.pipeline.wait("b1", poll_seconds=5))
    await site.clock.advance(1)
    await site.run()
    assert not waiting.done()
    await site.clock.advance(5)
    assert (await waiting).state == "complete"


async def test_a_pipeline_that_remembers_a_thousand_batches_forgets_them_and_asks_again() -> None:
    site = Site()
    site.pipeline._wanted.update({f"old-{number}": (0.0, True) for number in range(1001)})
    await site.pipeline.start("b1", 9)
    await site.run()
    assert (await site.pipeline.status("b1")).state == "complete"
    assert len(site.pipeline._wanted) == 1


@pytest.mark.parametrize(
    "options", [{"chunk_seconds": -1}, {"item_seconds": -0.1}, {"item_attempts": 0}, {"chunk_items": 0}]
)
def test_sizes_and_times_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Site(**options)


# --- results on their way out ----------------------------------------------------------------------------------------


class Line(msgspec.Struct):
    number: int
    text: str


async def lines(count: int) -> AsyncIterator[Line]:
    for number in range(count):
        yield Line(number, "=" + "x" * 99)


async def test_many_results_leave_in_pieces_and_nothing_is_lost_between_them() -> None:
    pieces = [piece async for piece in json_lines(lines(9_000))]
    assert len(pieces) >= 4
    assert [json.loads(line)["number"] for line in b"".join(pieces).splitlines()] == list(range(9_000))
    pieces = [piece async for piece in csv_lines(lines(9_000), ["number", "text"])]
    assert len(pieces) >= 4
    head, *rows = csv.reader(b"".join(pieces).decode().splitlines())
    assert head == ["number", "text"] and [int(row[0]) for row in rows] == list(range(9_000))
    assert all(row[1].startswith("'=") for row in rows), "a spreadsheet would take it for a formula"


async def test_csv_without_columns_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one column"):
        await anext(csv_lines(lines(1), []))


@pytest.mark.parametrize("text", ["=1+1", " =1+1", "＝1+1", "\u00a0@SUM(A1)"])
async def test_no_text_of_a_result_becomes_a_formula(text: str) -> None:
    async def results() -> AsyncIterator[Any]:
        yield {"text": text}

    assert (
        b"".join([piece async for piece in csv_lines(results(), ["text"])]).decode() == f"text\r\n'{text}\r\n"
    )
