"""Programs without an event loop hold locks and lead; leases of other names."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from coordinator import Storage, Term
from coordinator.config import StorageConfig
from coordinator.errors import ConfigurationError, LockTimeout


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    async with Storage.from_connection_string(
        connection_string, config=StorageConfig(prefix=storage_prefix)
    ) as storage:
        yield storage


async def test_threads_share_one_mutex_and_one_semaphore(storage: Storage) -> None:
    def program() -> tuple[list[int], int]:
        mutex, places = storage.mutex("stock-count"), storage.semaphore("importers", 2)
        epochs: list[int] = []
        inside, most, guard = 0, 0, threading.Lock()

        def work(_: int) -> None:
            nonlocal inside, most
            with places.hold_blocking(timeout=60):
                with guard:
                    inside += 1
                    most = max(most, inside)
                with mutex.hold_blocking(timeout=60) as term:
                    epochs.append(term.epoch)
                with guard:
                    inside -= 1

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        with mutex.hold_blocking(), pytest.raises(LockTimeout), mutex.hold_blocking(timeout=0.2):
            pass
        storage.close()
        return epochs, most

    epochs, most = await asyncio.to_thread(program)
    assert sorted(epochs) == [1, 2, 3, 4]
    assert epochs == sorted(epochs)
    assert most <= 2


async def test_a_script_leads_under_the_names_of_the_source(storage: Storage) -> None:
    def task(term: Term) -> int:
        term.check()
        return term.epoch

    def program() -> list[int]:
        named = storage.election("leader", container="leases", blob="MyLeaderCoordinatorTask")
        found = [named.run_blocking(task), named.run_blocking(task)]
        storage.close()
        return found

    first, second = await asyncio.to_thread(program)
    assert second == first + 1
    blob = storage.aio.blobs.get_blob_client("leases", "MyLeaderCoordinatorTask")
    assert (await blob.get_blob_properties()).metadata["epoch"] == str(second)
    for wrong in ({"container": "Not A Container"}, {"blob": "ends with."}):
        with pytest.raises(ConfigurationError, match="use"):
            storage.mutex("leader", **wrong)  # type: ignore[arg-type]
