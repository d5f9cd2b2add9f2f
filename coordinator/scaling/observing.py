"""Seeing how a pool keeps up with its queue: from the queue, and from what the workers report."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from coordinator.bounds import MAX_ITEMS
from coordinator.errors import ConfigurationError
from coordinator.gates.gate import Gate
from coordinator.gates.state import phase
from coordinator.queues.protocols import MAX_BATCH
from coordinator.queues.queue import PeekedMessage, Queue
from coordinator.scaling.arrivals import Arrivals
from coordinator.scaling.decision import Observation
from coordinator.scaling.reports import Completions, ReportedPool, WorkerReport

ReadReports = Callable[[], Awaitable[Sequence[WorkerReport]]]

_WEIGHT = 0.3
_LONG_ITEM_SECONDS = 5.0
# Instances that report nothing for so long either cannot, or do not know of their pool.
_SILENT_SECONDS = 180.0


class QueueObserver:
    """Two requests a look: the count (invisible messages included) and a peek (32 visible ones and their age).

    `reports` reads what the workers say of themselves: then what is in flight, what was done, and how fast an instance is
    are measured, and what the queue hides besides is delayed, so not due. Without reports, what is hidden is taken for in
    flight as far as `slots` of the instances go, and an instance for as fast as `per_second` (items).

    Arrivals are the change of the count and the items that were done. The age of what waits follows from when it arrived;
    a message that was delayed is as old as its appearance. With the `gate` that the instances wait at, a third request
    says whether it holds them: then nothing is late, and ages count from its opening.
    """

    def __init__(
        self,
        queue: Queue[Any],
        *,
        target_seconds: float = 60.0,
        per_second: float = 10.0,
        slots: int = 10,
        reports: ReadReports | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._queue = queue
        self._reports, self._gate = reports, gate
        self._first_rate, self._slots = per_second, slots
        self._completions = Completions()
        self._arrivals = Arrivals(target_seconds)
        self._items = 1.0
        self._efficiency = 1.0
        self._busy_since = self._silent_since = self._closed_since = math.inf
        self._delayed = 0
        self._reported: float | None = None
        self._known: ReportedPool | None = None  # the newest that says how fast an instance is
        self._seen: dict[str, float] | None = None
        self._last: _Look | None = None

    async def __call__(self, actual: int) -> Observation:
        count = await self._queue.depth()
        peeked = await self._queue.peek(MAX_BATCH) if count else []
        now = self._queue.clock.time()
        measured = None
        if self._reports is not None:
            measured = self._measured(await self._reports(), now, actual)
        held_by, held_seconds, opened_at = await self._gate_now(now)
        self._learn_items(peeked, measured)
        is_whole = len(peeked) < MAX_BATCH
        in_flight = self._in_flight(count, len(peeked), actual, measured)
        waiting = self._waiting(count, len(peeked), in_flight, is_whole, measured)
        look = _Look(now, count - self._delayed, waiting * self._items, actual, measured)
        look.head = peeked[0].id if peeked else ""
        rate = self._rate(look)
        look.done = self._done(look, in_flight, rate)
        arrived = 0.0
        if self._last is not None and now > self._last.at:
            arrived = (look.count - self._last.count) * self._items + look.done
            self._arrivals.add(now, arrived)
        elif self._last is None:
            self._arrivals.add(now, 0.0)
        oldest = min(self._oldest(peeked, now, is_whole), max(0.0, now - opened_at))
        self._last = look
        takes = (self._known and self._known.item_seconds) or self._slots / self._first_rate
        return Observation(
            at=now,
            actual=actual,
            visible=waiting,
            in_flight=in_flight,
            oldest_seconds=oldest,
            arrival_per_second=self._arrivals.rate(now),
            most_per_second=self._arrivals.most(now, takes),
            instance_per_second=rate if self._known else None,
            cpu=measured.cpu if measured else None,
            items_per_message=self._items,
            held_by=held_by,
            held_seconds=held_seconds,
            ready=measured.ready if measured else None,
            delayed=self._delayed,
            slots=self._known.slots if self._known else None,
            item_seconds=self._known.item_seconds if self._known else None,
            longest_seconds=measured.longest_seconds if measured else 0.0,
            idle_seconds=self._arrivals.idle_seconds(now),
            ages=self._arrivals.ages(now, waiting * self._items, oldest),
            arrived=arrived,
            is_growing=self._arrivals.is_growing(now),
        )

    def _measured(self, reports: Sequence[WorkerReport], now: float, actual: int) -> ReportedPool | None:
        """What the workers report; None if there are none, or none that still report."""
        measured = self._completions.measure(reports, now)
        if measured.possible_per_second:
            self._known = measured
        is_heard = bool(measured.ready) or not actual
        self._silent_since = math.inf if is_heard else min(self._silent_since, now)
        if now - self._silent_since >= _SILENT_SECONDS:
            self._reported = None
            return None
        return measured if reports else None

    def _in_flight(self, count: int, visible: int, actual: int, measured: ReportedPool | None) -> int:
        hidden = max(0, count - visible)
        room = actual * self._slots if measured is None else measured.in_flight
        return min(hidden, room)

    def _waiting(
        self, count: int, visible: int, in_flight: int, is_whole: bool, measured: ReportedPool | None
    ) -> int:
        """The messages that are due and nobody has; what is hidden and not in flight is delayed."""
        if is_whole:
            self._delayed = max(0, count - visible - in_flight)  # more may come between the two requests
            return visible
        known = in_flight if measured is not None else 0
        if count - self._delayed - known <= MAX_BATCH:
            self._delayed = 0  # more is visible than could be: what was delayed is due now
        return max(visible, count - self._delayed - known)

    def _done(self, look: _Look, in_flight: int, rate: float) -> float:
        """Items done since the look before."""
        last = self._last
        if last is None:
            return 0.0
        if look.measured is not None:
            before, self._reported = self._reported, look.measured.done
            if before is not None:
                return look.measured.done - before
        elif self._reported is not None:
            return 0.0  # all that reported have left, and those that were started have not begun
        if look.head and look.head == last.head:
            return 0.0  # what was the next to be taken still is
        # Nobody reports: as busy as the instances seem, they work at their rate.
        working = min(look.actual, last.actual)
        if look.measured is not None:
            working = min(working, look.measured.ready)
        slots = max(1, look.actual * self._slots)
        busy = 1.0 if look.waiting > slots else min(1.0, in_flight / slots)
        return busy * rate * working * (look.at - last.at)

    def _rate(self, look: _Look) -> float:
        """Items a second of one instance: by the handlers' time, corrected by what was done while there was enough to do."""
        measured = look.measured
        possible = (self._known and self._known.possible_per_second) or self._first_rate
        if measured is None:
            return possible * self._efficiency
        if (measured.item_seconds or 0.0) >= _LONG_ITEM_SECONDS:
            return possible  # few ends in a look; and what it takes between two jobs is little beside them
        # Work for two more seconds, or half of all handlers: nobody was idle.
        enough = measured.ready * max(2 * possible * self._efficiency, measured.slots * self._items / 2)
        if look.waiting <= enough:
            self._busy_since = math.inf
            return possible * self._efficiency
        self._busy_since = min(self._busy_since, look.at)
        spans = [span for span in measured.spans if span[0] >= self._busy_since]
        items, seconds = sum(span[2] for span in spans), sum(span[1] - span[0] for span in spans)
        if items:  # nothing at all is a fault elsewhere, not a speed
            seen = max(0.01, min(2.0, items / seconds / possible))
            self._efficiency += min(_WEIGHT, items / 50) * (seen - self._efficiency)
        return possible * self._efficiency

    def _learn_items(self, peeked: Sequence[PeekedMessage[Any]], measured: ReportedPool | None) -> None:
        sizes = [max(1, len(each.items)) for each in peeked]
        if sizes:
            mean = sum(sizes) / len(sizes)
            weight = 1.0 if self._last is None else _WEIGHT * min(1.0, len(sizes) / 8)
            self._items += weight * (mean - self._items)
        elif measured is not None and measured.items_per_message and self._last is None:
            self._items = measured.items_per_message

    def _oldest(self, peeked: Sequence[PeekedMessage[Any]], now: float, is_whole: bool) -> float:
        """The age of the oldest visible message. One that an earlier, whole look did not see was not due then."""
        before, since = self._seen, {}
        for each in peeked:
            appeared = each.inserted_at
            if before is not None and self._last is not None:
                appeared = before.get(each.id, max(appeared, self._last.at))
            since[each.id] = appeared
        self._seen = since if is_whole else None
        return max(0.0, now - min(since.values(), default=now))

    async def _gate_now(self, now: float) -> tuple[str, float, float]:
        """The gate that holds them, if one does, and for how long it was seen closed; when it opened."""
        if self._gate is None:
            return "", 0.0, 0.0
        state = await self._gate.read()
        is_now = phase(state, self._queue.clock.time())
        if is_now == "open":
            self._closed_since = math.inf
            return "", 0.0, state.opened_at
        self._closed_since = min(self._closed_since, now) if is_now == "closed" else math.inf
        return self._gate.name, max(0.0, now - self._closed_since), 0.0


class PoolObserver:
    """Several queues of one pool, each with its own rate, as one: their items are counted by the time they take."""

    def __init__(self, observers: Sequence[QueueObserver]) -> None:
        if not observers:
            raise ConfigurationError("a pool needs at least one queue")
        self._observers = observers

    async def __call__(self, actual: int) -> Observation:
        return combined([await observe(actual) for observe in self._observers])


def combined(parts: Sequence[Observation]) -> Observation:
    """What was seen of several queues, in items that each take the same time. Pure."""
    if len(parts) == 1:
        return parts[0]
    loads = [
        (part.visible or 0) * part.items_per_message + (part.arrival_per_second or 0.0) * 60 for part in parts
    ]
    known = [part.instance_per_second for part in parts if part.instance_per_second]
    usual = sum(known) / len(known) if known else 1.0
    rates = [part.instance_per_second or usual for part in parts]
    seconds = sum(load / rate for load, rate in zip(loads, rates, strict=True))
    mean = sum(loads) / seconds if seconds else sum(rates) / len(rates)
    weights = [mean / rate for rate in rates]

    def added(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return sum(value * weight for value, weight in zip(known, weights, strict=True))

    visible = [part.visible for part in parts]
    in_flight = [part.in_flight for part in parts]
    waiting = sum(
        (part.visible or 0) * part.items_per_message * w for part, w in zip(parts, weights, strict=True)
    )
    ages = sorted(
        (
            (age, items * weight)
            for part, weight in zip(parts, weights, strict=True)
            for age, items in part.ages
        ),
        reverse=True,
    )
    ready = [part.ready for part in parts if part.ready is not None]
    return msgspec.structs.replace(
        parts[0],
        at=max(part.at for part in parts),
        visible=None if None in visible else math.ceil(waiting),
        in_flight=None if None in in_flight else sum(each or 0 for each in in_flight),
        oldest_seconds=max((part.oldest_seconds or 0.0 for part in parts), default=0.0),
        arrival_per_second=added([part.arrival_per_second for part in parts]),
        most_per_second=added([part.most_per_second for part in parts]),
        instance_per_second=mean if known else None,
        cpu=max((part.cpu for part in parts if part.cpu is not None), default=None),
        items_per_message=1.0,
        ready=max(ready) if ready else None,
        delayed=sum(part.delayed for part in parts),
        slots=sum(part.slots or 0 for part in parts) or None,
        item_seconds=max((part.item_seconds or 0.0 for part in parts), default=0.0) or None,
        longest_seconds=max(part.longest_seconds for part in parts),
        idle_seconds=min(
            (part.idle_seconds for part in parts if part.idle_seconds is not None), default=None
        ),
        ages=tuple(ages[:MAX_ITEMS]),
        arrived=added([part.arrived for part in parts]) or 0.0,
        is_growing=any(part.is_growing for part in parts),
    )


class _Look:
    """What the next look compares with."""

    def __init__(
        self, at: float, count: int, waiting: float, actual: int, measured: ReportedPool | None
    ) -> None:
        self.at, self.count, self.waiting, self.actual = at, count, waiting, actual
        self.measured = measured
        self.done, self.head = 0.0, ""
