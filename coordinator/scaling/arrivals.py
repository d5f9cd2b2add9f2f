"""How much arrives, and how old what waits is: from the totals of earlier looks. No I/O, no clock."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

BUCKETS = 5
_FEWEST_BUCKET_SECONDS = 15.0
_RECENT_SECONDS, _ENOUGH_ITEMS = 30.0, 100
_SLOW_BUCKETS = 8
_MOST_SAMPLES = 400
_TREND_SECONDS = 300.0
# A rate that is higher by so many standard deviations is no chance.
_SURE = 3.0


class Arrivals:
    """The items that had arrived by each look.

    A rate is the median of the newest five buckets: a burst is a backlog, not a rate, and fills no more than one or two of
    them; what keeps arriving fills three soon. `bucket_seconds` is a sixth of the target time, at least 15 s, so that slow
    work is not counted over a time in which hardly any of it comes.
    """

    def __init__(self, target_seconds: float) -> None:
        self.bucket_seconds = max(_FEWEST_BUCKET_SECONDS, min(120.0, target_seconds / 6))
        self._keep_seconds = (
            max(target_seconds, _SLOW_BUCKETS * self.bucket_seconds, 2 * _TREND_SECONDS) + 60.0
        )
        self._samples: deque[tuple[float, float]] = deque(maxlen=_MOST_SAMPLES)
        self._total = 0.0
        self._last_rise = -math.inf
        self._gap = 0.0

    def add(self, at: float, arrived: float) -> None:
        """What arrived since the look before; a little less than nothing corrects what an earlier look took for more."""
        self._total += arrived
        if arrived > 0:
            if math.isfinite(self._last_rise):
                self._gap = at - self._last_rise
            self._last_rise = at
        self._samples.append((at, self._total))
        while len(self._samples) > 2 and self._samples[1][0] < at - self._keep_seconds:
            self._samples.popleft()

    def rate(self, now: float) -> float | None:
        """Items a second that keep arriving; None before the second look."""
        if len(self._samples) < 2:
            return None
        return median(self._buckets(now, BUCKETS, self.bucket_seconds))

    def most(self, now: float, item_seconds: float = 0.0) -> float | None:
        """The largest rate that may be meant: for whether fewer instances would do. None until enough was seen.

        The last few minutes are enough for it, where items are done in seconds.
        """
        if len(self._samples) < 2 or now - self._samples[0][0] < BUCKETS * self.bucket_seconds:
            return None
        # Long enough that chance does not make much of it.
        seconds = _RECENT_SECONDS
        while seconds < 3 * self.bucket_seconds and self._between(now - seconds, now) < _ENOUGH_ITEMS:
            seconds += self.bucket_seconds
        recent = self._between(now - seconds, now) / seconds
        size = min(self.bucket_seconds, max(_RECENT_SECONDS, item_seconds))
        buckets = self._buckets(now, _SLOW_BUCKETS, size)
        return max(recent, median(buckets[:BUCKETS]), median(buckets))

    def is_growing(self, now: float) -> bool:
        """Whether more arrived in the last five minutes than in the five before, by more than chance explains."""
        if len(self._samples) < 2 or now - self._samples[0][0] < 2 * _TREND_SECONDS:
            return False
        after, before = (
            self._between(now - _TREND_SECONDS, now),
            self._between(now - 2 * _TREND_SECONDS, now - _TREND_SECONDS),
        )
        return after - before > _SURE * math.sqrt(max(0.0, after + before))

    def idle_seconds(self, now: float) -> float:
        """How long nothing has arrived, as far as was seen."""
        since = self._last_rise if math.isfinite(self._last_rise) else self._samples[0][0]
        return max(0.0, now - since)

    def ages(self, now: float, waiting: float, oldest_seconds: float) -> tuple[tuple[float, float], ...]:
        """What waits by its age, the oldest first: (no older than, items). The newest that arrived are the last to go."""
        found: list[tuple[float, float]] = []
        left, later = waiting, self._total
        samples = list(self._samples)
        for (before, total), (_, _) in zip(samples[-2::-1], samples[:0:-1], strict=True):
            if left <= 0:
                break
            arrived = min(left, max(0.0, later - total))
            later = min(later, total)
            if arrived > 0:
                found.append((min(oldest_seconds, now - before), arrived))
                left -= arrived
        if left > 0:
            found.append((oldest_seconds, left))
        return tuple(_thinned(found[::-1]))

    def _buckets(self, now: float, count: int, size: float) -> list[float]:
        """Rates of the newest buckets, 0 where nothing was seen yet."""
        return [
            max(0.0, self._between(now - (place + 1) * size, now - place * size) / size)
            for place in range(count)
        ]

    def _between(self, start: float, end: float) -> float:
        return self._at(end) - self._at(start)

    def _at(self, moment: float) -> float:
        later_at, later = self._samples[-1]
        for at, total in reversed(self._samples):
            if at <= moment:
                if later_at <= at:
                    return total
                return total + (later - total) * (moment - at) / (later_at - at)
            later_at, later = at, total
        return later


def _thinned(ages: list[tuple[float, float]], most: int = 12) -> list[tuple[float, float]]:
    """At most so many groups; neighbours are joined under the older age."""
    while len(ages) > most:
        ages = [
            (ages[place][0], sum(items for _, items in ages[place : place + 2]))
            for place in range(0, len(ages), 2)
        ]
    return ages
