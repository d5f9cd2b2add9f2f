"""What ended long ago is forgotten; what has not ended is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from click.testing import CliRunner

from coordinator import Saga, SagaContext, Storage
from coordinator.__main__ import main
from coordinator.config import StorageConfig
from coordinator.errors import ConfigurationError, NotFound
from coordinator.pipelines.azure import list_batches
from coordinator.pipelines.retention import Pruned, prune
from coordinator.scaling.azure import scaling_history
from coordinator.scaling.decision import AgentState, Decision, Observation
from coordinator.tables.azure import saga_heads

DAY = 86_400.0


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    config = StorageConfig(prefix=storage_prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        yield storage


def square(number: int) -> int:
    if number == 13:
        raise ValueError("unlucky")
    return number * number


def add(total: int | None, results: list[int]) -> int:
    return (total or 0) + sum(results)


async def left_parts(storage: Storage) -> set[str]:
    table = storage.table(storage.config.table("batchparts"))
    return {row.key.partition async for row in table.scan(select=())}


async def ended(storage: Storage) -> Any:
    """A batch complete, one partial, one running; a saga done, one running; two changes of a pool."""
    squares = storage.pipeline("squares", range, square, add, item=int, result=int, chunk_items=5)
    listeners = [squares.initiators(), squares.processors(), squares.controllers()]
    running = [asyncio.create_task(listener.run()) for listener in listeners]
    await squares.start("complete", 12)
    await squares.start("partial", 20)
    for name in ("complete", "partial"):
        assert (await squares.wait(name)).state == name
    await asyncio.gather(*(listener.stop(5.0) for listener in listeners))
    await asyncio.gather(*running)
    await squares.start("running", 12)
    trip: Saga[str] = storage.saga("trip", input=str)

    @trip.step
    async def go(context: SagaContext[str]) -> None: ...

    await trip.start("done", "")
    await trip.run("done")
    await trip.start("running", "")
    history = scaling_history(storage, "pool")
    now = storage.clock.time()
    for previous, wanted in ((0, 1), (1, 2)):
        seen = Observation(at=now + wanted, actual=previous, visible=0)
        await history.record(
            Decision(wanted, "why", AgentState(wanted)), seen, previous=previous, by="a", epoch=1
        )
    return squares


async def test_only_what_ended_before_the_time_is_forgotten_and_twice_is_harmless(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    squares = await ended(storage)
    everything = await left_parts(storage)
    assert await prune(storage, older_than_seconds=DAY) == Pruned(0, 0, 0)
    clock = storage.clock.time
    monkeypatch.setattr(type(storage.clock), "time", lambda self: clock() + 2 * DAY)
    assert await prune(storage, older_than_seconds=DAY, dry_run=True) == Pruned(1, 1, 2)
    assert await left_parts(storage) == everything
    assert await prune(storage, older_than_seconds=DAY) == Pruned(1, 1, 2)
    assert await prune(storage, older_than_seconds=DAY) == Pruned(0, 0, 0)
    assert {each.batch for each in await list_batches(storage)} == {"partial", "running"}
    assert [head.key for head in await saga_heads(storage)] == ["running"]
    assert await left_parts(storage) == {"squares|partial"}
    latest = await scaling_history(storage, "pool").latest()
    assert latest is not None and latest.wanted == 2
    with pytest.raises(NotFound):
        await squares.status("complete")


async def test_an_hour_is_the_least(storage: Storage) -> None:
    with pytest.raises(ConfigurationError, match="at least 3600"):
        await prune(storage, older_than_seconds=60)


def test_the_command_says_what_it_did(connection_string: str, storage_prefix: str) -> None:
    env = {"AZURE_STORAGE_CONNECTION_STRING": connection_string, "KENNEL_PREFIX": storage_prefix}
    done = CliRunner().invoke(main, ["prune", "--days", "30", "--dry-run"], env=env)
    assert (done.exit_code, done.output) == (
        0,
        "Would delete 0 batches, 0 sagas and 0 scaling changes\n",
    )
