"""Threads put messages through one event loop; programs that run a loop for each put announce every put."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from coordinator import Storage
from coordinator.config import StorageConfig
from coordinator.errors import ConfigurationError, KennelError
from coordinator.realtime.bus import LocalBus, Notification
from coordinator.testing.queues import memory_queue


@pytest.fixture
def bus() -> LocalBus:
    return LocalBus()


@pytest.fixture
def storage(connection_string: str, storage_prefix: str, bus: LocalBus) -> Iterator[Storage]:
    storage = Storage.from_connection_string(
        connection_string, config=StorageConfig(prefix=storage_prefix), bus=bus
    )
    yield storage
    storage.close()


def test_many_threads_put_through_one_loop(storage: Storage, storage_prefix: str):
    queue = storage.queue(f"{storage_prefix}orders", type=int)

    def put_ten(first: int) -> None:
        for number in range(first, first + 10):
            queue.put_blocking(number)

    threads = [threading.Thread(target=put_ten, args=(first,)) for first in range(0, 80, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def items() -> list[int]:
        found = [item for message in await queue.peek(32) for item in message.items]
        assert await queue.depth() == 80
        return found

    assert len(set(asyncio.run(items()))) == 32


async def test_it_refuses_to_stop_an_event_loop(storage: Storage, storage_prefix: str):
    queue = storage.queue(f"{storage_prefix}orders", type=int)
    with pytest.raises(KennelError, match=r"use `await queue\.put\(\)`"):
        queue.put_blocking(1)


def test_a_queue_without_a_portal_says_what_is_missing():
    with pytest.raises(ConfigurationError, match="needs an event loop in another thread"):
        memory_queue("orders").put_blocking(1)


def test_each_put_of_a_short_loop_is_announced(storage: Storage, storage_prefix: str, bus: LocalBus):
    queue = storage.queue(f"{storage_prefix}orders", type=int)
    heard: list[Notification] = []
    bus.subscribe(f"queue:{queue.name}", heard.append)
    asyncio.run(queue.put(1))
    asyncio.run(queue.put(2))
    assert len(heard) == 2, "the second put ended its loop before the window of the first had passed"
