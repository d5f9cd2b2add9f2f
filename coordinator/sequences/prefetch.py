"""How fast numbers go, how long a refill takes, and so when to fetch how many. Pure: times are passed in."""

from __future__ import annotations

from coordinator.sequences.grants import SequenceConfig

SAFETY = 2.0
HALF_LIFE_SECONDS = 30.0
WINDOW_SECONDS = 0.25


class Consumption:
    """Numbers per second: the recent peak, decaying by half every 30 s, so that a burst after a lull is expected."""

    def __init__(self, now: float) -> None:
        self._since = self._peak_at = now
        self._taken = 0
        self._peak = 0.0
        self._current = 0.0

    def took(self, numbers: int, now: float) -> None:
        """`numbers` were issued until `now`."""
        self._taken += numbers
        elapsed = now - self._since
        if elapsed < WINDOW_SECONDS:
            return
        self._current = self._taken / elapsed
        self._peak = max(self.peak(now), self._current)
        self._peak_at = self._since = now
        self._taken = 0

    def now(self, now: float) -> float:
        """The recent rate, in numbers per second."""
        elapsed = now - self._since
        return self._taken / elapsed if elapsed > 4 * WINDOW_SECONDS else self._current

    def peak(self, now: float) -> float:
        """The rate to be prepared for, in numbers per second."""
        running = self._taken / max(WINDOW_SECONDS, now - self._since)
        faded: float = self._peak * 0.5 ** ((now - self._peak_at) / HALF_LIFE_SECONDS)
        return max(faded, running)


class RefillTime:
    """How long a refill takes, at the slow end: mean plus four mean deviations, and not below the recent worst."""

    def __init__(self, guess_seconds: float = 0.1) -> None:
        self._mean = guess_seconds
        self._deviation = guess_seconds / 4
        self._worst = 0.0

    def took(self, seconds: float) -> None:
        error = seconds - self._mean
        self._mean += 0.2 * error
        self._deviation += 0.2 * (abs(error) - self._deviation)
        self._worst = max(self._worst * 0.95, seconds)

    @property
    def seconds(self) -> float:
        return max(self._mean + 4 * self._deviation, self._worst)


def numbers_needed(rate: float, refill_seconds: float) -> int:
    """How many numbers must be in the buffer so that a refill started now comes in time."""
    return int(SAFETY * rate * refill_seconds) + 1


def next_range_size(config: SequenceConfig, rate: float, last_size: int) -> int:
    """The size of the next range: what lasts `range_seconds`, within bounds, at most twice the last one."""
    smallest, largest = config.sizes
    return max(smallest, min(largest, int(rate * config.range_seconds), 2 * last_size))
