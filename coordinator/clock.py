"""Time, passed in rather than looked up, so that tests decide what time it is; and the storage service's time, as far as its
answers prove it."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
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
        """Wait for the event, at most that long (infinite: until it is set); True if it is set."""


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
        if seconds == math.inf:
            return await event.wait()
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await event.wait()
        except TimeoutError:
            pass
        return event.is_set()


SYSTEM_CLOCK: Clock = SystemClock()


class _Batch(threading.local):
    """What a thread's event loop is to call at one moment: `join_until` says until when more may be added."""

    loop: asyncio.AbstractEventLoop | None = None
    seconds = 0.0
    join_until = 0.0

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[[], None], Context]] = []


_batch = _Batch()


def call_later(clock: Clock, seconds: float, call: Callable[[], None]) -> None:
    """Call that on the running event loop when so much time has passed on that clock; never, if the loop ends before.

    By the machine's clock up to a fifth later: what many ask for within that time shares one timer. Each is called in the context of who
    asked, as by `loop.call_later`.
    """
    loop = asyncio.get_running_loop()
    if isinstance(clock, SystemClock):
        now = loop.time()
        if _batch.loop is not loop or _batch.seconds != seconds or now > _batch.join_until:
            _batch.loop, _batch.seconds, _batch.join_until = loop, seconds, now + seconds / 5
            _batch.calls = []
            loop.call_at(_batch.join_until + seconds, _call_each, _batch.calls)
        _batch.calls.append((call, copy_context()))
        return

    async def later() -> None:
        await clock.sleep(seconds)
        call()

    _later.add(task := asyncio.create_task(later(), name="later"))
    task.add_done_callback(_later.discard)


def _call_each(calls: list[tuple[Callable[[], None], Context]]) -> None:
    loop = asyncio.get_running_loop()
    for call, context in calls:
        loop.call_soon(call, context=context)


_later: set[asyncio.Task[None]] = set()


_DRIFT = 100e-6  # a quartz clock is better than 100 µs a second


def parse_date(header: str | None) -> float | None:
    """Seconds since 1970 of an HTTP Date header; None if there is none that can be read."""
    if not header:
        return None
    try:
        return parsedate_to_datetime(header).timestamp()
    except ValueError:
        return None


@dataclass(frozen=True)
class ClockOffset:
    """The bounds of (service time − own time), in seconds; unknown until the first answer.

    An answer dated D that was asked for at `sent` and came at `received` (own clock) proves that the service's clock
    was in [D, D+1) at some moment between. Bounds of several answers are intersected, so they narrow to about a
    round trip. `correction` is the *smallest* change of the own clock that the proof demands: clocks kept by NTP get
    exactly 0, so machines that agree stay in step to the millisecond although the header counts whole seconds.
    """

    low: float = float("-inf")
    high: float = float("inf")
    measured_at: float = 0.0

    @property
    def is_known(self) -> bool:
        return self.high - self.low < float("inf")

    @property
    def correction(self) -> float:
        """Seconds to add to the own clock."""
        if self.low > 0:
            return self.low if self.high == float("inf") else (self.low + self.high) / 2
        if self.high < 0:
            return self.high if self.low == float("-inf") else (self.low + self.high) / 2
        return 0.0

    def observed(self, *, sent: float, received: float, date: float) -> ClockOffset:
        """The bounds after one more answer. An answer that contradicts the old bounds (a clock was set) replaces them."""
        low, high = date - received, date + 1.0 - sent
        aged = abs(received - self.measured_at) * _DRIFT
        both_low, both_high = max(low, self.low - aged), min(high, self.high + aged)
        if both_low > both_high:
            both_low, both_high = low, high
        return ClockOffset(both_low, both_high, received)


class HeldTime:
    """Storage's time, counted by the monotonic clock from one answer to the next.

    A wall clock that is set between two answers changes nothing. With each answer the wall clock is believed as long
    as the answer's date does not refute it, so machines kept by NTP agree to the millisecond; a refuted one is replaced
    by what was held before, or by the middle of what the dates prove.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._proven = ClockOffset()
        self._anchor: float | None = None

    def now(self) -> float:
        """Seconds since 1970; by the wall clock until the first answer."""
        return self._clock.time() if self._anchor is None else self._clock.monotonic() + self._anchor

    def observed(self, sent: float, date: float) -> None:
        """An answer of that date came just now, to a request sent at `sent` (monotonic)."""
        received = self._clock.monotonic()
        self._proven = self._proven.observed(sent=sent, received=received, date=date)
        low, high = self._proven.low, self._proven.high
        for candidate in (self._clock.time() - received, self._anchor):
            if candidate is not None and low <= candidate <= high:
                self._anchor = candidate
                return
        self._anchor = (low + high) / 2
