"""The newest of everything, in memory: what selectors read and viewers are shown."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping

import msgspec

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.gates.state import GateState
from dashboard.hub.backplane import Backplane
from dashboard.hub.presence import Presence
from dashboard.live.compose import Rates, compose
from dashboard.live.fleet import Fleet, Point, Release, Today
from dashboard.live.sample import NOTHING, Sample

log = logging.getLogger(__name__)

KEPT_SECONDS = 120
RATE_SECONDS = 6.0
FRESH_SECONDS = 0.2
DAY_SECONDS = 86_400.0


class FleetState:
    """Keeps the newest sample and composes the fleet from it on demand, at most five times a second per change."""

    def __init__(self, presence: Presence, link: Backplane, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.presence, self.link, self.clock = presence, link, clock
        self.sample: Sample = NOTHING
        self.heard_mono: float | None = None
        self.version = 0
        self._lock = threading.Lock()
        self._composed: tuple[float, tuple[int, int], Fleet] | None = None
        self._ring: deque[tuple[float, dict[str, float]]] = deque(maxlen=KEPT_SECONDS)
        self._marks: deque[tuple[float, dict[str, int], Counter[str], dict[str, int], int]] = deque()
        self._day: tuple[float, Counter[str], Counter[str]] | None = None
        self._states: dict[str, GateState] = {}
        self._confirmed: dict[str, float] = {}  # when a gate was read or written by itself, wall clock
        self._peaks: dict[str, int] = {}
        self._last_epochs: dict[str, int] = {}
        self.went_back: dict[str, tuple[int, float]] = {}
        self.on_back: Callable[[str, int], None] = lambda gate, epoch: None
        self.troubles: Callable[[], tuple[str, ...]] = tuple
        link.on("sample", self._sample_from)
        link.on("gate", self._gate_from)

    # --- in -----------------------------------------------------------------------------------------------------

    async def publish(self, sample: Sample) -> None:
        """Take a sample made here and give it to the other processes."""
        self.apply(sample)
        await self.link.publish("sample", msgspec.msgpack.encode(sample))

    def apply(self, sample: Sample) -> None:
        """Take a sample."""
        self.sample = msgspec.structs.replace(sample, gates=self._true_gates(sample))
        self.heard_mono = self.clock.monotonic()
        for state in self.sample.gates:
            # An opening that nobody told us of, found by sampling.
            track = self.presence.tracks.get(state.name)
            if state.state != "closed" and track is None and self.presence.waiting_at(state.name):
                self.presence.hinted(state.name, state.epoch)
        self._mark(sample)
        self._ring.append((sample.at, series_of(self.fleet(fresh=True))))
        self.version += 1

    def _true_gates(self, sample: Sample) -> tuple[GateState, ...]:
        """What storage holds: as just read, but for what was written here after that reading began.

        Storage is the truth also when an epoch went back: a backup was restored, or the gate was deleted.
        """
        states = {state.name: state for state in sample.gates}
        for name, known in self._states.items():
            since = self._confirmed.get(name, 0.0) - (sample.gates_as_of or 0.0)
            if since >= 0 and known.epoch > (states[name].epoch if name in states else 0):
                states[name] = known
        if sample.gates_as_of is not None:
            self._note_epochs(states, sample.odd_gates)
        self._states = states
        self._confirmed = {name: at for name, at in self._confirmed.items() if name in states}
        return tuple(states[name] for name in sorted(states))

    def _note_epochs(self, states: Mapping[str, GateState], odd: Mapping[str, str]) -> None:
        now = self.clock.time()
        for name, state in states.items():
            self._noted(name, state.epoch, now)
        for name in self._peaks.keys() - states.keys() - odd.keys():
            self._noted(name, 0, now)
        for name, (epoch, since) in list(self.went_back.items()):
            # A gate that was deleted and is not used any more is no news after a day.
            if name not in states and now - since > DAY_SECONDS:
                del self.went_back[name], self._peaks[name]
                log.info("The gate %s, last at epoch %d, is forgotten", name, epoch)

    def _noted(self, name: str, epoch: int, now: float) -> None:
        peak = self._peaks.get(name, 0)
        if epoch >= peak:
            self._peaks[name] = epoch
            self.went_back.pop(name, None)
            return
        track = self.presence.tracks.get(name)
        if track is not None and track.epoch > epoch:
            del self.presence.tracks[name]
        if self._last_epochs.get(name) != epoch:
            self._last_epochs[name] = epoch
            self.went_back[name] = (peak, now)
            log.warning(
                "The epoch of gate %s went back from %d to %d: storage was restored?",
                name,
                peak,
                epoch,
                extra={"action": "epoch_back", "resource": name, "epoch": epoch},
            )
            self.on_back(name, epoch)

    def peak(self, gate: str) -> int:
        """The highest epoch of a gate that this process ever saw: the next change goes above it."""
        return self._peaks.get(gate, 0)

    async def gate_changed(self, state: GateState) -> None:
        """A gate as just written here: shown at once, not at the next sample."""
        self._gate(state)
        await self.link.publish("gate", msgspec.msgpack.encode(state))

    def _gate(self, state: GateState) -> None:
        known = self._states.get(state.name)
        if known is None or known.epoch <= state.epoch:
            self._states[state.name] = state
            self._confirmed[state.name] = self.clock.time()
            self._noted(state.name, state.epoch, self.clock.time())
            odd = {name: why for name, why in self.sample.odd_gates.items() if name != state.name}
            gates = tuple(self._states[name] for name in sorted(self._states))
            self.sample = msgspec.structs.replace(self.sample, gates=gates, odd_gates=odd)
            self.version += 1

    def _sample_from(self, home: str, body: bytes) -> None:
        sample = msgspec.msgpack.decode(body, type=Sample)
        if sample.at >= self.sample.at:
            self.apply(sample)

    def _gate_from(self, home: str, body: bytes) -> None:
        self._gate(msgspec.msgpack.decode(body, type=GateState))

    def epoch_of(self, gate: str) -> int | None:
        """The newest epoch that storage is known to have had of a gate; None if it is not known to be there."""
        state = self.gate(gate)
        track = self.presence.tracks.get(gate)
        epochs = [each.epoch for each in (state, track) if each is not None]
        return max(epochs) if epochs else None

    def gate(self, name: str) -> GateState | None:
        """The gate as last read or written; None if it is not known to be there."""
        return self._states.get(name)

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
                went_back={name: peak for name, (peak, _) in self.went_back.items()},
                troubles=self.troubles(),
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
