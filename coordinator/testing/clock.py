"""A clock that stands still until the test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from typing import Any


class ManualClock:
    """Time by hand: `advance()` wakes every sleeper whose moment has come, in order, each at its own time.

    Guarantees that code waiting through this clock sees exactly the moments it asked for. Does not move by itself,
    and does not stop code that looks at the machine's clock.
    """

    def __init__(self, *, start: float = 1_700_000_000.0) -> None:
        self._wall = start
        self._now = 1000.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return self._wall + self._now - 1000.0

    def step_wall(self, seconds: float) -> None:
        """Move the wall clock alone, as an administrator or NTP would."""
        self._wall += seconds

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A pause too short to count still takes time, or whoever loops until a moment would never reach it.
        when = max(self._now + seconds, math.nextafter(self._now, math.inf))
        heapq.heappush(self._sleepers, (when, next(self._order), future))
        await future

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        if event.is_set():
            return True
        if seconds <= 0:
            return False
        rivals = {asyncio.ensure_future(self.sleep(seconds)), asyncio.ensure_future(event.wait())}
        try:
            await asyncio.wait(rivals, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for rival in rivals:
                rival.cancel()
            await asyncio.gather(*rivals, return_exceptions=True)
        return event.is_set()

    async def advance(self, seconds: float) -> None:
        """Let that much time pass; everything that becomes due runs before this returns."""
        await self.settle()
        target = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= target:
            when, _, future = heapq.heappop(self._sleepers)
            if future.done():
                continue
            self._now = max(self._now, when)
            future.set_result(None)
            await self.settle()
        self._now = target
        await self.settle()

    async def settle(self) -> None:
        """Let everything that can run without time or input run."""
        loop: Any = asyncio.get_running_loop()
        for _ in range(100_000):
            await asyncio.sleep(0)
            # What asyncio will run next; there is no public way to ask.
            if not loop._ready:
                return
        raise RuntimeError("the code under test never comes to rest")
