"""Notifications of new work: sent not more often than helps, and delivered on the listener's event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from coordinator.clock import Clock
from coordinator.gates.gate import Gate
from coordinator.realtime.bus import Bus, Notification

WINDOW_SECONDS = 0.1
MOST_MOMENTS = 16


class NotificationThrottle:
    """Publishes `queue:NAME` after a put: at once, then at most once each tenth of a second.

    Guarantees that no put is left without a later announcement, unless the process dies. A thousand puts a second
    thus make ten hints, not a thousand. Messages that are not visible yet are announced with the moment when they will be,
    by the second; of more than 16 such moments in a tenth of a second only the first 16.
    """

    def __init__(self, queue: str, bus: Callable[[], Bus], identity: Callable[[], str], clock: Clock) -> None:
        self._topic = f"queue:{queue}"
        self._bus, self._identity, self._clock = bus, identity, clock
        self._last = float("-inf")
        self._size = 0
        self._now = False
        self._moments: set[int] = set()
        self._trailing: asyncio.Task[None] | None = None

    async def announce(self, size: int, *, due: float = 0.0) -> None:
        """Call after the message is stored, never before. `due`: when it will be visible (seconds since 1970, 0: now)."""
        self._size += size
        if due:
            self._moments.add(math.ceil(due))
        else:
            self._now = True
        if self._trailing is not None and not self._trailing.done():
            return
        wait = self._last + WINDOW_SECONDS - self._clock.monotonic()
        if wait <= 0:
            await self._publish()
        else:
            self._trailing = asyncio.create_task(self._later(wait), name=f"announce {self._topic}")

    async def _later(self, seconds: float) -> None:
        try:
            await self._clock.sleep(seconds)
        finally:  # also when the event loop ends: its last puts are announced then
            self._trailing = None  # puts from here on need an announcement of their own
            await self._publish()

    async def _publish(self) -> None:
        self._last = self._clock.monotonic()
        size, self._size = self._size, 0
        moments = [*([0] if self._now else []), *sorted(self._moments)[:MOST_MOMENTS]]
        self._now, self._moments = False, set()
        for due in moments:
            hint = Notification(topic=self._topic, size=size, origin=self._identity(), due=due)
            await self._bus().publish(hint)


class Subscriptions:
    """The subscriptions of one listener while it runs."""

    def __init__(self) -> None:
        self._unsubscribe: list[Callable[[], None]] = []

    def on(self, bus: Bus, topic: str, callback: Callable[[Notification], None]) -> None:
        """Call back on this event loop for each hint of the topic, until `close`."""
        loop = asyncio.get_running_loop()

        def on_notification(hint: Notification) -> None:
            with suppress(RuntimeError):  # the loop ended while the hint was on its way
                loop.call_soon_threadsafe(callback, hint)

        self._unsubscribe.append(bus.subscribe(topic, on_notification))

    def close(self) -> None:
        """End all subscriptions."""
        while self._unsubscribe:
            self._unsubscribe.pop()()


async def follow(gate: Gate, closed: Callable[[], None]) -> None:
    """Call back after every look that finds the gate closed, until cancelled. For use inside `gate.watch()`."""
    while True:
        await gate.changed()
        if not gate.is_open():
            closed()


async def wait_any(event: asyncio.Event, waiting: Coroutine[Any, Any, Any]) -> None:
    """Await the coroutine, or return when the event is set; raises what the coroutine raised."""
    rivals = [asyncio.ensure_future(waiting), asyncio.ensure_future(event.wait())]
    try:
        await asyncio.wait(rivals, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for rival in rivals:
            rival.cancel()
        results = await asyncio.gather(*rivals, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]
