"""When to try next on a counter that others write, too. Pure."""

from __future__ import annotations

import random

from coordinator.backoff import Backoff


class Pace:
    """Decides pauses between tries from what earlier tries met."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._backoff = Backoff()
        self._attempt = 0
        self._crowding = 0.0

    @property
    def is_crowded(self) -> bool:
        """Others probably wrote since our last write: reading first is cheaper than losing."""
        return self._crowding > 0.3

    def before_try(self, now: float) -> float:
        """Seconds to wait before the first try of a refill."""
        return 0.0

    def after_conflict(self, now: float) -> float:
        """Seconds to wait after a lost race."""
        self._crowding += 0.3 * (1.0 - self._crowding)
        self._attempt += 1
        return self._backoff.delay(self._attempt - 1, self._rng)

    def won(self, now: float) -> None:
        self._attempt = 0
        self._crowding *= 0.9
