"""How long the first message takes when listeners have slept for a while, with push."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack

from coordinator import Storage
from coordinator.queues.polling import IdleBackoff
from coordinator.realtime.bus import LocalBus


class Connected(LocalBus):
    """A bus as with a hub: a listener on an empty queue waits for a hint."""

    @property
    def is_connected(self) -> bool:
        return True


class Sleeper:
    """A listener that sleeps on its own queue, with connections of its own: as idle as a process for itself."""

    def __init__(self, storage: Storage, number: int, idle: IdleBackoff) -> None:
        self.queue = storage.queue(f"bench-first-{number}", type=int)
        self.started: asyncio.Queue[float] = asyncio.Queue()
        self.listener = self.queue.listener(self._handle, tasks=range(51), idle=idle)

    async def _handle(self, number: int) -> None:
        await self.started.put(time.perf_counter())

    async def first(self) -> float:
        """Seconds from the call of put to the start of the handler."""
        before = time.perf_counter()
        await self.queue.put(1)
        return await self.started.get() - before


async def first_with_push(
    connection_string: str, samples: int, idle: IdleBackoff, rest_seconds: float
) -> dict[str, float]:
    """Each sample is the first message of another listener, all asleep for at least `rest_seconds`; no hub in between."""
    async with AsyncExitStack() as stack:
        sleepers, running = [], []
        for number in range(samples):
            storage = await stack.enter_async_context(
                Storage.from_connection_string(connection_string, bus=Connected())
            )
            sleeper = Sleeper(storage, number, idle)
            await sleeper.queue.create()
            sleepers.append(sleeper)
            running.append(asyncio.create_task(sleeper.listener.run()))
        while not all(source.asleep for sleeper in sleepers for source in sleeper.listener.sources):
            await asyncio.sleep(0.1)
        await asyncio.sleep(rest_seconds)
        waits = []
        for sleeper in sleepers:
            waits.append(await sleeper.first())
            await sleeper.listener.stop(5)
        await asyncio.gather(*running)
    return quantiles("first_with_push", waits)


def quantiles(name: str, seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {f"{name}_p50_ms": statistics.median(ordered) * 1000, f"{name}_p99_ms": ordered[-1] * 1000}
