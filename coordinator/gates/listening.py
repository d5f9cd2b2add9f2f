"""Release by listening on a bus (S3)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from coordinator.blocking import Portal, call_blocking
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import GateTimeout
from coordinator.realtime.bus import RESYNC, Bus, Hint


class ListeningRelease:
    """Holds its callers until an event comes over a bus (S3).

    Guarantees that an event frees everybody who waits at that moment and whom the bus reaches, without a request to
    storage. Keeps no state: whoever starts to wait after the event waits for the next one, and a lost event is lost.
    `Gate` is the form without that hole.

    `bus`: anything that implements `Bus`; `name`: which event; `portal`: for the blocking calls, `lambda: storage.portal`.
    """

    def __init__(
        self, bus: Bus, name: str, *, clock: Clock = SYSTEM_CLOCK, portal: Portal | None = None
    ) -> None:
        self._bus = bus
        self._topic = f"release:{name}"
        self._name = name
        self._clock = clock
        self._portal = portal

    async def wait(self, timeout: float | None = None) -> None:
        """Return when the event comes; raises `GateTimeout` after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        event = asyncio.Event()

        def heard(hint: Hint) -> None:
            if hint.topic != RESYNC:
                with suppress(RuntimeError):  # the loop ended while the hint was on its way
                    loop.call_soon_threadsafe(event.set)

        unsubscribe = self._bus.subscribe(self._topic, heard)
        try:
            if timeout is None:
                await event.wait()
            elif not await self._clock.wait(event, timeout):
                raise GateTimeout(f"no release of {self._name} came within {timeout:g} s")
        finally:
            unsubscribe()

    async def release(self) -> None:
        """Free everybody who waits now."""
        await self._bus.publish(Hint(topic=self._topic))

    def wait_blocking(self, timeout: float | None = None) -> None:
        """`wait` for threads."""
        call_blocking(self._portal, "wait_blocking", "await release.wait()", self.wait, timeout)

    def release_blocking(self) -> None:
        """`release` for threads."""
        call_blocking(self._portal, "release_blocking", "await release.release()", self.release)
