"""What a listener's handlers did: counts, and how long items waited and took, in buckets. No I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from coordinator.queues.delivery import Done, Outcome, Retry
from coordinator.realtime.protocol import HandlerFigures, ListenerStatus

BUCKETS = 120
PER_DOUBLING = 4
SHORTEST_SECONDS = 0.001
MOST_BUCKETS = 2_000


def bucket_of(seconds: float) -> int:
    """The bucket of a time: 0 is up to 1 ms, and each is a fifth longer than the one before, up to twelve days."""
    if seconds <= SHORTEST_SECONDS:
        return 0
    return min(BUCKETS, math.ceil(PER_DOUBLING * math.log2(seconds / SHORTEST_SECONDS)))


def quantile(buckets: Mapping[int, int], share: float) -> float | None:
    """The time within which that share of the items was, no more than a fifth too long; None of no items."""
    return quantiles(buckets, (share,))[0]


def quantiles(buckets: Mapping[int, int], shares: Sequence[float]) -> list[float | None]:
    """`quantile` of several rising shares."""
    found: list[float | None] = []
    places, count, reached = iter(sorted(buckets)), sum(buckets.values()), 0
    bucket: int | None = None
    for share in shares:
        while count and (bucket is None or reached < share * count):
            bucket = next(places)
            reached += buckets[bucket]
        found.append(None if bucket is None else float(SHORTEST_SECONDS * 2.0 ** (bucket / PER_DOUBLING)))
    return found


def bounded(listeners: tuple[ListenerStatus, ...]) -> tuple[ListenerStatus, ...]:
    """Without the times if there are more buckets than fit in a frame beside the rest: that takes dozens of listeners.

    Buckets are never fewer than before, so a process that leaves them out once does so from then on.
    """
    buckets = sum(len(each.figures.durations) + len(each.figures.waits) for each in listeners)
    if buckets <= MOST_BUCKETS:
        return listeners
    return tuple(
        msgspec.structs.replace(each, figures=msgspec.structs.replace(each.figures, durations={}, waits={}))
        for each in listeners
    )


class HandlerCounts:
    """Counts from the start of the listener on, at the moment that a handler ends: before its message is settled.

    An item counts each time that a handler ran for it: as done, as failed, or as retried if the handler asked for that.
    """

    def __init__(self, handler: str) -> None:
        self._handler = handler
        self._done = self._failed = self._retried = 0
        self._durations: Counter[int] = Counter()
        self._waits: Counter[int] = Counter()

    def began(self, waited: Iterable[float]) -> None:
        """A handler starts on items that have waited so long since they were put."""
        self._waits.update(bucket_of(seconds) for seconds in waited)

    def ended(self, outcomes: Iterable[Outcome], seconds: float) -> None:
        """A handler ended, after `seconds`."""
        items = 0
        for outcome in outcomes:
            items += 1
            self._done += isinstance(outcome, Done)
            self._retried += isinstance(outcome, Retry)
            self._failed += not isinstance(outcome, Done | Retry)
        self._durations[bucket_of(seconds)] += items

    def figures(self) -> HandlerFigures:
        """For telemetry."""
        return HandlerFigures(
            handler=self._handler,
            done=self._done,
            failed=self._failed,
            retried=self._retried,
            durations=dict(self._durations),
            waits=dict(self._waits),
        )
