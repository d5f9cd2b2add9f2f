"""The newest of everything, in memory: what selectors read and viewers are shown."""

from __future__ import annotations

import threading
from collections import Counter, deque

import msgspec

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.gates.state import GateState
from dashboard.fleet import Fleet, Point, Release, Today
from dashboard.hub.link import Link
from dashboard.hub.presence import Presence
from dashboard.sampling.compose import Rates, compose
from dashboard.sampling.sample import NOTHING, Sample

KEPT_SECONDS = 120
RATE_SECONDS = 6.0
FRESH_SECONDS = 0.2
DAY_SECONDS = 86_400.0


class Board:
    """Keeps the newest sample and composes the fleet from it on demand, at most five times a second per change."""

    def __init__(self, presence: Presence, link: Link, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.presence, self.link, self.clock = presence, link, clock
        self.sample: Sample = NOTHING
        self.heard_mono: float | None = None
        self.version = 0
        self._lock = threading.Lock()
        self._composed: tuple[float, tuple[int, int], Fleet] | None = None
        self._ring: deque[tuple[float, dict[str, float]]] = deque(maxlen=KEPT_SECONDS)
        self._marks: deque[tuple[float, dict[str, int], Counter[str], dict[str, int], int]] = deque()
        self._day: tuple[float, Counter[str], Counter[str]] | None = None
        link.on("sample", self._sample_from)
        link.on("gate", self._gate_from)

    # --- in -----------------------------------------------------------------------------------------------------

    async def publish(self, sample: Sample) -> None:
        """Take a sample made here and give it to the other processes."""
        self.apply(sample)
        await self.link.publish("sample", msgspec.msgpack.encode(sample))

    def apply(self, sample: Sample) -> None:
        """Take a sample."""
        newer = {state.name: state for state in self.sample.gates}
        gates = tuple(
            newer[state.name] if state.name in newer and newer[state.name].epoch > state.epoch else state
            for state in sample.gates
        )
        self.sample = msgspec.structs.replace(sample, gates=gates)
        self.heard_mono = self.clock.monotonic()
        for state in gates:
            # An opening that nobody told us of, found by sampling.
            track = self.presence.tracks.get(state.name)
            if state.state != "closed" and track is None and self.presence.waiting_at(state.name):
                self.presence.hinted(state.name, state.epoch)
        self._mark(sample)
        self._ring.append((sample.at, series_of(self.fleet(fresh=True))))
        self.version += 1

    async def gate_changed(self, state: GateState) -> None:
        """A gate as just written here: shown at once, not at the next sample."""
        self._gate(state)
        await self.link.publish("gate", msgspec.msgpack.encode(state))

    def _gate(self, state: GateState) -> None:
        others = [known for known in self.sample.gates if known.name != state.name]
        known = next((known for known in self.sample.gates if known.name == state.name), None)
        if known is None or known.epoch <= state.epoch:
            self.sample = msgspec.structs.replace(self.sample, gates=(*others, state))
            self.version += 1

    def _sample_from(self, home: str, body: bytes) -> None:
        sample = msgspec.msgpack.decode(body, type=Sample)
        if sample.at >= self.sample.at:
            self.apply(sample)

    def _gate_from(self, home: str, body: bytes) -> None:
        self._gate(msgspec.msgpack.decode(body, type=GateState))

    # --- out ----------------------------------------------------------------------------------------------------

    @property
    def stamp(self) -> tuple[int, int]:
        """Changes whenever something was told or sampled."""
        return self.version, self.presence.version

    def fleet(self, *, fresh: bool = False) -> Fleet:
        """The fleet now; a composition less than 0.2 s old will do unless `fresh`. Thread-safe."""
        with self._lock:
            now = self.clock.monotonic()
            if self._composed is not None and not fresh:
                at, stamp, fleet = self._composed
                if now - at < FRESH_SECONDS and (stamp[0] == self.version or now - at < FRESH_SECONDS / 4):
                    return fleet
            stamp = self.stamp
            fleet = compose(
                self.sample,
                self.presence.workers(),
                self._releases(),
                self._rates(),
                now=self.clock.time(),
                requests=self._requests(),
                queue_requests=dict(self.presence.queue_requests + Counter(self.sample.queue_requests)),
                queue_traffic=dict(self.presence.queue_traffic + Counter(self.sample.queue_traffic)),
                today=self._today(),
                degraded=self._degraded(),
            )
            self._composed = (now, stamp, fleet)
            return fleet

    def newest_values(self) -> dict[str, float]:
        """The figures of the newest sample that history keeps."""
        return self._ring[-1][1] if self._ring else {}

    def recent(self, series: str, since: float) -> list[Point]:
        """The samples of a series that memory holds, oldest first."""
        return [Point(at, values.get(series)) for at, values in list(self._ring) if at >= since]

    def _releases(self) -> dict[str, Release]:
        return {gate: track.view() for gate, track in list(self.presence.tracks.items())}

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
        values[f"depth:{queue.name}"] = queue.depth
        values[f"poison:{queue.name}"] = queue.poison or None
        values[f"active:{queue.name}"] = queue.active_tasks
        values[f"in:{queue.name}"] = queue.in_per_second
        values[f"out:{queue.name}"] = queue.out_per_second
        values[f"oldest:{queue.name}"] = queue.oldest_seconds
    for sequence in fleet.sequences:
        values[f"number:{sequence.name}"] = sequence.next_number
    values["workers"] = sum(worker.presence == "ok" for worker in fleet.workers)
    values["requests"] = fleet.requests_per_minute
    if fleet.storage.unreachable_since is not None:
        return {}
    return {name: float(value) for name, value in values.items() if value is not None}
