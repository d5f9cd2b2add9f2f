"""Which workers there are and what they last said. No I/O; the clock is passed in.

Every process knows all workers: those connected to it from their frames, those of other processes from summaries.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec

from coordinator.azure.metering import TRAFFIC
from coordinator.bounds import Duration, Text
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.realtime.protocol import Hello, WorkerState
from dashboard.core.backplane import Backplane
from dashboard.live.fleet import WorkerView

log = logging.getLogger(__name__)

SUMMARY_SECONDS = 1.0
MOST_NEWS = 1_000
"""Reports in one summary; the others follow in the next ones."""
WORKERS_PER_SECOND = 500
MOST_PACE_SECONDS = 10
AWAY_SECONDS = 5.0
OK_SECONDS = 3.0
LATE_SECONDS = 10.0
FORGET_SECONDS = 600.0
MOST_GONE = 1_000
MOST_FATES = 20_000
OTHER = "other"
# Names that the workers of one token may bring into the sums; what is beyond is summed up under `OTHER`.
MOST_OPERATIONS, MOST_QUEUES = 200, 1_000

# What one process can have done in a second: what it claims beyond that is not counted. It would stay in the sums, and in
# the costs, long after the worker has gone.
MOST_REQUESTS, MOST_MESSAGES, MOST_TRAFFIC = 10_000, 100_000, 2_000_000_000
AHEAD_SECONDS = 10.0
OLDEST_SECONDS = 30 * 86_400.0


class WorkerNews(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What one process sends the others about a worker connected to it. `age_seconds` is since its last frame."""

    hello: Hello
    age_seconds: Duration
    token: Text = ""


class Summary(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The workers connected to one process: all that are `present`, and `news` of some of them."""

    present: list[str]
    news: list[WorkerNews] = []


class Fate(NamedTuple):
    """What is to be kept of a worker process: its last report, when it was last heard of (wall clock), the name of its
    token, and how it ended ("stopped", "lost", or "" if it has not)."""

    hello: Hello
    seen_at: float
    token: str = ""
    ended: str = ""


class Entry:
    """One worker process, as last heard."""

    __slots__ = ("began", "connected", "counted", "hello", "process_id", "seen", "state", "token", "view")

    def __init__(
        self, hello: Hello, seen: float, process_id: str, token: str, began: float, counted: Counter[str]
    ) -> None:
        self.hello = hello
        self.began, self.counted = began, counted
        self.token = token
        self.state: WorkerState = hello.state
        self.seen = seen
        self.process_id = process_id
        self.connected = True
        self.view: tuple[float, WorkerView] | None = None


class Presence:
    """The registry. Used on the event loop; reading a snapshot is safe from any thread."""

    def __init__(self, process_id: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.process_id = process_id
        self.clock = clock
        self.version = 0
        self.entries: dict[str, Entry] = {}
        self._gone: dict[tuple[str, int], float] = {}
        self._fates: dict[str, Fate] = {}
        self._expected: dict[str, Fate] = {}
        self._expected_until = 0.0
        self.requests: Counter[str] = Counter()
        self.queue_requests: Counter[str] = Counter()
        self.queue_traffic: Counter[str] = Counter()
        self.since = clock.time()
        self.lately: Counter[str] = (
            Counter()
        )  # as `requests`, without what was sent before this process began
        self.requests_seen = 0
        self.done: Counter[str] = Counter()
        self._brought: Counter[tuple[int, str]] = Counter()
        self._by_name: defaultdict[str, set[str]] = defaultdict(set)
        self._by_token: Counter[str] = Counter()
        self._membership = 0
        self._sorted: tuple[int, list[Entry]] = (0, [])
        self.pace = 1.0

    # --- what workers report ---------------------------------------------------------------------------------------

    def joined(
        self, hello: Hello, *, process_id: str = "", age_seconds: float = 0.0, token: str = ""
    ) -> None:
        """A worker said hello, here or (by `process_id`) at another process. `token` names the token that it showed."""
        before, now = self.entries.get(hello.instance), self.clock.monotonic()
        age = min(max(0.0, self.clock.time() - hello.started_at), OLDEST_SECONDS)
        began, counted = (before.began, before.counted) if before else (now - age, Counter())
        entry = Entry(hello, now - age_seconds, process_id or self.process_id, token, began, counted)
        self._keep(entry)
        self._expected.pop(hello.instance, None)
        if entry.process_id == self.process_id:
            self._note(hello.instance, self._fate(entry))
        self._count(
            entry, before.state if before else None, hello.state, is_new=hello.started_at >= self.since
        )
        for instance in list(self._by_name[hello.worker] - {hello.instance}):
            # The same name started again: the lost one has its successor. Of another token it would be an impostor.
            other = self.entries[instance]
            if not other.connected and other.token == token:
                self._remove(instance)
        self.version += 1

    def _keep(self, entry: Entry) -> None:
        instance = entry.hello.instance
        before = self.entries.get(instance)
        if before is not None:
            self._drop(before)
        self.entries[instance] = entry
        self._membership += 1
        self._by_name[entry.hello.worker].add(instance)
        self._by_token[entry.token] += 1

    def _drop(self, entry: Entry) -> None:
        name, instance = entry.hello.worker, entry.hello.instance
        del self.entries[instance]
        self._membership += 1
        self._by_token[entry.token] -= 1
        self._by_name[name].discard(instance)
        if not self._by_name[name]:
            del self._by_name[name]

    def instances_of(self, token: str) -> int:
        """How many processes that showed that token are known."""
        return self._by_token[token]

    def set_pace(self) -> bool:
        """Choose how often workers report, by how many there are: in all about 500 reports a second. True if it changed.

        It is lowered only when a quarter more workers would still do with it.
        """
        if pace_of(len(self.entries)) <= self.pace <= pace_of(len(self.entries) * 5 // 4):
            return False
        self.pace = pace_of(len(self.entries))
        return True

    def report(self, instance: str, state: WorkerState) -> None:
        """A heartbeat."""
        entry = self.entries.get(instance)
        if entry is not None:
            self._count(entry, entry.state, state)
            entry.state, entry.seen = state, self.clock.monotonic()
            self.version += 1

    def left(self, instance: str) -> None:
        """Its socket closed. A worker that had said it was stopping is forgotten; any other stays to be missed."""
        entry = self.entries.get(instance)
        if entry is not None:
            entry.connected = False
            if entry.process_id == self.process_id:
                self._note(instance, self._fate(entry))
            if entry.state.mode == "stopping":
                self._remove(instance, "stopped")
            self.version += 1

    def forget(self) -> None:
        """Drop workers that have been gone for ten minutes."""
        limit = self.clock.monotonic() - FORGET_SECONDS
        for instance in [key for key, entry in self.entries.items() if entry.seen < limit]:
            self._remove(instance)
            self.version += 1

    def _remove(self, instance: str, ended: str = "lost") -> None:
        entry = self.entries[instance]
        self._drop(entry)
        fate = self._fate(entry)
        if entry.process_id == self.process_id:
            self._note(instance, fate._replace(ended=ended))
        self._gone[entry.hello.worker, entry.hello.pid] = fate.seen_at
        while len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def _fate(self, entry: Entry) -> Fate:
        seen_at = self.clock.time() - (self.clock.monotonic() - entry.seen)
        return Fate(msgspec.structs.replace(entry.hello, state=entry.state), seen_at, entry.token)

    def _note(self, instance: str, fate: Fate) -> None:
        self._fates[instance] = fate
        if len(self._fates) > MOST_FATES:  # the database is away, or nobody keeps them
            del self._fates[next(iter(self._fates))]

    # --- what outlives this process -----------------------------------------------------------------------------

    def take_fates(self) -> dict[str, Fate]:
        """What changed of the workers connected here since this was last called."""
        fates, self._fates = self._fates, {}
        return fates

    def put_back(self, fates: Mapping[str, Fate]) -> None:
        """They could not be saved: `take_fates` gives them again."""
        self._fates = dict(fates) | self._fates

    def expect(self, fates: Mapping[str, Fate]) -> None:
        """These workers were there when the dashboard ended: those that do not come back in time are lost."""
        self._expected = {key: fate for key, fate in fates.items() if key not in self.entries}
        self._expected_until = self.clock.monotonic() + LATE_SECONDS

    def admit_missing(self) -> None:
        """Show the workers that were expected and did not come as lost; those of long ago have only ended."""
        now, wall = self.clock.monotonic(), self.clock.time()
        if not self._expected or now < self._expected_until:
            return
        missing, self._expected = self._expected, {}
        for fate in missing.values():
            seen = now - max(self.late_seconds, wall - fate.seen_at)
            entry = Entry(fate.hello, seen, self.process_id, fate.token, seen, Counter())
            entry.connected = False
            self._keep(entry)
        names = {(entry.hello.worker, entry.token) for entry in self.entries.values() if entry.connected}
        for fate in missing.values():
            if (fate.hello.worker, fate.token) in names:  # the same name started again meanwhile
                self._remove(fate.hello.instance)
        self.forget()
        self.version += 1

    def gone(self) -> dict[tuple[str, int], float]:
        """The processes that ended, by name and process id, with when they were last heard of (wall clock)."""
        now, wall = self.clock.monotonic(), self.clock.time()
        limit = now - self.late_seconds
        silent = {
            (entry.hello.worker, entry.hello.pid): wall - (now - entry.seen)
            for entry in list(self.entries.values())
            if entry.seen < limit
        }
        return dict(self._gone) | silent

    def waiting_at(self, gate: str) -> dict[str, str]:
        """Instances (with their names) that wait at a gate and were heard of recently."""
        limit = self.clock.monotonic() - self.late_seconds
        found = {}
        for instance, entry in self.entries.items():
            if entry.seen >= limit:
                for status in entry.state.gates:
                    if status.waiting and status.name == gate:
                        found[instance] = entry.hello.worker
        return found

    # --- reading -------------------------------------------------------------------------------------------------

    def workers(self) -> list[WorkerView]:
        """All workers by name, with how present they are now."""
        now, wall, pace = self.clock.monotonic(), self.clock.time(), self.pace
        return [_view(entry, now - entry.seen, wall, pace) for entry in self._in_order()]

    def _in_order(self) -> list[Entry]:
        """All entries by name; sorted again only when one came or went. From any thread."""
        membership = self._membership
        known, ordered = self._sorted
        if known != membership:
            ordered = sorted(
                self.entries.values(), key=lambda entry: (entry.hello.worker, entry.hello.instance)
            )
            self._sorted = (membership, ordered)
        return ordered

    @property
    def late_seconds(self) -> float:
        """After how long without a report a worker is lost."""
        return LATE_SECONDS + 3 * (self.pace - 1)

    def local(self) -> list[str]:
        """The workers connected here."""
        return [entry.hello.instance for entry in self._local()]

    def _local(self) -> list[Entry]:
        return [
            entry
            for entry in self.entries.values()
            if entry.process_id == self.process_id and entry.connected
        ]

    def summary(self, since: float = float("-inf")) -> tuple[Summary, float]:
        """What other processes should know of the workers connected here, with what they reported after `since`, the oldest
        first and `MOST_NEWS` at most; and from where to go on."""
        now, local = self.clock.monotonic(), self._local()
        newer = sorted((entry for entry in local if entry.seen > since), key=lambda entry: entry.seen)
        news = [
            WorkerNews(
                msgspec.structs.replace(entry.hello, state=entry.state), now - entry.seen, token=entry.token
            )
            for entry in newer[:MOST_NEWS]
        ]
        seen = newer[:MOST_NEWS][-1].seen if news else since
        return Summary([entry.hello.instance for entry in local], news), seen

    def merge(self, process_id: str, summary: Summary) -> None:
        """Merge another process's summary: a worker that is not present in it has left."""
        present = {*summary.present}
        for item in summary.news:
            instance = item.hello.instance
            mine = self.entries.get(instance)
            if mine is None or mine.process_id != self.process_id or not mine.connected:
                if mine is not None and mine.process_id == process_id and mine.connected:
                    self._count(mine, mine.state, item.hello.state)
                    mine.state = item.hello.state
                    mine.seen = self.clock.monotonic() - item.age_seconds
                else:
                    self.joined(
                        item.hello, process_id=process_id, age_seconds=item.age_seconds, token=item.token
                    )
        for instance in [
            key
            for key, e in self.entries.items()
            if e.process_id == process_id and e.connected and key not in present
        ]:
            self.left(instance)
        self.version += 1

    def _count(
        self, entry: Entry, before: WorkerState | None, now: WorkerState, *, is_new: bool = False
    ) -> None:
        """Keep sums that only grow, however often workers restart."""
        old_requests = before.requests if before else {}
        for operation, number in now.requests.items():
            more = self._done_by(entry, "requests", number - old_requests.get(operation, 0), MOST_REQUESTS)
            name = self._kept(self.requests, operation, entry, MOST_OPERATIONS)
            self.requests[name] += more
            self.requests_seen += more if before else 0
            self.lately[name] += more if before or is_new else 0
        old_queues = before.queue_requests if before else {}
        for queue, number in now.queue_requests.items():
            name = self._kept(self.queue_requests, queue, entry, MOST_QUEUES)
            more = number - old_queues.get(queue, 0)
            self.queue_requests[name] += self._done_by(entry, "queues", more, MOST_REQUESTS)
        old_traffic = before.queue_traffic if before else {}
        for what, number in now.queue_traffic.items():
            name = self._kept(self.queue_traffic, what, entry, MOST_QUEUES * len(TRAFFIC))
            more = number - old_traffic.get(what, 0)
            self.queue_traffic[name] += self._done_by(entry, "traffic", more, MOST_TRAFFIC)
        old_done = {listener.queue: listener.done for listener in before.listeners} if before else {}
        for listener in now.listeners:
            # Work done before we ever heard of this worker was not done now.
            known = old_done.get(listener.queue, listener.done)
            name = self._kept(self.done, listener.queue, entry, MOST_QUEUES)
            self.done[name] += self._done_by(entry, "messages", listener.done - known, MOST_MESSAGES)

    def _done_by(self, entry: Entry, kind: str, more: int, per_second: int) -> int:
        """So much of what a worker says it has done more is counted: what it can have done since it started."""
        most = int(per_second * (self.clock.monotonic() - entry.began + AHEAD_SECONDS))
        counted = max(0, min(more, most - entry.counted[kind]))
        entry.counted[kind] += counted
        return counted

    def _kept(self, counts: Counter[str], name: str, entry: Entry, most: int) -> str:
        """The name to count under: `OTHER` once the workers of a token have brought so many names into these counts."""
        if name in counts:
            return name
        key = (id(counts), entry.token)
        if self._brought[key] >= most:
            head, _, what = name.rpartition("/")
            return f"{OTHER}/{what}" if head and what in TRAFFIC else OTHER
        self._brought[key] += 1
        counts[name] = 0
        return name


def pace_of(workers: int) -> float:
    """How often each of so many workers reports, in seconds."""
    return float(min(MOST_PACE_SECONDS, max(1, -(-workers // WORKERS_PER_SECOND))))


def _view(entry: Entry, age: float, wall: float, pace: float) -> WorkerView:
    hello = entry.hello
    if age < OK_SECONDS + 2 * (pace - 1) and entry.connected:
        presence = "ok"
    elif age < LATE_SECONDS + 3 * (pace - 1):
        presence = "late"
    else:
        presence = "lost"
    if entry.view is not None:
        seen, known = entry.view
        if seen == entry.seen and known.state is entry.state and known.presence == presence:
            return known
    view = WorkerView(
        name=hello.worker,
        instance=hello.instance,
        host=hello.host,
        pid=hello.pid,
        started_at=hello.started_at,
        software=hello.software,
        presence=presence,
        last_seen=wall - age,
        state=entry.state,
    )
    entry.view = entry.seen, view
    return view


class PresenceExchange:
    """Sends the other processes each second which workers are connected here and what is new of them, and takes in the same.

    `on_newcomer` is awaited after a process was heard that is new, or was cut off: it has missed receipts, and their
    workers won't send them again.
    """

    def __init__(
        self,
        presence: Presence,
        backplane: Backplane,
        on_newcomer: Callable[[], Awaitable[None]],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.turned: Callable[[], None] = lambda: None
        self.rested: Callable[[], None] = lambda: None
        self._presence, self._backplane, self._on_newcomer, self._clock = (
            presence,
            backplane,
            on_newcomer,
            clock,
        )
        self._processes: dict[str, float] = {}
        self._newcomer = False
        self._sent_up_to = float("-inf")
        backplane.on("presence", self._receive)

    async def run(self) -> None:
        """Send, until cancelled."""
        while True:
            self.turned()
            newcomer, self._newcomer = self._newcomer, False
            summary, self._sent_up_to = self._presence.summary(
                float("-inf") if newcomer else self._sent_up_to
            )
            await self._backplane.publish("presence", _packed(summary))
            if newcomer:
                await self._on_newcomer()
            await self._clock.sleep(SUMMARY_SECONDS)

    def _receive(self, process_id: str, body: bytes) -> None:
        now = self._clock.monotonic()
        if now - self._processes.get(process_id, float("-inf")) > AWAY_SECONDS:
            self._newcomer = True
            self._processes = {
                known: heard for known, heard in self._processes.items() if now - heard < FORGET_SECONDS
            }
        self._processes[process_id] = now
        self._presence.merge(process_id, msgspec.msgpack.decode(body, type=Summary))


def _packed(summary: Summary) -> bytes:
    """The summary; a worker that cannot be reported is left out of its news."""
    try:
        return msgspec.msgpack.encode(summary)
    except (OverflowError, ValueError, TypeError):
        good = []
        for each in summary.news:
            try:
                msgspec.msgpack.encode(each)
            except (OverflowError, ValueError, TypeError) as error:
                log.warning("The worker %s is not reported: %s", each.hello.worker, error)
            else:
                good.append(each)
        return msgspec.msgpack.encode(Summary(summary.present, good))
