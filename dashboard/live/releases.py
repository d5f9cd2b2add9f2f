"""What is known of the gates in storage, and how far each opening has come, from who waits to the last worker that confirmed it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from django.db import transaction

from coordinator.bounds import Count, Name
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.epochs import COUNTED
from coordinator.gates.azure import BlobGateStore
from coordinator.gates.gate import Gate
from coordinator.gates.state import GateState, rollout_bucket
from coordinator.realtime.protocol import Receipt
from coordinator.storage import Storage
from dashboard.core.backplane import Backplane
from dashboard.live.fleet import Fleet, ReleaseView
from dashboard.models import GatePeak

log = logging.getLogger(__name__)
DAY_SECONDS = 86_400.0


class Peak(NamedTuple):
    """The highest epoch of a gate; `since` when storage was found to have a lower one (wall clock), None if it has not."""

    epoch: int
    since: float | None


class KnownGates:
    """The newest confirmed state of each gate, shared with the other processes.

    Storage is the truth also when an epoch went back (a backup was restored, or the gate was deleted): `went_back` has
    the highest epoch seen and the moment, and each function in `on_back` is called with the gate and its epoch. Each in
    `on_found` is called with a gate that a reading of all gates found changed: nobody had announced it here.
    The highest epochs outlive the process by `remember` and `take_unsaved`; those above `COUNTED` were forged and are
    no measure of anything.
    """

    def __init__(self, backplane: Backplane, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.version = 0
        self.went_back: dict[str, tuple[int, float]] = {}
        self.on_back: list[Callable[[str, int], None]] = []
        self.on_found: list[Callable[[GateState], None]] = []
        self._as_of: float | None = None
        self._backplane, self._clock = backplane, clock
        self._states: dict[str, GateState] = {}
        self._confirmed: dict[str, float] = {}  # when a gate was read or written by itself, wall clock
        self._peaks: dict[str, int] = {}
        self._last_epochs: dict[str, int] = {}
        self._back_since: dict[str, float] = {}
        self._unsaved: set[str] = set()
        self.peaks_due = asyncio.Event()
        backplane.on("gate", self._changed_elsewhere)

    def get(self, name: str) -> GateState | None:
        """The gate as last read or written; None if it is not known to exist."""
        return self._states.get(name)

    def lately(self, name: str, seconds: float) -> GateState | None:
        """As `get`, if storage confirmed it within that time."""
        confirmed = max(self._confirmed.get(name, 0.0), self._as_of or 0.0)
        return self._states.get(name) if self._clock.time() - confirmed <= seconds else None

    def all(self) -> tuple[GateState, ...]:
        """All gates by name."""
        return tuple(self._states[name] for name in sorted(self._states))

    async def changed(self, state: GateState) -> None:
        """A gate as just read or written: shown at once, not at the next sample."""
        self._change(state)
        await self._backplane.publish("gate", msgspec.msgpack.encode(state))

    def sampled(
        self, found: tuple[GateState, ...], problems: Mapping[str, str], as_of: float | None
    ) -> tuple[GateState, ...]:
        """Take a reading of all gates; returns what storage holds: that, but for what was written after it began."""
        states = {state.name: state for state in found}
        for name, known in self._states.items():
            since = self._confirmed.get(name, 0.0) - (as_of or 0.0)
            if since >= 0 and known.epoch > (states[name].epoch if name in states else 0):
                states[name] = known
        if as_of is not None:
            self._note_epochs(states, problems)
        before, self._states = self._states, states
        if self._as_of is not None:  # before the first reading all gates are news, and no worker waits for it
            for name, state in states.items():
                if state.epoch > (before[name].epoch if name in before else 0):
                    for call in self.on_found:
                        call(state)
        self._as_of = as_of
        self._confirmed = {name: at for name, at in self._confirmed.items() if name in states}
        return self.all()

    def _changed_elsewhere(self, process_id: str, body: bytes) -> None:
        self._change(msgspec.msgpack.decode(body, type=GateState))

    def _change(self, state: GateState) -> None:
        known = self._states.get(state.name)
        # What follows a forged epoch may have begun again below it.
        if known is None or known.epoch <= state.epoch or known.epoch > COUNTED:
            now = self._clock.time()
            self._note_epoch(state.name, state.epoch, now)
            self._states[state.name] = state
            self._confirmed[state.name] = now
            self.version += 1

    def _note_epochs(self, states: Mapping[str, GateState], problems: Mapping[str, str]) -> None:
        now = self._clock.time()
        for name, state in states.items():
            self._note_epoch(name, state.epoch, now)
        for name in self._peaks.keys() - states.keys() - problems.keys():
            self._note_epoch(name, 0, now)
        for name, (epoch, since) in list(self.went_back.items()):
            # A gate that was deleted and is not used any more is no news after a day. Its highest epoch is kept.
            if name not in states and now - since > DAY_SECONDS:
                del self.went_back[name]
                log.info("The gate %s, last at epoch %d, is shown no more", name, epoch)

    def _note_epoch(self, name: str, epoch: int, now: float) -> None:
        peak = self._peaks.get(name, 0)
        known = self._states.get(name)
        if epoch >= peak:
            if peak < epoch <= COUNTED or name in self._back_since:
                self._save(name)
            if epoch <= COUNTED:
                self._peaks[name] = epoch
            for kept in (self.went_back, self._back_since, self._last_epochs):
                kept.pop(name, None)
            if known is not None and known.epoch > max(epoch, COUNTED):
                self._report_back(name, epoch)
        elif self._last_epochs.get(name) != epoch:
            self._last_epochs[name] = epoch
            self.went_back[name] = (peak, self._back_since.setdefault(name, now))
            self._save(name)
            log.warning(
                "The epoch of gate %s went back from %d to %d: storage was restored?",
                name,
                peak,
                epoch,
                extra={"action": "epoch_back", "resource": name, "epoch": epoch},
            )
            self._report_back(name, epoch)

    def _report_back(self, name: str, epoch: int) -> None:
        for call in self.on_back:
            call(name, epoch)

    # --- the highest epochs ---------------------------------------------------------------------------------------

    def peak(self, gate: str) -> int:
        """The highest epoch of a gate that was ever seen: the next change goes above it."""
        return self._peaks.get(gate, 0)

    def remember(self, peaks: Mapping[str, Peak]) -> None:
        """Load what was seen before this process began: `take_unsaved` of an earlier one."""
        for name, (epoch, since) in peaks.items():
            if epoch <= self._peaks.get(name, 0):
                continue
            self._peaks[name] = epoch
            if since is not None:
                self._back_since[name] = since
                if self._clock.time() - since > DAY_SECONDS:
                    self._last_epochs[name] = 0  # still deleted it is no news

    def take_unsaved(self) -> dict[str, Peak]:
        """The highest epochs that changed since this was last called; `peaks_due` is set when there are any."""
        names, self._unsaved = self._unsaved, set()
        self.peaks_due.clear()
        return {
            name: Peak(self._peaks[name], self._back_since.get(name)) for name in names if name in self._peaks
        }

    def put_back(self, unsaved: Iterable[str]) -> None:
        """They could not be saved: `take_unsaved` gives them again."""
        self._unsaved.update(unsaved)
        self.peaks_due.set()

    def _save(self, name: str) -> None:
        self.put_back((name,))


SKEW_SECONDS = 60.0
"""A worker's clock may differ by so much; no delay is longer than the opening is old by more than that."""
HOLD_SECONDS = 0.3
HOLD_AGAIN_SECONDS = 1.0
RECEIPTS_SECONDS = 0.05
MOST_RECEIPTS = 20_000


class OpeningNotice(msgspec.Struct, frozen=True):
    """An opening, as sent to the other processes."""

    gate: str
    epoch: int
    written_at: float
    share: float


class ReleaseNews(msgspec.Struct, frozen=True, gc=False):
    """What one process knows of a gate's newest opening, for one that was away or is new."""

    gate: Name
    epoch: Count
    written_at: float
    pushed_at: float | None
    expected: dict[str, str]
    delays: dict[str, float]


class StoredGates:
    """The gates of the account, to read and to change. Each is kept, since it knows what it last read; one whose epoch went
    back is of another time, and is not. On the event loop only."""

    def __init__(self, storage: Callable[[], Storage], known: KnownGates, identity: str) -> None:
        self._storage, self._identity = storage, identity
        self._gates: dict[str, Gate] = {}
        known.on_back.append(self._went_back)

    def gate(self, name: str) -> Gate:
        """The gate of that name. Raises `ConfigurationError` for what is no name."""
        if name not in self._gates:
            self._gates[name] = self._storage().gate(name, identity=self._identity)
        return self._gates[name]

    async def read(self, name: str) -> GateState | None:
        """The gate as stored now, past all that is known of it."""
        return (await BlobGateStore(self._storage(), name).read("")).state

    def _went_back(self, name: str, epoch: int) -> None:
        self._gates.pop(name, None)

    def clear(self) -> None:
        """Keep none."""
        self._gates.clear()


class ReleaseProgress:
    """One opening of a gate: who was waiting, who has passed and how long after."""

    __slots__ = ("_of", "_shown", "delays", "epoch", "expected", "gate", "pushed_at", "written_at")

    def __init__(self, gate: str, epoch: int, expected: dict[str, str], written_at: float) -> None:
        self.gate, self.epoch = gate, epoch
        self.expected = expected
        self.delays: dict[str, float] = {}
        self.written_at = written_at
        self.pushed_at: float | None = None
        self._shown: tuple[tuple[object, ...], ReleaseView] | None = None
        self._of = expected

    def view(self) -> ReleaseView:
        """To show; the same as long as nothing came."""
        expected = self.expected
        # Both only grow: each worker is expected once and passes once.
        key = (len(expected), len(self.delays), self.written_at, self.pushed_at)
        if self._shown is None or self._shown[0] != key or self._of is not expected:
            self._shown, self._of = (key, self._view()), expected
        return self._shown[1]

    def _view(self) -> ReleaseView:
        delays = sorted(delay * 1000 for delay in self.delays.values())
        waiting = [name for instance, name in self.expected.items() if instance not in self.delays]
        return ReleaseView(
            gate=self.gate,
            epoch=self.epoch,
            written_at=self.written_at,
            pushed_at=self.pushed_at,
            expected=len(self.expected.keys() | self.delays.keys()),
            passed=len(self.delays),
            p50_ms=quantile(delays, 0.50),
            p99_ms=quantile(delays, 0.99),
            stragglers=tuple(sorted(waiting)),
            delays_ms=tuple(delays),
        )


def quantile(ordered: list[float], share: float) -> float | None:
    """The smallest value that at least `share` of the sorted values do not exceed; None of nothing."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * int(share * 100) // 100) - 1))]


def _admitted(gate: str, waiting: dict[str, str], share: float) -> dict[str, str]:
    """Those of them that the share lets through."""
    return {key: name for key, name in waiting.items() if share >= 1 or rollout_bucket(gate, name) < share}


class ReleaseTracker:
    """Owns the life of every release, by any user or program, and in any order in which the news of it come.

    1. *Expected*: who waits at the gate is noted before anything is written, and before a worker can have moved.
    2. *Held back*: pages are not drawn for a moment, so that workers pass first.
    3. *Written*: one conditional write opens the gate in storage; it also pushes the notification to all sockets.
    4. *Begun*: the release has its epoch and its moment, and expects those of step 1 that the opening is for. The
       other processes learn the same.
    5. *Pushed*: the moment is noted.
    6. *Known*: the open gate is shown, here and by the other processes.
    7. *Checked*: a worker's receipt with an epoch that nobody knows yet is kept until one read of storage has
       confirmed the epoch (`dashboard.hub.notifications`). An opening by another program is found this way, or by a
       notification, or by the sampler, and goes through steps 1, 4 and 6 here.
    8. *Passed*: each worker counts once. Receipts that storage denies do not count: a closed gate, an epoch that is over.
    9. *Shared*: the receipts go to the other processes, many in one message; a process that was away gets all.

    `waiting_at` gives the instances that wait at a gate, with their names. Used on the event loop; `views` is safe from
    any thread.
    """

    def __init__(
        self,
        waiting_at: Callable[[str], dict[str, str]],
        gates: KnownGates,
        backplane: Backplane,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.version = 0
        self.gates = gates
        self.turned: Callable[[], None] = lambda: None
        self.rested: Callable[[], None] = lambda: None
        self._waiting_at, self._backplane, self._clock = waiting_at, backplane, clock
        self._releases: dict[str, ReleaseProgress] = {}
        self._noticed: dict[str, tuple[int, dict[str, str]]] = {}
        self._hold_until = self._hold_again = 0.0
        self._receipts: list[tuple[str, Receipt]] = []
        self._receipts_due = asyncio.Event()
        gates.on_back.append(self._went_back)
        backplane.on("opened", self._opened_elsewhere)
        backplane.on("receipts", self._receipts_from)
        backplane.on("releases", self._releases_from)

    # --- the life of a release ------------------------------------------------------------------------------------

    async def release(self, gate: str, write: Callable[[], Awaitable[GateState]]) -> GateState:
        """Open a gate by `write`, which returns it as stored once every socket of this process has been written to."""
        expected = self._waiting_at(gate)  # 1
        self.hold_pages()  # 2
        state = await write()  # 3
        pushed_at = time.time()
        begun = self.begin(
            gate, state.epoch, expected=expected, written_at=state.opened_at, share=state.share
        )  # 4
        news = OpeningNotice(gate, state.epoch, state.opened_at, state.share)
        await self._backplane.publish("opened", msgspec.msgpack.encode(news))
        self._pushed(begun, state.epoch, pushed_at)  # 5
        await self.gates.changed(state)  # 6
        return state

    def notice(self, gate: str, epoch: int) -> None:
        """Another program changes a gate: note who waits now, should it turn out to be an opening."""
        self._noticed[gate] = (epoch, self._waiting_at(gate))  # 1

    def sampled(self, states: Iterable[GateState]) -> None:
        """Notice the openings that nobody announced, and who waits for one that is armed: that changes until its time."""
        for state in states:
            release = self._releases.get(state.name)
            if (
                release is not None
                and release.epoch == state.epoch
                and release.written_at > self._clock.time()
            ):
                release.expected = _admitted(state.name, self._waiting_at(state.name), state.share)
            if state.state != "closed" and state.name not in self._releases and self._waiting_at(state.name):
                self.notice(state.name, state.epoch)

    def hold_pages(self) -> None:
        """Let workers pass before pages are drawn. Many releases do not stop the pages."""
        now = self._clock.monotonic()
        if now >= self._hold_again:
            self._hold_until, self._hold_again = now + HOLD_SECONDS, now + HOLD_AGAIN_SECONDS

    @property
    def holds_pages(self) -> bool:
        """Whether no page is drawn now: at most three tenths of each second, however many releases there are."""
        return self._clock.monotonic() < self._hold_until

    def begin(
        self,
        gate: str,
        epoch: int,
        *,
        expected: dict[str, str] | None = None,
        written_at: float | None = None,
        share: float = 1.0,
    ) -> ReleaseProgress:
        """Begin (or find) the release of an opening. The workers that wait then and belong to the share are expected to pass."""
        known = self._releases.get(gate)
        if known is None or known.epoch < epoch:
            noticed_epoch, noticed = self._noticed.get(gate, (0, {}))
            if expected is None:
                expected = noticed if noticed_epoch == epoch else self._waiting_at(gate)
            expected = _admitted(gate, expected, share)
            known = self._releases[gate] = ReleaseProgress(
                gate, epoch, expected, written_at or self._clock.time()
            )
            self.version += 1
        elif written_at is not None and known.epoch == epoch:
            known.written_at = written_at
        return known

    def _pushed(self, release: ReleaseProgress, epoch: int, at: float) -> None:
        if release.epoch == epoch and release.pushed_at is None:
            release.pushed_at = at
            self.version += 1

    def epoch_of(self, gate: str) -> int | None:
        """The newest epoch that storage is known to have had of a gate; None if it is not known to exist."""
        known = self.gates.get(gate), self._releases.get(gate)
        return max((each.epoch for each in known if each is not None), default=None)

    def passed(self, instance: str, receipt: Receipt) -> None:
        """A worker connected here passed, by an epoch that storage confirmed."""
        self.count(instance, receipt)  # 8
        if self._backplane.is_shared:  # 9
            if len(self._receipts) < MOST_RECEIPTS:
                self._receipts.append((instance, receipt))
            self._receipts_due.set()

    def count(self, instance: str, receipt: Receipt) -> None:
        """Count a worker that passed; a second receipt of the same worker changes nothing."""
        release, gate = self._releases.get(receipt.gate), self.gates.get(receipt.gate)
        if receipt.source == "open" and (release is None or instance not in release.expected):
            return  # it came later, to a gate that was open: no part of the release
        if release is None or release.epoch < receipt.epoch:
            written_at, share = receipt.passed_at - receipt.delay_seconds, 1.0
            if gate is not None and receipt.epoch <= gate.epoch:
                if receipt.epoch < gate.epoch or gate.state == "closed":
                    return  # nobody can have passed a closed gate, and what was before it is over
                written_at, share = gate.opened_at, gate.share
            release = self.begin(receipt.gate, receipt.epoch, written_at=written_at, share=share)  # 4
        if release.epoch == receipt.epoch:
            most = max(0.0, self._clock.time() - release.written_at) + SKEW_SECONDS
            release.delays.setdefault(instance, min(max(0.0, receipt.delay_seconds), most))
            self.version += 1

    def views(self) -> dict[str, ReleaseView]:
        """The newest release of each gate, to show."""
        return {gate: release.view() for gate, release in list(self._releases.items())}

    def _went_back(self, gate: str, epoch: int) -> None:
        release = self._releases.get(gate)
        if release is not None and release.epoch > epoch:
            del self._releases[gate]

    # --- the other processes ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send the receipts that came here to the other processes, until cancelled."""
        while True:
            self.rested()
            await self._receipts_due.wait()
            self.turned()
            await self._clock.sleep(RECEIPTS_SECONDS)
            self._receipts_due.clear()
            batch, self._receipts = self._receipts, []
            await self._backplane.publish("receipts", msgspec.msgpack.encode(batch))  # 9

    async def share_all(self) -> None:
        """Send all that is known to a process that was away: workers do not send their receipts again."""
        await self._backplane.publish("releases", msgspec.msgpack.encode(self.news()))

    def news(self) -> list[ReleaseNews]:
        """The newest release of each gate, as known here."""
        return [
            ReleaseNews(
                each.gate,
                each.epoch,
                each.written_at,
                each.pushed_at,
                dict(each.expected),
                dict(each.delays),
            )
            for each in self._releases.values()
        ]

    def merge(self, news: Iterable[ReleaseNews]) -> None:
        """Add what another process knows; the same news again change nothing."""
        for each in news:
            release = self._releases.get(each.gate)
            if release is not None and release.epoch > each.epoch:
                continue
            if release is None or release.epoch < each.epoch:
                release = ReleaseProgress(each.gate, each.epoch, {}, each.written_at)
                self._releases[each.gate] = release
            release.expected = each.expected | release.expected
            release.delays = each.delays | release.delays
            release.pushed_at = release.pushed_at or each.pushed_at
            self.version += 1

    def _opened_elsewhere(self, process_id: str, body: bytes) -> None:
        news = msgspec.msgpack.decode(body, type=OpeningNotice)
        self.begin(news.gate, news.epoch, written_at=news.written_at, share=news.share)  # 4

    def _receipts_from(self, process_id: str, body: bytes) -> None:
        for instance, receipt in msgspec.msgpack.decode(body, type=list[tuple[str, Receipt]]):
            self.count(instance, receipt)  # 8

    def _releases_from(self, process_id: str, body: bytes) -> None:
        self.merge(msgspec.msgpack.decode(body, type=list[ReleaseNews]))


# --- what an opening will do, said before it is made -------------------------------------------------------------------

FAR_SECONDS = 4_102_444_800.0
"""The end of 2099: later is a moment in milliseconds."""


class OpeningPlan(NamedTuple):
    """An opening that was not made yet. `admitted` of `workers` may pass; `problem` says why it cannot be made."""

    gate: str
    at: float | None
    until: float | None
    share: float
    admitted: int
    workers: int
    problem: str


def plan(
    fleet: Fleet, gate: str, *, at: float | None, until: float | None, share: float, now: float
) -> OpeningPlan:
    """The opening as the workers that are connected now would see it."""
    names = [
        worker.name
        for worker in fleet.workers
        if worker.presence != "lost" and any(each.name == gate for each in worker.state.gates)
    ]
    return OpeningPlan(
        gate,
        at,
        until,
        share,
        admitted(gate, names, share),
        len(names),
        problem_of(at=at, until=until, now=now),
    )


def admitted(gate: str, workers: list[str], share: float) -> int:
    """How many of these workers the share lets through."""
    return sum(share >= 1 or rollout_bucket(gate, name) < share for name in workers)


def problem_of(*, at: float | None, until: float | None, now: float) -> str:
    """Why nothing may open or close at these times (seconds since 1970); "" if it may."""
    for moment in (at, until):
        if moment is not None and not 0 <= moment <= FAR_SECONDS:
            return (
                f"The time {moment:g} is not between 1970 and 2100: use seconds since 1970, not milliseconds."
            )
    if at is not None and at <= now:
        return (
            f"The opening time {written(at)} has passed. "
            "Set a later time, or leave it empty to open immediately."
        )
    if until is not None and until <= max(now, at or now):
        first = "the opening" if at is not None else "now"
        return f"The closing time {written(until)} is not after {first}. Set a later time, or leave it empty."
    return ""


def written(at: float) -> str:
    """A moment as people plan with it: "Fri 27 Nov 2026 09:00 UTC"."""
    when = datetime.fromtimestamp(at, UTC)
    clock = f"{when:%H:%M:%S}" if when.second else f"{when:%H:%M}"
    return f"{when:%a} {when.day} {when:%b %Y} {clock} UTC"


# --- the highest epochs, kept in the database: storage cannot say that it was restored ----------------------------------


def source_of(storage: Storage) -> str:
    """What these gates are gates of."""
    return f"{storage.endpoints.account}/{storage.config.prefix}"


def load_peaks(source: str) -> dict[str, Peak]:
    """All that were ever seen."""
    return {row.name: Peak(row.epoch, row.back_since) for row in GatePeak.objects.filter(source=source)}


@transaction.atomic
def save_peaks(source: str, peaks: Mapping[str, Peak]) -> None:
    """Keep these, but never lower what another process kept."""
    known = load_peaks(source)
    GatePeak.objects.bulk_create(
        (GatePeak(source=source, name=name) for name in peaks if name not in known), ignore_conflicts=True
    )
    for name, peak in peaks.items():
        if known.get(name) != peak:
            rows = GatePeak.objects.filter(source=source, name=name, epoch__lte=peak.epoch)
            rows.update(epoch=peak.epoch, back_since=peak.since)
