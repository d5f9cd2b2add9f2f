"""What workers ask the hub to pass on, rationed: a release never waits behind it.

A hint only makes others look again, so of several about one topic the newest says all. A worker may send so many a second;
what is over that, or more than all sockets together should be written to, waits, each worker's in turn, and is dropped when
too much waits. Operators' releases do not come by here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.realtime.bus import Hint

log = logging.getLogger(__name__)

HINTS_PER_SECOND, HINTS_AT_ONCE = 10.0, 30.0
WRITES_PER_SECOND, WRITES_AT_ONCE = 5_000.0, 20_000.0
"""Writes to sockets, of all workers' hints together: about a twentieth of a core."""
MOST_WAITING = 50
"""Topics of one worker; of more, the oldest is dropped."""


class RateLimit:
    """A token bucket: `per_second` on average, `burst` at once. The clock is passed in."""

    def __init__(self, per_second: float, burst: float, now: float) -> None:
        self._per_second, self._burst = per_second, burst
        self._left, self._at = burst, now

    def allows(self, now: float, cost: float = 1.0) -> bool:
        """Whether `cost` may be spent now; if so, it is. What costs more than a whole burst may be spent by a full one."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < min(cost, self._burst):
            return False
        self._left -= cost
        return True

    def give_back(self) -> None:
        """What was allowed was not done."""
        self._left += 1


Tell = Callable[[Hint, str], Awaitable[None]]


class Announcements:
    """Passes hints of workers on, by `tell(hint, but)`; `sockets` says to how many each goes."""

    def __init__(self, tell: Tell, sockets: Callable[[], int], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._tell, self._sockets, self._clock = tell, sockets, clock
        self._limits: dict[str, RateLimit] = {}
        self._all = RateLimit(WRITES_PER_SECOND, WRITES_AT_ONCE, clock.monotonic())
        self._waiting: OrderedDict[str, OrderedDict[str, Hint]] = OrderedDict()
        self._due = asyncio.Event()
        self.turned: Callable[[], None] = lambda: None
        self.rested: Callable[[], None] = lambda: None
        self.dropped = 0

    def __len__(self) -> int:
        return sum(len(hints) for hints in self._waiting.values())

    async def offer(self, instance: str, hint: Hint) -> None:
        """Pass it on now if nothing of this worker waits and it may, else in its turn."""
        own = self._waiting.get(instance)
        if own is None and self._may(instance):
            await self._tell(hint, instance)
            return
        if own is None:
            own = self._waiting[instance] = OrderedDict()
        own[hint.topic] = hint
        if len(own) > MOST_WAITING:
            own.popitem(last=False)
            self.dropped += 1
        self._due.set()

    def forget(self, instance: str) -> None:
        """The worker has gone, and what it said waits no more."""
        self._limits.pop(instance, None)
        self._waiting.pop(instance, None)

    async def step(self) -> bool:
        """Pass on one hint of the worker whose turn it is; False if none may go now."""
        for instance in list(self._waiting):
            if not self._may(instance):
                continue
            own = self._waiting.pop(instance)
            _, hint = own.popitem(last=False)
            if own:
                self._waiting[instance] = own  # behind all others
            await self._tell(hint, instance)
            return True
        return False

    async def run(self) -> None:
        """Pass on what waits, until cancelled; one hint in each turn of the loop."""
        while True:
            if not self._waiting:
                self.rested()
                self._due.clear()
                await self._due.wait()
            self.turned()
            if await self.step():
                await asyncio.sleep(0)
            else:
                await self._clock.sleep(0.02)

    def _may(self, instance: str) -> bool:
        now = self._clock.monotonic()
        own = self._limits.get(instance)
        if own is None:
            own = self._limits[instance] = RateLimit(HINTS_PER_SECOND, HINTS_AT_ONCE, now)
        if not own.allows(now):
            return False
        if self._all.allows(now, max(1, self._sockets())):
            return True
        own.give_back()
        return False
