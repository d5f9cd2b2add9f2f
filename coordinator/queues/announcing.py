"""Telling listeners that there is work (S9), not more often than helps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.bus import Bus, Hint
from coordinator.clock import Clock

WINDOW_SECONDS = 0.1


class Announcer:
    """Publishes `queue:NAME` after a put: at once, then at most once each tenth of a second.

    Guarantees that no put is left without a later announcement while the event loop runs. A thousand puts a second
    thus make ten hints, not a thousand.
    """

    def __init__(self, queue: str, bus: Callable[[], Bus], identity: Callable[[], str], clock: Clock) -> None:
        self._topic = f"queue:{queue}"
        self._bus, self._identity, self._clock = bus, identity, clock
        self._last = float("-inf")
        self._size = 0
        self._trailing: asyncio.Task[None] | None = None

    async def announce(self, size: int) -> None:
        """Call after the message is stored, never before."""
        self._size += size
        if self._trailing is not None and not self._trailing.done():
            return
        wait = self._last + WINDOW_SECONDS - self._clock.monotonic()
        if wait <= 0:
            await self._publish()
        else:
            self._trailing = asyncio.create_task(self._later(wait), name=f"announce {self._topic}")

    async def _later(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._trailing = None  # puts from here on need an announcement of their own
        await self._publish()

    async def _publish(self) -> None:
        self._last = self._clock.monotonic()
        size, self._size = self._size, 0
        await self._bus().publish(Hint(topic=self._topic, size=size, origin=self._identity()))
