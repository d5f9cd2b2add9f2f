"""When to try next on a counter that others write, too. Pure: times are passed in.

Who just took a range from a counter that others want as well stays away for about a window; who lost a race, for a random
part of a share of it: a write that was lost makes nobody else's void, so the loser need not wait as long. The window is
written with the counter, so that all writers go by the same one and nobody is crowded out by luckier ones: who wins at the
first try narrows it, who wins after lost races widens it, both by little, so that it stays near what the crowd needs. A
writer that meets nobody never waits, and writes on the ETag of its own last write without reading. `benchmarks/sequences.py`
shows what the figures give.
"""

from __future__ import annotations

import random

NARROWEST_WINDOW_WRITES = 4
LONGEST_WINDOW_WRITES, LONGEST_WINDOW_SECONDS = 200, 2.0
WIDEN, NARROW = 0.15, 0.93
LOSERS_SHARE, LOSERS_OWN = 0.3, 1.5


class ContentionBackoff:
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

    def met(self) -> None:
        """Somebody else wrote since our last write."""
        self._strangers += 0.3 * (1.0 - self._strangers)

    def lost(self, window: float, times: int = 1) -> float:
        """Seconds to wait after losing so many races in a row, by the window that was to be written."""
        self.met()
        # A window that nobody has widened yet, since nobody wins, must not keep a crowd from parting.
        return self._rng.uniform(0.0, self._bounded(window * LOSERS_SHARE * LOSERS_OWN ** (times - 1)))

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
