"""Programs that run an event loop for each call, as views and scripts do, leave no connection open behind it."""

from __future__ import annotations

import asyncio
import gc
import warnings

import psutil

from coordinator import Storage
from coordinator.config import StorageConfig


def test_a_put_for_each_asyncio_run_leaks_no_connection(connection_string: str, storage_prefix: str):
    storage = Storage.from_connection_string(connection_string, config=StorageConfig(prefix=storage_prefix))
    queue = storage.queue(f"{storage_prefix}orders")
    asyncio.run(queue.put({"number": 0}))
    process = psutil.Process()
    gc.disable()  # what is closed must be closed by the end of the loop, not some time later
    try:
        before = process.num_fds()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for number in range(20):
                asyncio.run(queue.put({"number": number}))
        assert process.num_fds() <= before
        assert not storage._loops, "an ended loop is not kept in memory"
    finally:
        gc.enable()
    assert asyncio.run(queue.depth()) == 21


def test_a_closed_storage_leaves_nothing_for_the_end_of_the_loop(connection_string: str, storage_prefix: str):
    storage = Storage.from_connection_string(connection_string, config=StorageConfig(prefix=storage_prefix))

    async def use_twice() -> int:
        queue = storage.queue(f"{storage_prefix}orders")
        await queue.put(1)
        await storage.aclose()
        await storage.aclose()
        await queue.put(2)  # connects again
        return await queue.depth()

    assert asyncio.run(use_twice()) == 2
