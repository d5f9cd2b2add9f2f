"""The page of batches, on a real pipeline and a real saga that run beside the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import expect

from coordinator import Pipeline, Saga, SagaContext, Storage
from coordinator.backoff import Backoff
from tests.browser.conftest import People
from tests.support.stack import LiveStack

pytestmark = pytest.mark.timeout(180)
AT_ONCE = Backoff(base_seconds=0.01, cap_seconds=0.01)


class Squares:
    """Squares numbers; 13 fails until it is repaired."""

    is_repaired = False

    def __call__(self, number: int) -> int:
        if number == 13 and not self.is_repaired:
            raise ValueError("no price for item 13")
        return number * number


@asynccontextmanager
async def working(pipeline: Pipeline) -> AsyncIterator[None]:
    """All three parts of the pipeline, in this process."""
    listeners = [pipeline.initiators(), pipeline.processors(), pipeline.controllers()]
    running = [asyncio.create_task(listener.run()) for listener in listeners]
    try:
        yield
    finally:
        await asyncio.gather(*(listener.stop(5.0) for listener in listeners))
        await asyncio.gather(*running)


async def test_a_batch_is_followed_live_its_failures_are_retried_and_another_is_cancelled(
    person: People, stack: LiveStack
) -> None:
    process = Squares()
    async with Storage.from_connection_string(stack.connection_string) as storage:
        squares = storage.pipeline("squares", range, process, _add, item=int, result=int, chunk_items=5)
        page = await person("operator", "/batches/")
        await expect(page.get_by_role("link", name="Batches")).to_have_attribute("aria-current", "page")
        await squares.start("browser-1", 40, sla_seconds=3600)
        row = page.locator("#batch-squares--browser-1")
        await expect(row).to_contain_text("Running", timeout=20_000)
        async with working(squares):
            await expect(row).to_contain_text("Partially failed", timeout=30_000)
            await row.get_by_role("link").click()
            await expect(page.locator("main")).to_contain_text("no price for item 13")
            process.is_repaired = True
            await page.get_by_role("button", name="Retry failed items").click()
            await expect(page.locator("#notice")).to_contain_text("Retrying the failed items")
            await expect(row).to_contain_text("Complete", timeout=30_000)
            await expect(row).to_contain_text("40 / 40")
        assert (await squares.status("browser-1")).items_failed == 0

        await squares.start("browser-2", 10)
        await page.goto(f"{stack.url}/batches/?pipeline=squares&batch=browser-2")
        await page.locator("#cancel-reason").fill("started by mistake")
        await page.get_by_role("button", name="Cancel batch").click()
        await expect(page.locator("#notice")).to_contain_text("Batch browser-2 cancelled")
        await expect(page.locator("#batch-squares--browser-2")).to_contain_text("Cancelled", timeout=20_000)
        assert (await squares.status("browser-2")).state == "cancelled"
        await page.goto(f"{stack.url}/audit/?q=batch.")
        await expect(page.locator("main")).to_contain_text("squares/browser-2")
        await expect(page.locator("main")).to_contain_text("started by mistake")

        onlooker = await person("viewer", "/batches/")
        await onlooker.goto(f"{stack.url}/batches/?pipeline=squares&batch=browser-1")
        await expect(onlooker.locator("main")).to_contain_text("Only operators and admins can retry")
        assert await onlooker.get_by_role("button", name="Cancel batch").count() == 0


async def test_a_stuck_saga_shows_its_history_and_is_freed(person: People, stack: LiveStack) -> None:
    async with Storage.from_connection_string(stack.connection_string) as storage:
        trip: Saga[str] = storage.saga("trip", input=str)
        repaired = asyncio.Event()

        @trip.step(attempts=1, backoff=AT_ONCE)
        async def flight(context: SagaContext[str]) -> None:
            raise ValueError("no seat left")

        @flight.compensate
        async def no_flight(context: SagaContext[str]) -> None:
            if not repaired.is_set():
                raise ValueError("the airline does not answer")

        await trip.start("trip-4711", "olga")
        listener = trip.listener()
        running = asyncio.create_task(listener.run())
        try:
            page = await person("operator", "/batches/")
            row = page.locator("#saga-trip--trip-4711")
            await expect(row).to_contain_text("Stuck", timeout=30_000)
            await row.get_by_role("link").click()
            await expect(page.locator("main")).to_contain_text("the airline does not answer")
            await expect(page.locator("main")).to_contain_text("no seat left")
            repaired.set()
            await page.get_by_role("button", name="Retry rollback", exact=True).click()
            await expect(page.locator("#notice")).to_contain_text("Retrying the rollback of")
            await expect(row).to_contain_text("Rolled back", timeout=30_000)
        finally:
            await listener.stop(5.0)
            await running


def _add(total: int | None, results: list[int]) -> int:
    return (total or 0) + sum(results)
