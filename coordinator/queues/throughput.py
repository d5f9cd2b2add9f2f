"""How fast work goes: done a second, seconds an item, items a message, arrivals a second. No I/O."""

from __future__ import annotations

from coordinator.clock import Clock

_WINDOW_SECONDS = 0.25
_WEIGHT = 0.4


class ThroughputEstimator:
    """Running averages of one listener, over about the last second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self._done = 0
        self._rate = 0.0
        self.service_seconds: float | None = None
        self.items_per_message = 1.0
        self._depth_at: tuple[float, int, int] | None = None
        self._total = 0
        self._arrival = 0.0

    @property
    def per_second(self) -> float:
        """Items done a second, lately."""
        elapsed = self._clock.monotonic() - self._since
        if elapsed >= _WINDOW_SECONDS:
            weight = 1.0 - (1.0 - _WEIGHT) ** (elapsed / _WINDOW_SECONDS)
            self._rate += weight * (self._done / elapsed - self._rate)
            self._since, self._done = self._clock.monotonic(), 0
        return self._rate

    def handled(self, items: int, seconds: float) -> None:
        self._done += items
        self._total += items
        each = seconds / items
        known = self.service_seconds
        self.service_seconds = each if known is None else known + 0.1 * (each - known)

    def unpacked(self, items: int) -> None:
        self.items_per_message += 0.1 * (max(1, items) - self.items_per_message)

    def found(self) -> None:
        """Work was found after a pause: idle time says nothing about speed."""
        if not self._done:
            self._since = self._clock.monotonic()

    def arrival_per_second(self, depth: int | None) -> float:
        """What arrives a second, from two depths and what this listener did between: a lower bound if others work too."""
        now = self._clock.monotonic()
        if depth is None:
            return self._arrival
        if self._depth_at is not None:
            at, before, total = self._depth_at
            if now - at < 1.0:
                return self._arrival
            arrived = max(0.0, depth - before + self._total - total) / (now - at)
            self._arrival += 0.5 * (arrived - self._arrival)
        self._depth_at = (now, depth, self._total)
        return self._arrival
