"""The newest of everything, in memory: put together from what storage says and what workers say."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.gates.state import phase
from coordinator.realtime.protocol import GateStatus, LeadershipStatus, ListenerStatus, SequenceStatus
from dashboard.core.backplane import Backplane
from dashboard.live.conditions import conditions_of, messages
from dashboard.live.conditions import workers as count_of_workers
from dashboard.live.fleet import (
    NOTHING,
    AlertView,
    Depth,
    Fleet,
    GateView,
    Headline,
    LeaderClaim,
    LeaderView,
    Point,
    QueueView,
    ReleaseView,
    Sample,
    SequenceView,
    Today,
    WorkerConcurrency,
    WorkerView,
)
from dashboard.live.presence import Presence
from dashboard.live.releases import ReleaseTracker, admitted

log = logging.getLogger(__name__)
T = TypeVar("T")
V = TypeVar("V")
UNHEARD_SECONDS = 1.0
OPEN_GRANTS = ("granted", "in use", "lost")
NO_HEADLINE = Headline("unknown", "")
MOST_CLAIMED = 50
CLAIMED_BY_ONE = 8
"""Of each kind of thing, the names shown that no reading of storage knows: in all, and for one worker."""


class Rates(NamedTuple):
    """What was measured over the last seconds; None is unknown."""

    in_per_second: Mapping[str, float | None] = {}
    out_per_second: Mapping[str, float | None] = {}
    numbers_per_second: Mapping[str, float | None] = {}
    requests_per_minute: float | None = None


class _Reports(NamedTuple):
    """What the workers that are not lost said, by thing."""

    gates: dict[str, list[tuple[str, GateStatus]]]
    queues: dict[str, list[tuple[str, ListenerStatus]]]
    leaders: dict[str, list[tuple[str, LeadershipStatus]]]
    sequences: dict[str, list[tuple[str, SequenceStatus]]]
    troubles: tuple[str, ...] = ()


def compose(
    sample: Sample,
    workers: Sequence[WorkerView],
    releases: Mapping[str, ReleaseView],
    rates: Rates,
    *,
    now: float,
    requests: Mapping[str, int],
    queue_requests: Mapping[str, int] | None = None,
    queue_traffic: Mapping[str, int] | None = None,
    today: Today | None = None,
    degraded: str = "",
    went_back: Mapping[str, int] | None = None,
    troubles: tuple[str, ...] = (),
) -> Fleet:
    """The fleet at `now` (wall-clock seconds)."""
    reports = _gather(workers, sample)
    gates = _gates(sample, reports.gates, releases, now, went_back or {})
    queues = _queues(sample, reports.queues, rates, now)
    fleet = Fleet(
        taken_at=now,
        headline=NO_HEADLINE,
        storage=sample.storage,
        gates=gates,
        queues=queues,
        leaders=_leaders(sample, reports.leaders, _lease_ends(workers), now),
        sequences=_sequences(sample, reports.sequences, rates),
        workers=tuple(workers),
        work=sample.work,
        requests_per_minute=rates.requests_per_minute,
        requests=dict(requests),
        own_requests=dict(sample.requests),
        sampled_every=sample.every_seconds,
        queue_requests=dict(queue_requests or {}),
        queue_traffic=dict(queue_traffic or {}),
        today=today,
        degraded=degraded,
        read_at={
            "gates": sample.gates_as_of,
            "queues": min(
                (row.as_of for row in sample.queues if row.as_of is not None),
                default=None if sample.queues else sample.queues_as_of,
            ),
            "leaders": sample.leaders_as_of,
            "sequences": sample.sequences_as_of,
        },
        troubles=(*troubles, *reports.troubles),
    )
    fleet = replace(fleet, attention=conditions_of(fleet, sample.every_seconds))
    return replace(fleet, headline=headline(fleet))


def _gather(workers: Iterable[WorkerView], sample: Sample) -> _Reports:
    reports = _Reports(defaultdict(list), defaultdict(list), defaultdict(list), defaultdict(list))
    for worker in workers:
        if worker.presence == "lost":
            continue
        for gate in worker.state.gates:
            reports.gates[gate.name].append((worker.name, gate))
        for listener in worker.state.listeners:
            reports.queues[listener.queue].append((worker.name, listener))
        for election in worker.state.elections:
            reports.leaders[election.name].append((worker.name, election))
        for sequence in worker.state.sequences:
            reports.sequences[sequence.name].append((worker.name, sequence))
    left_out = (
        _bound(reports.gates, (row.name for row in sample.gates))
        + _bound(reports.queues, (row.name for row in sample.queues))
        + _bound(reports.leaders, (row.name for row in sample.leaders))
        + _bound(reports.sequences, (row.name for row in sample.sequences))
    )
    if not left_out:
        return reports
    said = f"{left_out} names reported by workers but not found in storage are not shown"
    return reports._replace(troubles=(said,))


def _bound(reported: dict[str, list[tuple[str, T]]], stored: Iterable[str]) -> int:
    """Leave out names that only workers report, beyond `CLAIMED_BY_ONE` a worker and `MOST_CLAIMED` in all; returns how many.

    Names that many workers report come first, so that one worker cannot push out what a fleet waits for.
    """
    if len(reported) <= CLAIMED_BY_ONE:
        return 0
    claimed = sorted(reported.keys() - set(stored), key=lambda name: (-len(reported[name]), name))
    used: Counter[str] = Counter()
    kept = 0
    for name in claimed:
        counted = [worker for worker, _ in reported[name] if used[worker] < CLAIMED_BY_ONE]
        if counted and kept < MOST_CLAIMED:
            used.update(counted)
            kept += 1
        else:
            del reported[name]
    return len(claimed) - kept


def _each(names: Iterable[str], make: Callable[[str], V], odd: Callable[[str, str], V]) -> tuple[V, ...]:
    """A row for each name. A failure costs its own row, which says so."""
    rows = []
    for name in sorted(names):
        try:
            rows.append(make(name))
        except Exception as error:
            log.exception("The row of %s could not be made", name)
            rows.append(odd(name, f"unreadable: {type(error).__name__}"))
    return tuple(rows)


def _gates(
    sample: Sample,
    reports: Mapping[str, list[tuple[str, GateStatus]]],
    releases: Mapping[str, ReleaseView],
    now: float,
    went_back: Mapping[str, int],
) -> tuple[GateView, ...]:
    stored = {state.name: state for state in sample.gates}

    def row(name: str) -> GateView:
        reported = reports.get(name, [])
        waiting = tuple(worker for worker, status in reported if status.waiting)
        state = stored.get(name)
        if name in sample.odd_gates:
            view = GateView(name, "unknown", 0, problem=sample.odd_gates[name])
        elif state is None:
            # No blob is a closed gate; unread storage is an unknown one.
            known = "closed" if sample.gates_as_of is not None else "unknown"
            view = GateView(name, known, 0)
        else:
            shown = phase(state, now)
            view = GateView(
                name,
                shown,
                state.epoch,
                by=state.by,
                reason=state.reason,
                since=state.changed_at or None,
                not_before=state.not_before,
                until=state.until,
                share=state.share,
                # What is armed has not opened: nobody was released, and nobody is late.
                release=releases.get(name) if shown != "armed" else None,
            )
        if name in went_back and not view.problem:
            view = replace(
                view, problem=f"epoch went back from {went_back[name]} to {view.epoch}: storage was restored?"
            )
        names = [worker for worker, _ in reported]
        return replace(
            view,
            waiting=waiting,
            workers=len(reported),
            admitted=admitted(name, names, view.share),
            as_of=sample.gates_as_of,
        )

    return _each(
        stored.keys() | reports.keys() | sample.odd_gates.keys() | went_back.keys(),
        row,
        lambda name, why: GateView(name, "unknown", 0, problem=why),
    )


def _queues(
    sample: Sample, reports: Mapping[str, list[tuple[str, ListenerStatus]]], rates: Rates, now: float
) -> tuple[QueueView, ...]:
    stored = {depth.name: depth for depth in sample.queues}

    def row(name: str) -> QueueView:
        reported = reports.get(name, [])
        depth = stored.get(name) or Depth(name, None, None, None)
        view = QueueView(
            name,
            depth=depth.depth,
            poison=depth.poison,
            in_per_second=rates.in_per_second.get(name),
            out_per_second=rates.out_per_second.get(name),
            oldest_seconds=None if depth.oldest_at is None else max(0.0, now - depth.oldest_at),
            workers=len(reported),
            as_of=depth.as_of,
        )
        if reported:
            view = replace(
                view,
                active_tasks=sum(listener.active_tasks for _, listener in reported),
                total_tasks=sum(listener.total_tasks for _, listener in reported),
                in_flight=sum(listener.in_hand for _, listener in reported),
                decisions=tuple(
                    WorkerConcurrency(worker, listener.active_tasks, listener.wanted_tasks, listener.reason)
                    for worker, listener in reported
                ),
            )
        return view

    return _each(stored.keys() | reports.keys(), row, lambda name, why: QueueView(name, problem=why))


def _lease_ends(workers: Iterable[WorkerView]) -> dict[tuple[str, int, str], tuple[float, int]]:
    """When the lease of each term ends, and its length, by election, epoch and who says so.

    From lost workers, too: the lease of a dead leader runs on. Counted from when its last word was heard, so that
    nobody's clock matters.
    """
    ends = {}
    for worker in workers:
        for status in worker.state.elections:
            if status.role == "leader":
                reported = worker.last_seen + status.remaining_seconds, status.lease_seconds
                # Beside "": how long the lease lasted that nobody has any more.
                ends[status.name, status.epoch, worker.name] = ends[status.name, status.epoch, ""] = reported
    return ends


def _leaders(
    sample: Sample,
    reports: Mapping[str, list[tuple[str, LeadershipStatus]]],
    ends: Mapping[tuple[str, int, str], tuple[float, int]],
    now: float,
) -> tuple[LeaderView, ...]:
    stored = {leader.name: leader for leader in sample.leaders}

    def row(name: str) -> LeaderView:
        reported = reports.get(name, [])
        leader = stored.get(name) or LeaderView(name, "", 0, "unknown")
        until, lasts = ends.get((name, leader.epoch, leader.holder), (None, leader.lease_seconds))
        # Storage says that it is held past its end: its holder renews, and we do not hear of it.
        unheard = until is not None and (leader.as_of or 0.0) > until + UNHEARD_SECONDS
        if not leader.holder or unheard:
            until = None
        return replace(
            leader,
            lease_ends=until,
            lease_seconds=lasts,
            remaining_seconds=None if until is None else round(max(0.0, until - now), 1),
            standbys=tuple(worker for worker, status in reported if status.role == "standby"),
            # Who holds it is what storage says; that a worker is ahead of the sample, or wrong, is said beside it.
            claims=tuple(
                LeaderClaim(worker, status.epoch)
                for worker, status in reported
                if status.role == "leader" and status.epoch > leader.epoch
            ),
        )

    return _each(
        stored.keys() | reports.keys(), row, lambda name, why: LeaderView(name, "", 0, "unknown", problem=why)
    )


def _sequences(
    sample: Sample, reports: Mapping[str, list[tuple[str, SequenceStatus]]], rates: Rates
) -> tuple[SequenceView, ...]:
    stored = {sequence.name: sequence for sequence in sample.sequences}

    def row(name: str) -> SequenceView:
        reported = reports.get(name, [])
        view = stored.get(name) or SequenceView(name)
        runways = [status.runway_seconds for _, status in reported if status.runway_seconds is not None]
        # Of a range counts what its owner says, until storage says what became of it.
        used = {
            (worker, status.first, status.last): status.last_issued
            for worker, status in reported
            if status.last and status.last_issued <= status.last
        }
        recent = tuple(
            replace(grant, last_issued=used[key], state="in use")
            if grant.state in OPEN_GRANTS and (key := (grant.owner, grant.first, grant.last)) in used
            else grant
            for grant in view.recent
        )
        per_second = (
            sum(status.per_second for _, status in reported)
            if reported
            else rates.numbers_per_second.get(name)
        )
        return replace(
            view,
            per_second=per_second,
            runway_seconds=min(runways, default=None),
            owners=sum(1 for _, status in reported if status.last),
            recent=recent,
        )

    return _each(stored.keys() | reports.keys(), row, lambda name, why: SequenceView(name, problem=why))


def headline(fleet: Fleet) -> Headline:
    """The worst of what is the case: what nobody knows, a fleet at a standstill, an open condition, then how it works.

    One closed gate of many does not hold the fleet, and a fleet that works is not well while a condition is critical.
    """
    works = _activity(fleet)
    if works.state in ("unknown", "critical", "stalled"):
        return works
    worst = fleet.attention[0] if fleet.attention else None
    if worst is None or (works.state == "held" and worst.level != "critical"):
        return works
    others = len(fleet.attention) - 1
    more = f" and {others} more" if others else ""
    return Headline(worst.level, f"{worst.what}{more} · {works.why}")


def _activity(fleet: Fleet) -> Headline:
    storage, queues = fleet.storage, fleet.queues
    present = [worker for worker in fleet.workers if worker.presence != "lost"]
    if storage.as_of is None:
        return Headline("unknown", storage.error or "Storage has not answered yet")
    if storage.unreachable_since is not None:
        return Headline("critical", "Storage unreachable; showing last known data")
    if not present:
        return Headline("stalled" if fleet.workers else "idle", "No workers connected")
    holding = [gate for gate in fleet.gates if gate.state != "open" and gate.waiting]
    held = {name for gate in holding for name in gate.waiting}
    working = sum(queue.in_flight or 0 for queue in queues)
    waiting = sum(queue.depth or 0 for queue in queues if queue.workers)
    why = ""
    if held:
        closed = ", ".join(sorted(gate.name for gate in holding))
        why = f"{len(held)} of {len(present)} workers waiting at {closed}"
        if not working and held >= {worker.name for worker in present}:
            return Headline("held", why)
    there = why or count_of_workers(len(present))
    if working:
        return Headline("running", f"{there}, {messages(working)} in flight")
    if waiting:
        moving = any((queue.out_per_second or 0) > 0 for queue in queues)
        if not held and not moving and not any(queue.active_tasks for queue in queues):
            return Headline("stalled", f"{messages(waiting)} in queues, none being processed")
        return Headline("running", f"{there}, {messages(waiting)} waiting")
    return Headline("idle", f"{there}, queues are empty")


KEPT_SECONDS = 120
ASKED_SECONDS = 5.0
SHARE_SECONDS = 1.0
RATE_SECONDS = 6.0
FRESH_SECONDS = 0.2
MOST_FRESH_SECONDS, FRESH_COSTS = 1.0, 50.0
"""Of a large fleet a composition serves for so many times what it took, up to a second: while somebody looks, that of the newest sample
serves most pages. Ten thousand workers report each 10 s."""
DAY_SECONDS = 86_400.0


class FleetState:
    """Keeps the newest sample and composes the fleet from it on demand, at most five times a second per change."""

    def __init__(
        self,
        presence: Presence,
        releases: ReleaseTracker,
        backplane: Backplane,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.presence, self.releases, self.backplane, self.clock = presence, releases, backplane, clock
        self.gates = releases.gates
        self.sample: Sample = NOTHING
        self.sampled_at: float | None = None
        self._samples = 0
        self._lock = threading.Lock()
        self._composed: tuple[float, tuple[int, int], int, Fleet] | None = None
        self._serves = 0.0
        self._ring: deque[tuple[float, dict[str, float]]] = deque(maxlen=KEPT_SECONDS)
        self._marks: deque[tuple[float, dict[str, int], Counter[str], dict[str, int], int]] = deque()
        self._day: tuple[float, Counter[str], Counter[str]] | None = None
        self.troubles: Callable[[], tuple[str, ...]] = tuple
        self._alerts: tuple[AlertView, ...] = ()
        self.turned: Callable[[], None] = lambda: None
        self.rested: Callable[[], None] = lambda: None
        self.has_viewers: Callable[[], bool] = lambda: False
        self._asked_at = self._asked_elsewhere_at = float("-inf")
        self._noting: set[asyncio.Task[None]] = set()
        backplane.on("sample", self._sample_from)
        backplane.on("looking", self._asked_elsewhere)

    # --- in -----------------------------------------------------------------------------------------------------

    async def publish(self, sample: Sample) -> None:
        """Take a sample made here and give it to the other processes."""
        self._take(sample)
        await asyncio.to_thread(self._note_series, sample.at)
        await self.backplane.publish("sample", msgspec.msgpack.encode(sample))

    def apply(self, sample: Sample) -> None:
        """Take a sample."""
        self._take(sample)
        self._note_series(sample.at)

    def _take(self, sample: Sample) -> None:
        self.sample = sample
        self.releases.sampled(self.gates.sampled(sample.gates, sample.odd_gates, sample.gates_as_of))
        self.sampled_at = self.clock.monotonic()
        self._mark(sample)
        self._samples += 1

    def _note_series(self, at: float) -> None:
        """Of a large fleet not on the event loop: workers' frames and pages would wait behind it."""
        self._ring.append((at, series_of(self.fleet(fresh=True))))

    def _sample_from(self, process_id: str, body: bytes) -> None:
        sample = msgspec.msgpack.decode(body, type=Sample)
        if sample.at < self.sample.at:
            return
        self._take(sample)
        noting = asyncio.create_task(asyncio.to_thread(self._note_series, sample.at), name="series")
        self._noting.add(noting)
        noting.add_done_callback(self._noting.discard)

    # --- who reads ----------------------------------------------------------------------------------------------

    def asked(self) -> None:
        """A person or a program wants the newest: keeps the sampler at its quick pace for a few seconds."""
        self._asked_at = self.clock.monotonic()

    @property
    def is_watched(self) -> bool:
        """Whether somebody reads, here or at another process."""
        return self._is_watched_here or self.clock.monotonic() - self._asked_elsewhere_at < ASKED_SECONDS

    @property
    def _is_watched_here(self) -> bool:
        return self.has_viewers() or self.clock.monotonic() - self._asked_at < ASKED_SECONDS

    def _asked_elsewhere(self, process_id: str, body: bytes) -> None:
        self._asked_elsewhere_at = self.clock.monotonic()

    async def share_readers(self) -> None:
        """Report the other processes each second that somebody reads here, until cancelled."""
        while True:
            self.turned()
            if self._is_watched_here:
                await self.backplane.publish("looking", b"")
            await self.clock.sleep(SHARE_SECONDS)

    # --- out ----------------------------------------------------------------------------------------------------

    @property
    def stamp(self) -> tuple[int, int]:
        """Changes whenever something was reported (the second part) or sampled (the first)."""
        return self._samples + self.gates.version, self.presence.version + self.releases.version

    def fleet(self, *, fresh: bool = False) -> Fleet:
        """The fleet now; a composition less than 0.2 s old, of thousands of workers up to 1 s, will do unless `fresh`. Thread-safe."""
        with self._lock:
            now = self.clock.monotonic()
            if self._composed is not None and not fresh:
                at, stamp, gates, fleet = self._composed
                # Who has pressed sees the gate as it is now, however short ago the last composition.
                if (
                    gates == self.gates.version
                    and now - at < max(FRESH_SECONDS, self._serves)
                    and (stamp[0] == self.stamp[0] or now - at < max(FRESH_SECONDS / 4, self._serves))
                ):
                    return fleet
            stamp, gates = self.stamp, self.gates.version
            began = time.thread_time()
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
            fleet = msgspec.structs.replace(fleet, alerts=self._alerts)
            self._serves = min(MOST_FRESH_SECONDS, FRESH_COSTS * (time.thread_time() - began))
            self._composed = (now, stamp, gates, fleet)
            return fleet

    def show_alerts(self, alerts: tuple[AlertView, ...]) -> None:
        """These alerts fire now."""
        with self._lock:
            if alerts != self._alerts:
                self._alerts, self._composed = alerts, None

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
        if self.backplane.down_since is None:
            return ""
        return "The connection between dashboard processes is down: workers of other processes may be missing here"

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
            continue  # only a worker reports it: history is kept of what there is
        values[f"depth:{queue.name}"] = queue.depth
        values[f"poison:{queue.name}"] = queue.poison or None
        values[f"active:{queue.name}"] = queue.active_tasks
        values[f"in:{queue.name}"] = queue.in_per_second
        values[f"out:{queue.name}"] = queue.out_per_second
        values[f"oldest:{queue.name}"] = queue.waits_seconds
    for sequence in fleet.sequences:
        if sequence.as_of is None:
            continue
        values[f"number:{sequence.name}"] = sequence.next_number
    values["workers"] = sum(worker.presence == "ok" for worker in fleet.workers)
    values["requests"] = fleet.requests_per_minute
    if fleet.storage.unreachable_since is not None:
        return {}
    return {name: float(value) for name, value in values.items() if value is not None}
