"""`kill_everywhere` on sagas and handlers as users write them: what holds is confirmed, what does not is found."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator import Insert, Saga, SagaContext, Storage, Upsert, optimistic_update
from coordinator.errors import AlreadyExists, NotFound
from coordinator.queues.listener import QueueListener
from coordinator.tables.table import Table
from coordinator.testing import kill_everywhere
from coordinator.testing.azurite import Azurite


def accounts(storage: Storage) -> Table:
    return storage.table(storage.config.table("accounts"))


def transfer(storage: Storage) -> Saga[int]:
    """Takes cents from one account and gives them to another; each step leaves a mark with its change."""
    saga: Saga[int] = storage.saga("transfer", input=int)

    async def book(name: str, cents: int, mark: str) -> None:
        def change(row: dict[str, Any]) -> dict[str, Any]:
            return row if mark in row else {**row, "cents": row["cents"] + cents, mark: True}

        await optimistic_update(accounts(storage), ("nl", name), change)

    @saga.step
    async def take(context: SagaContext[int]) -> None:
        await book("olga", -context.input, "m1")

    @saga.step
    async def give(context: SagaContext[int]) -> None:
        await book("piet", context.input, "m2")

    return saga


async def listened(listener: QueueListener[Any], saga: Saga[Any], key: str) -> None:
    running = asyncio.create_task(listener.run())
    try:
        while not ((await saga.read(key)).is_ended and await saga.queue.depth() == 0):
            await asyncio.sleep(0.2)
    finally:
        await listener.stop(5.0)
        await running


async def prepare(storage: Storage) -> None:
    table = accounts(storage)
    for name in ("olga", "piet"):
        await table.write(Upsert(("nl", name), {"cents": 100}))


async def act(storage: Storage) -> None:
    saga = transfer(storage)
    await saga.start("t1", 30)
    await listened(saga.listener(tasks=range(1, 2), visibility_seconds=1, relay_seconds=0.5), saga, "t1")


async def check(storage: Storage) -> None:
    table = accounts(storage)
    assert [(await table.read(("nl", name)))["cents"] for name in ("olga", "piet")] == [70, 130]


@pytest.mark.timeout(180)
def test_a_saga_ends_done_wherever_its_process_is_killed(azurite: Azurite, storage_prefix: str) -> None:
    kills = kill_everywhere(azurite.connection_string, act, check, prepare=prepare, prefix=storage_prefix)
    assert kills.requests > 10
    assert len(kills.killed) >= kills.requests - 3


async def careless(storage: Storage) -> None:
    """Two writes that belong together, and nothing that remembers the second."""
    table = accounts(storage)
    try:
        await table.write(Insert(("nl", "order"), {"n": 1}))
    except AlreadyExists:
        return
    await table.write(Upsert(("nl", "sum"), {"n": 1}))


async def both(storage: Storage) -> None:
    for name in ("order", "sum"):
        try:
            await accounts(storage).read(("nl", name))
        except NotFound:
            raise AssertionError(f"{name} is missing") from None


@pytest.mark.timeout(60)
def test_a_program_that_forgets_is_found_out_and_the_request_named(
    azurite: Azurite, storage_prefix: str
) -> None:
    with pytest.raises(AssertionError, match=r"killed before request \d+ of \d+: .*sum is missing"):
        kill_everywhere(azurite.connection_string, careless, both, prefix=storage_prefix, may_miss=0)
