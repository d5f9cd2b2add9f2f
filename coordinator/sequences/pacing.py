"""When to try next on a counter that others write, too. Pure: times are passed in.

A writer that has taken a range from a counter that others want as well stays away for a window; a writer that lost a race,
for a random part of a share of it: a lost write makes nobody else's void, so its writer need not wait as long. The window is
written with the counter, so that all writers use the same one and nobody is crowded out by luckier ones: a write that wins
at the first try narrows it, a write that wins after lost races widens it. Both change it by a part of the time that a write
takes, so that it changes as much while each writer writes once, however many they are. As long as it stays about the same,
writers that did not meet in one window do not meet in the next, and each has found a moment of its own. A writer that
meets nobody never waits, and writes on the ETag of its own last write without reading.

The first lost races in a row make a loser wait longer, but not longer than the window: every other writer is served once in
it. Further ones make it wait less, or the unluckiest would wait longest. Only where a try takes far longer than it should,
because a crowd has started at once and nobody has widened the window yet, a loser waits up to a multiple of the time that it
takes too long: more tries than the server has time for would leave it none for writes that win. `benchmarks/sequences.py`
shows what the figures give.
"""

from __future__ import annotations

import random

NARROWEST_WINDOW_WRITES = 4
LONGEST_WINDOW_SECONDS, LONGEST_WAIT_SECONDS = 16.0, 8.0
WIDEN_WRITES, NARROW_WRITES, NARROW_CALM = 0.2, 0.1, 0.99
MOST_LOSSES = 12
"""Lost races that count: a crowd that starts at once must not widen the window far beyond what it needs."""
CALM_WRITES = 7
"""Writes in a row without a lost race after which the window narrows faster: the crowd has gone."""
JITTER = 0.06
LOSERS_SHARE, LOSERS_OWN = 0.5, 2.0
BOLD_AFTER, BOLDEST = 4, 0.3
"""Lost races in a row after which a loser waits less again, down to that part: it is unlucky, or all are."""
JAM_TRIES, USUAL_WRITES, LONGEST_TRY_SECONDS = 45, 3.0, 4.0
"""A loser waits up to so many times what its lost writes take above so many times a won one."""


class ContentionBackoff:
    """Decides one writer's pauses from what its tries met."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._write_seconds = self._lost_seconds = 0.005
        self._away_until = 0.0
        self._strangers = 0.0
        self._unbroken = 0

    @property
    def trusts_last_write(self) -> bool:
        """Whether the ETag of our last write is probably still the counter's: then no read is needed."""
        return self._strangers < 0.3

    def before_try(self, now: float) -> float:
        """Seconds to stay away before the first try for a range."""
        return max(0.0, self._away_until - now)

    def saw_another(self) -> None:
        """Somebody else wrote since our last write."""
        self._strangers += 0.3 * (1.0 - self._strangers)

    def lost(self, window: float, times: int = 1) -> float:
        """Seconds to wait after losing so many races in a row, by the window that was to be written."""
        self.saw_another()
        self._unbroken = 0
        too_long = max(0.0, self._lost_seconds - USUAL_WRITES * self._write_seconds)
        longest = window * LOSERS_SHARE * LOSERS_OWN ** min(times - 1, 60)
        longest = min(longest, max(window, JAM_TRIES * too_long))
        longest *= min(1.0, max(BOLDEST, BOLD_AFTER / times))
        return self._rng.uniform(0.0, min(LONGEST_WAIT_SECONDS, self._at_least(longest)))

    def lost_write(self, seconds: float) -> None:
        """A write that lost took so long."""
        self._lost_seconds += 0.3 * (min(LONGEST_TRY_SECONDS, seconds) - self._lost_seconds)

    def window_after(self, window: float, lost: int) -> float:
        """The window to write, after so many races lost for this write."""
        if lost:
            return self._bounded(window + WIDEN_WRITES * self._write_seconds * min(lost, MOST_LOSSES))
        narrower = window - NARROW_WRITES * self._write_seconds
        return self._bounded(narrower * NARROW_CALM ** max(0, self._unbroken - CALM_WRITES))

    def won(self, window: float, sent: float, now: float) -> None:
        """A write sent at `sent` was confirmed at `now`."""
        self._write_seconds += 0.3 * (min(1.0, now - sent) - self._write_seconds)
        self._strangers *= 0.8
        self._unbroken += 1
        self._away_until = now
        if self._strangers > 0.05:
            self._away_until += self._rng.uniform(1.0 - JITTER, 1.0 + JITTER) * window

    def _bounded(self, window: float) -> float:
        return min(LONGEST_WINDOW_SECONDS, self._at_least(window))

    def _at_least(self, window: float) -> float:
        return max(NARROWEST_WINDOW_WRITES * self._write_seconds, window)
