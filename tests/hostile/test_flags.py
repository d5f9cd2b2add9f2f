"""Somebody touches the blob of a flag: it says what is stored, and setting and clearing go on to work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from azure.storage.blob.aio import BlobLeaseClient

from coordinator.config import StorageConfig
from coordinator.errors import LeaseHeld
from coordinator.gates.releases import PollingRelease
from coordinator.storage import Storage
from tests.support.reliability import Cell, Table

NAME = "go-ahead"


def blob_of(storage: Storage):
    return storage.aio.blobs.get_blob_client(storage.config.container("flags"), NAME)


async def delete(storage: Storage) -> None:
    await blob_of(storage).delete_blob()


async def delete_container(storage: Storage) -> None:
    await storage.aio.blobs.delete_container(storage.config.container("flags"))


async def garbage(storage: Storage) -> None:
    await blob_of(storage).upload_blob(b"\x00false" * 100_000, overwrite=True, metadata={"set": "no"})


async def restore(storage: Storage) -> None:
    await blob_of(storage).delete_blob()
    await blob_of(storage).upload_blob(b"an older version")


async def lease(storage: Storage) -> None:
    await BlobLeaseClient(blob_of(storage)).acquire(lease_duration=-1)


Blow = Callable[[Storage], Awaitable[None]]
CLEARED = "the flag is clear, because its blob does not exist; setting it works as before"
SET = "the flag is set, whatever its blob contains; clearing it works as before"
LEASED = (
    "the flag stays set; clearing it is refused with an error that names the flag until the lease is broken"
)
BLOWS: dict[str, tuple[Blow, str]] = {
    "blob deleted": (delete, CLEARED),
    "container deleted": (delete_container, CLEARED),
    "blob overwritten with garbage": (garbage, SET),
    "blob deleted, then an older version restored": (restore, SET),
    "blob leased": (lease, LEASED),
}
CELLS = tuple(Cell(fault, "flag", outcome) for fault, (_, outcome) in BLOWS.items())
TABLE = Table(
    "Flags touched by somebody else",
    "An administrator or another program deletes, restores or overwrites the blob of a flag that was set, or takes its lease.",
    CELLS,
    order=62,
)


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    async with Storage.from_connection_string(
        connection_string, config=StorageConfig(prefix=storage_prefix)
    ) as storage:
        yield storage


@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_a_flag_that_somebody_touched(cell: Cell, storage: Storage) -> None:
    flag = storage.flag(NAME)
    await flag.set_flag(True)
    await BLOWS[cell.fault][0](storage)
    assert await flag.get_flag() == (cell.outcome != CLEARED)
    if cell.outcome == LEASED:
        with pytest.raises(LeaseHeld, match=NAME):
            await flag.set_flag(False)
        assert await flag.get_flag()
        await BlobLeaseClient(blob_of(storage)).break_lease(lease_break_period=0)
    for value in (False, True, True, False, False):
        await flag.set_flag(value)
        assert await flag.get_flag() == value


@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_a_flag_that_somebody_touches_while_workers_wait_for_it(cell: Cell, storage: Storage) -> None:
    """Who waits is let go by what is stored when it looks, and by nothing else."""
    flag, waiting = storage.flag(NAME), asyncio.Event()
    release = PollingRelease(flag, interval_seconds=0.05)

    async def wait() -> None:
        waiting.set()
        await release.wait(timeout=20)

    await flag.set_flag(True)
    await BLOWS[cell.fault][0](storage)
    waiter = asyncio.create_task(wait())
    await waiting.wait()
    if cell.outcome == CLEARED:
        await asyncio.sleep(0.3)
        assert not waiter.done()
        await flag.set_flag(True)
    await waiter
