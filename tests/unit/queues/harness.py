"""A listener's surroundings in memory, with time told by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from coordinator.queues.listener import QueueListener
from coordinator.queues.queue import Queue
from coordinator.realtime.bus import LocalBus
from coordinator.testing.clock import ManualClock
from coordinator.testing.invariants import checked
from coordinator.testing.queues import MemoryQueueTransport, memory_queue


class ConnectedBus(LocalBus):
    @property
    def is_connected(self) -> bool:
        return True


class ListenerHarness:
    """A queue with its poison queue, a clock, a bus, and what the handler got."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.transports: dict[str, MemoryQueueTransport] = {}
        self.bus: LocalBus = LocalBus()
        self.queue: Queue[Any] = memory_queue(
            "work", type=int, clock=self.clock, bus=lambda: self.bus, transports=self.transports
        )
        self.got: list[Any] = []

    @property
    def transport(self) -> MemoryQueueTransport:
        return self.transports["work"]

    async def poisoned(self) -> list[Any]:
        return [message.items[0] for message in await self.queue.poison.peek()]

    async def poisoned_count(self) -> int:
        return await self.queue.poison.depth()

    @asynccontextmanager
    async def listening(
        self, handler: Callable[[Any], Any] | None = None, **options: Any
    ) -> AsyncIterator[QueueListener[Any]]:
        async def keep(item: Any) -> None:
            self.got.append(item)

        listener = self.queue.listener(handler or keep, **options)
        with checked(listener.leases.check):
            running = asyncio.create_task(listener.run())
            await self.clock.settle()
            try:
                yield listener
            finally:
                stopping = asyncio.create_task(listener.stop(5))
                await self.clock.advance(60)
                await stopping
                await running
        assert not len(listener.leases), "something is still held after the stop"
