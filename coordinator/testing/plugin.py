"""Fixtures for pytest: a worker of yours on a storage account in memory. Installed with the package; nothing to import.

def test_an_order_is_sold(kennel_storage, kennel_worker):
    async def scenario():
        async with kennel_worker("worker:worker"):
            await kennel_storage.queue("orders-in").put({"item": "ticket"})
            await kennel_storage.gate("start").open(by="test")
            await kennel_storage.until_empty("orders-in")
    asyncio.run(scenario())
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import pytest

import coordinator

if TYPE_CHECKING:
    from coordinator.testing.storage import MemoryStorage
    from coordinator.worker import Worker

    RunningWorker: TypeAlias = Callable[[str], AbstractAsyncContextManager[Worker]]


@pytest.fixture
def kennel_storage() -> MemoryStorage:
    """A storage account in memory, empty at the start of each test."""
    # Every pytest of an environment loads this module: what takes a second to import waits until it is asked for.
    storage: MemoryStorage = importlib.import_module("coordinator.testing.storage").MemoryStorage()
    return storage


@pytest.fixture
def kennel_worker(
    kennel_storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> Iterator[RunningWorker]:
    """Runs the worker that a module defines, on `kennel_storage` and without a hub: ``async with kennel_worker("worker:worker")``.

    The module is imported again for each test, so its worker, gates and sequences are new. Other modules that it imports are not.
    The block ends with the worker; an error that ended the worker is raised.
    """
    loading = importlib.import_module("coordinator.loading")
    for name in ("KENNEL_HUB_URL", "KENNEL_POOL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(coordinator.Storage, "from_env", lambda *_, **__: kennel_storage)
    monkeypatch.syspath_prepend(str(pytestconfig.rootpath))
    imported: list[str] = []

    @asynccontextmanager
    async def run(target: str) -> AsyncIterator[Worker]:
        module = target.partition(":")[0]
        sys.modules.pop(module, None)
        imported.append(module)
        worker: Worker = loading.load_worker(target)
        running = asyncio.create_task(worker.run(), name=f"worker {worker.name}")
        try:
            yield worker
        finally:
            worker.stop()
            await running

    yield run
    for module in imported:
        sys.modules.pop(module, None)
