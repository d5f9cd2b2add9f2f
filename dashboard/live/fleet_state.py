"""The newest of everything, in memory: what selectors read and viewers are shown."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable

import msgspec

from coordinator.clock import SYSTEM_CLOCK, Clock
from dashboard.gates.releases import ReleaseTracker
from dashboard.hub.backplane import Backplane
from dashboard.hub.presence import Presence
from dashboard.live.compose import Rates, compose
from dashboard.live.fleet import Fleet, Point, Today
from dashboard.live.sample import NOTHING, Sample

log = logging.getLogger(__name__)

KEPT_SECONDS = 120
RATE_SECONDS = 6.0
FRESH_SECONDS = 0.2
DAY_SECONDS = 86_400.0


class FleetState:
    """Keeps the newest sample and composes the fleet from it on demand, at most five times a second per change."""

    def __init__(
        self, presence: Presence, releases: ReleaseTracker, link: Backplane, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.presence, self.releases, self.link, self.clock = presence, releases, link, clock
        self.gates = releases.gates
        self.sample: Sample = NOTHING
        self.heard_mono: float | None = None
        self._samples = 0
        self._lock = threading.Lock()
        self._composed: tuple[float, tuple[int, int], int, Fleet] | None = None
        self._ring: deque[tuple[float, dict[str, float]]] = deque(maxlen=KEPT_SECONDS)
        self._marks: deque[tuple[float, dict[str, int], Counter[str], dict[str, int], int]] = deque()
        self._day: tuple[float, Counter[str], Counter[str]] | None = None
        self.troubles: Callable[[], tuple[str, ...]] = tuple
        link.on("sample", self._sample_from)

    # --- in -----------------------------------------------------------------------------------------------------

    async def publish(self, sample: Sample) -> None:
        """Take a sample made here and give it to the other processes."""
        self.apply(sample)
        await self.link.publish("sample", msgspec.msgpack.encode(sample))

    def apply(self, sample: Sample) -> None:
        """Take a sample."""
        self.sample = sample
        self.releases.sampled(self.gates.sampled(sample.gates, sample.odd_gates, sample.gates_as_of))
        self.heard_mono = self.clock.monotonic()
        self._mark(sample)
        self._ring.append((sample.at, series_of(self.fleet(fresh=True))))
        self._samples += 1

    def _sample_from(self, process_id: str, body: bytes) -> None:
        sample = msgspec.msgpack.decode(body, type=Sample)
        if sample.at >= self.sample.at:
            self.apply(sample)

    # --- out ----------------------------------------------------------------------------------------------------

    @property
    def stamp(self) -> tuple[int, int]:
        """Changes whenever something was reported (the second part) or sampled (the first)."""
        return self._samples + self.gates.version, self.presence.version + self.releases.version

    def fleet(self, *, fresh: bool = False) -> Fleet:
        """The fleet now; a composition less than 0.2 s old will do unless `fresh`. Thread-safe."""
        with self._lock:
            now = self.clock.monotonic()
            if self._composed is not None and not fresh:
                at, stamp, gates, fleet = self._composed
                # Who has pressed sees the gate as it is now, however short ago the last composition.
                if (
                    gates == self.gates.version
                    and now - at < FRESH_SECONDS
                    and (stamp[0] == self.stamp[0] or now - at < FRESH_SECONDS / 4)
                ):
                    return fleet
            stamp, gates = self.stamp, self.gates.version
            fleet = compose(
                self._sample_now(),
                self.presence.workers(),
                self.releases.views(),
                self._rates(),
                now=self.clock.time(),
                requests=self._requests(),
                queue_requests=dict(self.presence.queue_requests + Counter(self.sample.queue_requests)),
                queue_traffic=dict(self.presence.queue_traffic + Counter(self.sample.queue_traffic)),
                today=self._today(),
                degraded=self._degraded(),
                went_back={name: peak for name, (peak, _) in self.gates.went_back.items()},
                troubles=self.troubles(),
            )
            self._composed = (now, stamp, gates, fleet)
            return fleet

    def newest_values(self) -> dict[str, float]:
        """The figures of the newest sample that history keeps."""
        return self._ring[-1][1] if self._ring else {}

    def recent(self, series: str, since: float) -> list[Point]:
        """The samples of a series that memory holds, oldest first."""
        return [Point(at, values.get(series)) for at, values in list(self._ring) if at >= since]

    def _sample_now(self) -> Sample:
        """The sample with the gates as they are now: what was written since it was taken can be read."""
        gates = self.gates.all()
        odd = {name: why for name, why in self.sample.odd_gates.items() if self.gates.get(name) is None}
        return msgspec.structs.replace(self.sample, gates=gates, odd_gates=odd)

    def _requests(self) -> dict[str, int]:
        return dict(self.presence.requests + Counter(self.sample.requests))

    def _today(self) -> Today:
        """What was sent since midnight (UTC), as far as this process was there to count it."""
        now, own = self.clock.time(), Counter(self.sample.requests)
        midnight = now // DAY_SECONDS * DAY_SECONDS
        if self._day is None or self._day[0] < midnight:
            seen = self.presence.lately.copy() if self._day is not None else Counter()
            self._day = (max(midnight, self.presence.since), seen, own)
        since, seen, sampled = self._day
        return Today(since, dict((self.presence.lately - seen) + (own - sampled)))

    def _degraded(self) -> str:
        if self.link.down_since is None:
            return ""
        return "The line between dashboard processes is down: workers of other processes may be missing here"

    def _mark(self, sample: Sample) -> None:
        if sample.storage.unreachable_since is not None:
            return  # the depths are the last ones read: they would make a rate of 0 out of what is not known
        now = self.clock.monotonic()
        depths = {queue.name: queue.depth for queue in sample.queues if queue.depth is not None}
        numbers = {row.name: row.next_number for row in sample.sequences if row.next_number is not None}
        own = sum(sample.requests.values())
        self._marks.append(
            (now, depths, self.presence.done.copy(), numbers, self.presence.requests_seen + own)
        )
        while self._marks and now - self._marks[0][0] > 60:
            self._marks.popleft()

    def _rates(self) -> Rates:
        if len(self._marks) < 2:
            return Rates()
        now, depths, done, numbers, requests = self._marks[-1]
        first = next(mark for mark in self._marks if now - mark[0] <= RATE_SECONDS)
        if first[0] == now:
            first = self._marks[-2]
        seconds = max(0.001, now - first[0])
        out = {name: (done[name] - first[2].get(name, 0)) / seconds for name in done}
        return Rates(
            in_per_second={
                name: max(0.0, (depth - first[1][name]) / seconds + out[name])
                for name, depth in depths.items()
                if name in first[1] and name in out
            },
            out_per_second=out,
            numbers_per_second={
                name: max(0.0, (number - first[3][name]) / seconds)
                for name, number in numbers.items()
                if name in first[3]
            },
            requests_per_minute=_per_minute(self._marks[0][0], self._marks[0][4], now, requests),
        )


def _per_minute(then: float, before: int, now: float, after: int) -> float | None:
    # The sampling process may have changed, and with it its own count.
    return None if now - then < 2 or after < before else (after - before) * 60 / (now - then)


def series_of(fleet: Fleet) -> dict[str, float]:
    """The figures that history keeps; unknown ones are left out."""
    values: dict[str, float | None] = {}
    for queue in fleet.queues:
        if queue.as_of is None:
            continue  # only a worker tells of it: history is kept of what there is
        values[f"depth:{queue.name}"] = queue.depth
        values[f"poison:{queue.name}"] = queue.poison or None
        values[f"active:{queue.name}"] = queue.active_tasks
        values[f"in:{queue.name}"] = queue.in_per_second
        values[f"out:{queue.name}"] = queue.out_per_second
        values[f"oldest:{queue.name}"] = queue.oldest_seconds
    for sequence in fleet.sequences:
        if sequence.as_of is None:
            continue
        values[f"number:{sequence.name}"] = sequence.next_number
    values["workers"] = sum(worker.presence == "ok" for worker in fleet.workers)
    values["requests"] = fleet.requests_per_minute
    if fleet.storage.unreachable_since is not None:
        return {}
    return {name: float(value) for name, value in values.items() if value is not None}
