"""The background work of a dashboard process: each loop survives any exception, says so, and is seen to live."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from coordinator.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
SAID_SECONDS = 60.0
DEAD_SECONDS = 60.0
# What these wait for may take long without their fault; a new start would not help.
PATIENT = {
    "peaks": 600.0,
    "memory": 600.0,
    "housekeeping": 600.0,
    "claims": 600.0,
    "webhooks": 600.0,
    "tallies": 600.0,
    "bulk-acts": 600.0,
    "alerts": 600.0,
    "deliveries": 600.0,
}


class Loops:
    """Runs loops by name and begins each again a second after it failed.

    `troubles` names those that failed within the last minute. `dead` names those that run no more, and those that said by
    `alive` that they turn, but then neither turned nor said by `resting` that they wait for work, for a minute (those of
    `PATIENT`, which wait for the database, for storage or for strangers: ten). A process with such a loop should be
    started again.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, tuple[float, str]] = {}
        self._turned: dict[str, float] = {}

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run it until `stop`."""
        self._tasks[name] = asyncio.create_task(self._keep(name, run), name=name)

    async def stop(self) -> None:
        """Cancel all and wait for their end."""
        tasks, self._tasks = list(self._tasks.values()), {}
        self._turned.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def alive(self, name: str) -> None:
        """The loop has begun another turn."""
        self._turned[name] = self._clock.monotonic()

    def resting(self, name: str) -> None:
        """The loop waits for work: however long that takes, it is not stuck."""
        self._turned.pop(name, None)

    def failed(self, name: str, error: BaseException) -> None:
        """One turn failed; the loop goes on."""
        self._failed[name] = (self._clock.monotonic(), type(error).__name__)

    def troubles(self) -> dict[str, str]:
        """What failed recently: the error by the loop's name."""
        now = self._clock.monotonic()
        return {name: what for name, (at, what) in self._failed.items() if now - at < SAID_SECONDS}

    def dead(self) -> list[str]:
        """Names of loops that do nothing any more."""
        now = self._clock.monotonic()
        ended = [name for name, task in self._tasks.items() if task.done()]
        return ended + [
            name
            for name, at in self._turned.items()
            if name not in ended and now - at > PATIENT.get(name, DEAD_SECONDS)
        ]

    async def _keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await run()
                return
            except Exception as error:
                log.exception("The loop %s failed and begins again", name, extra={"action": "loop_failed"})
                self.failed(name, error)
            await self._clock.sleep(PAUSE_SECONDS)
