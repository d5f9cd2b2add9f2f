"""Rules of batches that decide one case each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from coordinator.pipelines.ledger import fitted
from coordinator.pipelines.messages import ChunkResult, Counted, Head, ItemFailure, Sent
from coordinator.pipelines.sending import _Items
from coordinator.pipelines.status import batch_status
from coordinator.tables.operations import ANY, Replace
from tests.unit.pipeline.test_pipeline import TOTAL, Site


@pytest.mark.parametrize(
    ("state", "finished_at", "now", "risk"),
    [
        ("running", 0.0, 130.0, "on track"),
        ("running", 0.0, 200.5, "missed"),
        ("failed", 120.0, 150.0, "at risk"),
        ("failed", 120.0, 250.0, "missed"),
        ("complete", 120.0, 250.0, "on track"),
        ("complete", 210.0, 250.0, "missed"),
    ],
)
def test_a_batch_that_failed_in_time_can_still_be_retried_in_time(
    state: Any, finished_at: float, now: float, risk: str
) -> None:
    head = Head("", state, 10, 100.0, sla_seconds=100.0, finished_at=finished_at)
    status = batch_status("squares", "b1", head, Sent(), Counted(), now=now)
    assert status.sla_risk == risk


def test_a_result_that_no_row_can_hold_has_its_errors_cut_and_then_left_out() -> None:
    def result(count: int, error: str) -> ChunkResult:
        failures = [ItemFailure(number, msgspec.Raw(b"7"), error) for number in range(count)]
        return ChunkResult("b1", 1, count, [], failures)

    assert fitted(result(3, "no such order")) == result(3, "no such order")
    shortened = fitted(result(1000, "x" * 2000))
    assert {len(each.error) for each in shortened.failures} == {100}
    emptied = fitted(result(10_000, "x" * 2000))
    assert {each.error for each in emptied.failures} == {""} and len(emptied.failures) == 10_000


async def test_what_was_sent_before_is_skipped_of_an_asynchronous_source_too() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(8):
            yield number

    items = _Items(numbers(), 5)
    taken, is_last = await items.take(2, 1e6)
    assert ([bytes(raw) for raw in taken], is_last) == ([b"5", b"6"], False)
    assert await items.take(2, 1e6) == ([msgspec.Raw(b"7")], True)
    await items.aclose()


@pytest.mark.parametrize("position", [0, 3])
async def test_a_processor_that_cancels_itself_fails_its_item_and_no_other(position: int) -> None:
    site = Site()

    async def square(number: int) -> int:
        if number == position:
            raise asyncio.CancelledError
        return number * number

    site = Site()
    site.pipeline._items.processor = square
    await site.pipeline.start("b1", 9)
    await site.run()
    status = await site.pipeline.status("b1")
    assert (status.state, status.items_failed, status.items_counted) == ("partial", 1, 8)


async def test_an_item_whose_listener_stops_is_neither_done_nor_failed() -> None:
    site, begun = Site(), asyncio.Event()

    async def hang(number: int) -> int:
        begun.set()
        await asyncio.Event().wait()
        return number

    site.pipeline._items.processor = hang
    await site.pipeline.start("b1", 9)
    await site.deliver("orders")
    working = asyncio.ensure_future(site.deliver("work"))
    await begun.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    status = await site.pipeline.status("b1")
    assert (status.items_counted, status.items_failed) == (0, 0)


async def test_results_of_a_batch_that_was_cancelled_are_not_counted() -> None:
    site = Site()
    await site.pipeline.start("b1", 95)
    await site.deliver("orders")
    await site.deliver("work")
    await site.pipeline.cancel("b1")
    site.pipeline._wanted.clear()
    await site.deliver("results")
    status = await site.pipeline.status("b1")
    assert (status.state, status.items_counted) == ("cancelled", 0)
    assert not site.reports.written


async def test_a_part_that_fails_after_the_end_of_a_batch_changes_nothing() -> None:
    site = Site()
    await site.pipeline.start("b1", 95)
    await site.run()
    await site.pipeline._counter.stumbled("b1", "the controller", ValueError("late"), is_final=True)
    status = await site.pipeline.status("b1")
    assert (status.state, status.cause) == ("complete", "")
    assert site.report() == TOTAL


async def test_a_batch_that_was_cancelled_as_its_last_result_was_counted_has_no_report() -> None:
    site = Site()
    await site.pipeline.start("b1", 95)
    await site.deliver("orders")
    await site.deliver("work")
    settle = site.pipeline._counter.settle

    async def cancelled_before(batch: str) -> None:
        row = await site.pipeline._ledger.heads.read(("squares", "b1"))
        if row["state"] == "running":
            await site.pipeline._ledger.heads.write(
                Replace(row.key, {**row.values, "state": "cancelled"}, ANY)
            )
        await settle(batch)

    site.pipeline._counter.settle = cancelled_before  # type: ignore[method-assign]
    await site.deliver("results")
    assert (await site.pipeline.status("b1")).state == "cancelled"
    assert not site.reports.written
