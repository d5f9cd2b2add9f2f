"""The two plain releases: `PollingRelease` looks at a flag again and again, `ListeningRelease` waits for an event."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from coordinator.backoff import TRANSIENT
from coordinator.blocking import Portal, call_blocking
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import ConfigurationError, GateTimeout
from coordinator.realtime.bus import RESYNC, Bus, Notification


class GlobalFlag(Protocol):
    """One bit that all nodes see.

    Guarantees that after `set_flag` returned, every `get_flag` sent later sees it. Does not guarantee anything about
    who set it, when, or how often; does not push. `storage.flag(name)` is the one in a blob: it is set if the blob
    exists, whatever it contains; clearing deletes it.
    """

    async def get_flag(self) -> bool:
        """Whether the flag is set."""

    async def set_flag(self, value: bool) -> None:
        """Set or clear the flag; harmless when repeated.

        Args:
            value: True to set it.
        """


class PollingRelease:
    """Holds its callers until a flag is set, by polling it.

    Guarantees that `wait` returns at most one interval and one request after the flag was set, whenever the node
    started. An unreachable or busy store is asked again at the next interval.

    Does not guarantee that it notices a flag which was set and cleared between two reads. Costs one request for each
    interval.

    Args:
        flag: The flag, such as `storage.flag(name)`.
        interval_seconds: Seconds between two reads (default 2.5, at most a day). Smaller releases sooner and costs
            more: 1,440 requests an hour at 2.5.
        clock: The clock, for tests.
        portal: For `wait_blocking`: `lambda: storage.portal`.

    Raises:
        ConfigurationError: `interval_seconds` is out of bounds.
        StorageError: Storage refused; also raised by each method.

    Examples:
        >>> await PollingRelease(storage.flag("start")).wait()
    """

    def __init__(
        self,
        flag: GlobalFlag,
        *,
        interval_seconds: float = 2.5,
        clock: Clock = SYSTEM_CLOCK,
        portal: Portal | None = None,
    ) -> None:
        if not 0 < interval_seconds <= 86_400:
            raise ConfigurationError(
                f"interval_seconds must be positive and at most a day, got {interval_seconds}"
            )
        self._flag = flag
        self._interval = interval_seconds
        self._clock = clock
        self._portal = portal

    async def wait(self, timeout: float | None = None) -> None:
        """Return when the flag is set.

        Args:
            timeout: Seconds to wait (default None: no limit).

        Raises:
            GateTimeout: The flag was not set within `timeout`.
        """
        started = self._clock.monotonic()
        while not await self._is_set():
            pause = self._interval
            if timeout is not None:
                pause = min(pause, started + timeout - self._clock.monotonic())
                if pause <= 0:
                    raise GateTimeout(f"the flag was not set within {timeout:g} s")
            await self._clock.sleep(pause)

    def wait_blocking(self, timeout: float | None = None) -> None:
        """`wait` for threads.

        Args:
            timeout: As for `wait`.
        """
        call_blocking(self._portal, "wait_blocking", "await release.wait()", self.wait, timeout)

    async def _is_set(self) -> bool:
        try:
            return await self._flag.get_flag()
        except TRANSIENT:
            return False


class ListeningRelease:
    """Holds its callers until an event comes over a bus.

    Guarantees that an event frees all callers who wait at that moment and whom the bus reaches, without a request to
    storage.

    Does not guarantee that a lost event is noticed: it keeps no state, and a caller who starts to wait after the
    event waits for the next one. `Gate` has no such gap.

    Args:
        bus: Anything that implements `Bus`.
        name: The name of the event.
        clock: The clock, for tests.
        portal: For the blocking calls: `lambda: storage.portal`.

    Raises:
        GateTimeout: See `wait`.

    Examples:
        >>> release = ListeningRelease(storage.bus, "start")
        >>> await release.wait(timeout=60)
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
        """Return when the event comes.

        Args:
            timeout: Seconds to wait (default None: no limit).

        Raises:
            GateTimeout: It did not come within `timeout`.
        """
        loop = asyncio.get_running_loop()
        event = asyncio.Event()

        def on_notification(hint: Notification) -> None:
            if hint.topic != RESYNC:
                with suppress(RuntimeError):  # the loop ended while the hint was on its way
                    loop.call_soon_threadsafe(event.set)

        unsubscribe = self._bus.subscribe(self._topic, on_notification)
        try:
            if timeout is None:
                await event.wait()
            elif not await self._clock.wait(event, timeout):
                raise GateTimeout(f"no release of {self._name} came within {timeout:g} s")
        finally:
            unsubscribe()

    async def release(self) -> None:
        """Free everybody who waits now."""
        await self._bus.publish(Notification(topic=self._topic))

    def wait_blocking(self, timeout: float | None = None) -> None:
        """`wait` for threads.

        Args:
            timeout: As for `wait`.
        """
        call_blocking(self._portal, "wait_blocking", "await release.wait()", self.wait, timeout)

    def release_blocking(self) -> None:
        """`release` for threads."""
        call_blocking(self._portal, "release_blocking", "await release.release()", self.release)
