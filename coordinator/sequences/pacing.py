"""When to try next on a counter that others write, too. Pure: times are passed in.

Who lost a race, and who just took ranges from a counter that others want as well, stays away for a random part of a
window. The window is written with the counter, so that all writers go by the same one and nobody is crowded out by
luckier ones: who wins at the first try narrows it, who wins after lost races widens it. A writer that meets nobody never
waits, and writes on the ETag of its own last write without reading. The figures were checked with 1, 8 and 32 writers that
refill without end (`benchmarks/sequences.py`).
"""

from __future__ import annotations

import random

NARROWEST_WINDOW_WRITES = 4
LONGEST_WINDOW_WRITES, LONGEST_WINDOW_SECONDS = 200, 2.0
STAND_BY_SECONDS = 0.15
WIDEN, NARROW = 0.15, 0.7


class Pace:
    """Decides one writer's pauses from what its tries met."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._write_seconds = 0.005
        self._away_until = 0.0
        self._strangers = 0.0

    @property
    def trusts_last_write(self) -> bool:
        """Whether the ETag of our last write is probably still the counter's: then no read is needed."""
        return self._strangers < 0.3

    def before_try(self, now: float) -> float:
        """Seconds to stay away before the first try for a range."""
        return max(0.0, self._away_until - now)

    def may_come(self) -> None:
        """The next try need not wait."""
        self._away_until = 0.0

    def stand_by(self) -> float:
        """Seconds to wait for another writer that is about to make room on the counter."""
        return self._rng.uniform(0.5, 1.5) * STAND_BY_SECONDS

    def met(self) -> None:
        """Somebody else wrote since our last write."""
        self._strangers += 0.3 * (1.0 - self._strangers)

    def lost(self, window: float) -> float:
        """Seconds to wait after a lost race, by the window that was to be written."""
        self.met()
        return self._rng.uniform(0.0, self._bounded(window))

    def window_after(self, window: float, lost: int) -> float:
        """The window to write, after so many races lost for this write."""
        return self._bounded(window * (1.0 + WIDEN * lost if lost else NARROW))

    def won(self, window: float, sent: float, now: float) -> None:
        """A write sent at `sent` was confirmed at `now`."""
        self._write_seconds += 0.3 * (min(1.0, now - sent) - self._write_seconds)
        self._strangers *= 0.8
        self._away_until = now
        if self._strangers > 0.05:
            self._away_until += self._rng.uniform(0.5, 1.5) * window

    def _bounded(self, window: float) -> float:
        longest = min(LONGEST_WINDOW_SECONDS, LONGEST_WINDOW_WRITES * self._write_seconds)
        return min(longest, max(NARROWEST_WINDOW_WRITES * self._write_seconds, window))
