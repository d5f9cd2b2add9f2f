"""Time, passed in rather than looked up, so that tests decide what time it is."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What Kennel needs of time. `coordinator.testing.ManualClock` is the one for unit tests."""

    def monotonic(self) -> float:
        """Seconds that never jump; only differences mean anything."""

    def time(self) -> float:
        """Wall-clock seconds since 1970 (UTC). For people and for agreed moments, never for deadlines."""

    async def sleep(self, seconds: float) -> None:
        """Wait that long."""

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for the event, at most that long; True if it is set."""


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        if event.is_set():
            return True
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await event.wait()
        except TimeoutError:
            pass
        return event.is_set()


SYSTEM_CLOCK: Clock = SystemClock()
