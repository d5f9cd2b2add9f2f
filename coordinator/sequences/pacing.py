"""When to try next on a counter that others write, too. Pure: times are passed in.

Writers take turns. Whoever needs several ranges says so with its write (`Turn`), and then writes on the ETag of its own
last write, with no read in between; anybody else would lose against it. Who reads such a turn stays away until it must
be over, and then comes at a random moment of a window that widens with each turn met and each race lost, and narrows
with each race won. A turn is only announced, never owned: who was away for as long as announced and finds the counter
unchanged may write, so a writer that died holds up nobody. The figures were chosen in a simulation of 2, 8 and 32
writers that refill without end, and checked against the emulator (`benchmarks/sequences.py`).
"""

from __future__ import annotations

import random
from typing import NamedTuple

LONGEST_TURN_WRITES = 12
LONGEST_TURN_SECONDS = 0.2
LONGEST_WINDOW_WRITES, LONGEST_WINDOW_SECONDS = 200, 5.0
WIDEN_MET, WIDEN_LOST, NARROW = 1.2, 1.8, 0.7
AGE = 0.7
"""Each turn met in one refill takes the next try from a smaller part of the window: who waited long goes first."""


class Turn(NamedTuple):
    """Announced with a write: how many more will follow at once, and how long each takes."""

    writes_left: int = 0
    write_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return min(self.writes_left, LONGEST_TURN_WRITES) * min(max(self.write_seconds, 0.0), 1.0)


NO_TURN = Turn()


class Pace:
    """Decides one writer's pauses from what its tries met."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._write_seconds = 0.005
        self._window = self._narrowest
        self._turn = NO_TURN
        self._turn_ends = 0.0
        self._away_until = 0.0
        self._strangers = 0.0
        self._turns_met = 0
        self._writes = 0

    @property
    def _narrowest(self) -> float:
        return 4 * self._write_seconds

    def is_in_turn(self, now: float) -> bool:
        """Whether the next write may follow at once. A turn left unused for long has lapsed."""
        return self._turn.writes_left > 0 and now < self._turn_ends

    def trusts_last_write(self, now: float) -> bool:
        """Whether the ETag of our last write is probably still the counter's: then no read is needed."""
        return self.is_in_turn(now) or self._strangers < 0.3

    def before_try(self, now: float) -> float:
        """Seconds to stay away before the first try for a range."""
        return 0.0 if self.is_in_turn(now) else max(0.0, self._away_until - now)

    def announce(self, further: int, now: float) -> Turn:
        """The turn to announce with a write that `further` ones should follow."""
        if self.is_in_turn(now):
            left = self._turn.writes_left - 1
        else:
            left = min(LONGEST_TURN_WRITES, int(LONGEST_TURN_SECONDS / self._write_seconds)) - 1
        return Turn(max(0, min(further, left)), round(self._write_seconds, 4))

    def met_turn(self, turn: Turn) -> float:
        """Seconds to wait after reading somebody else's turn."""
        self._met_stranger(WIDEN_MET)
        window = max(self._write_seconds, self._window * AGE**self._turns_met)
        self._turns_met += 1
        return turn.seconds + self._rng.uniform(0.0, window)

    def lost(self) -> float:
        """Seconds to wait after a lost race: read soon, somebody's turn has probably begun."""
        self._turn = NO_TURN
        self._met_stranger(WIDEN_LOST)
        return self._rng.uniform(0.0, self._window)

    def won(self, announced: Turn, sent: float, now: float) -> None:
        """A write sent at `sent` was confirmed at `now`."""
        self._write_seconds += 0.3 * (min(1.0, now - sent) - self._write_seconds)
        if not self.is_in_turn(sent):
            self._window = max(self._narrowest, self._window * NARROW)
            self._strangers *= 0.8
            self._writes = 0
        self._turns_met = 0
        self._writes += 1
        self._turn = announced
        self._turn_ends = now + max(0.05, 4 * self._write_seconds)
        self._away_until = now
        if announced.writes_left == 0 and self._writes > 1:
            # Long enough that whoever waited comes first; a lone writer hardly notices.
            away = self._window if self._strangers > 0.05 else self._narrowest
            self._away_until += self._rng.uniform(1.0, 2.0) * away

    def _met_stranger(self, widen: float) -> None:
        self._strangers += 0.3 * (1.0 - self._strangers)
        longest = min(LONGEST_WINDOW_SECONDS, LONGEST_WINDOW_WRITES * self._write_seconds)
        self._window = min(longest, max(self._narrowest, self._window * widen))
