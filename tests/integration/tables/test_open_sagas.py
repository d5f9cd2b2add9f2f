"""The index of open sagas, and chunks by time, on real storage."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coordinator import ANY, Delete, Saga, SagaContext, Storage
from coordinator.config import StorageConfig
from coordinator.queues.delivery import Reject
from coordinator.tables.azure import open_sagas, retry_saga, saga_heads, saga_names


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    config = StorageConfig(prefix=storage_prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        yield storage


def trip(storage: Storage, name: str = "trip", **options: Any) -> Saga[str]:
    saga: Saga[str] = storage.saga(name, input=str, **options)

    @saga.step
    async def flight(context: SagaContext[str]) -> str:
        if context.input == "bad":
            raise Reject("no such flight")
        return context.input

    @flight.compensate
    async def no_flight(context: SagaContext[str]) -> None:
        raise Reject("the airline does not answer")

    return saga


async def test_open_and_stuck_sagas_are_found_however_many_have_ended(storage: Storage) -> None:
    saga, other = trip(storage), trip(storage, "visit")
    for number in range(12):
        await saga.start(f"a-{number}", "good")
        await saga.run(f"a-{number}")
    await saga.start("z-open", "good")
    await saga.start("z-stuck", "bad")
    await saga.run("z-stuck")
    await other.start("o-1", "good")
    assert await saga_names(storage) == ["trip", "visit"]
    found = await open_sagas(storage, ["trip", "visit"])
    assert {(head.saga, head.key): head.state for head in found} == {
        ("trip", "z-open"): "running",
        ("trip", "z-stuck"): "stuck",
        ("visit", "o-1"): "running",
    }
    assert "z-stuck" not in [head.key for head in await saga_heads(storage, limit=10)]
    assert await retry_saga(storage, "trip", "z-stuck", by="olga") == "compensating"
    assert {head.key: head.state for head in await open_sagas(storage, ["trip"])}["z-stuck"] == "compensating"


async def test_a_saga_whose_row_in_the_index_was_deleted_ends_all_the_same(storage: Storage) -> None:
    saga = trip(storage)
    await saga.start("t1", "good")
    await saga.table.write(Delete(("trip", "open|t1"), ANY))
    progress = await saga.run("t1")
    assert progress is not None
    assert (progress.state, await open_sagas(storage, ["trip"])) == ("done", [])


async def test_a_saga_whose_queue_was_cleared_is_revived_and_ends(storage: Storage) -> None:
    saga = trip(storage)
    await saga.start("t1", "good")
    await saga.queue.clear()
    saga._clock = Later(storage.clock, 600.0)  # type: ignore[assignment]
    assert await saga.sweep() == 1
    listener = trip(storage).listener(visibility_seconds=2)
    running = asyncio.create_task(listener.run())
    try:
        async with asyncio.timeout(20):
            assert (await saga.wait("t1")).state == "done"
    finally:
        await listener.stop(5.0)
        await running


class Later:
    """A clock that is ahead."""

    def __init__(self, clock: Any, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds

    def time(self) -> float:
        return float(self._clock.time()) + self._seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


async def test_versions_have_queues_of_their_own_and_share_the_keys(storage: Storage) -> None:
    first, second = trip(storage), trip(storage, version="2")
    assert second.queue.name == f"{first.queue.name}-2"
    assert await first.start("t1", "good")
    assert not await second.start("t1", "good")
    await second.start("t2", "good")
    assert [await first.queue.depth(), await second.queue.depth()] == [1, 1]


async def test_a_hundred_items_of_50_ms_are_spread_over_the_processors(storage: Storage) -> None:
    worked: Counter[str] = Counter()

    def processor(place: str) -> Any:
        async def slow(number: int) -> int:
            worked[place] += 1
            await asyncio.sleep(0.05)
            return number

        return slow

    def pipeline(place: str) -> Any:
        return storage.pipeline(
            "slow",
            range,
            processor(place),
            lambda total, each: (total or 0) + sum(each),
            item=int,
            result=int,
        )

    parts = [pipeline(f"p{number}") for number in range(4)]
    listeners: list[Any] = [parts[0].initiators(), parts[0].controllers()]
    listeners += [part.processors(tasks=range(1, 2)) for part in parts]
    await parts[0].start("b1", 100)
    running = [asyncio.create_task(listener.run()) for listener in listeners]
    try:
        async with asyncio.timeout(30):
            status = await parts[0].wait("b1")
    finally:
        await asyncio.gather(*(listener.stop(5.0) for listener in listeners))
        await asyncio.gather(*running)
    assert (status.state, status.items_counted) == ("complete", 100)
    assert len(worked) == 4, worked
    assert max(worked.values()) <= 60, worked
