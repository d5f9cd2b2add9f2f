"""What the pages show, as plain frozen values: made by the sampler and presence, read through selectors.

None always means *unknown* and is never shown as 0. Moments are wall-clock seconds since 1970 (UTC). Every row that was
read from storage says when (`as_of`), so that stale can look stale.
"""

from __future__ import annotations

import msgspec

from coordinator.gates.state import GateState
from coordinator.realtime.protocol import WorkerState
from dashboard.live.workloads import Work

# LeaderView, SequenceView, StorageView


class StorageView(msgspec.Struct, frozen=True, gc=False):
    """Whether the account answers. `unreachable_since` is None while it does; `as_of` is the last good sample."""

    as_of: float | None = None
    unreachable_since: float | None = None
    error: str = ""


class ReleaseView(msgspec.Struct, frozen=True, gc=False):
    """The progress of one opening: how many of the workers that were waiting have passed."""

    gate: str
    epoch: int
    written_at: float
    pushed_at: float | None
    expected: int
    passed: int
    p50_ms: float | None = None
    p99_ms: float | None = None
    stragglers: tuple[str, ...] = ()
    delays_ms: tuple[float, ...] = ()


class GateView(msgspec.Struct, frozen=True, gc=False):
    """A gate. `state` is "closed", "armed", "open" or "unknown"; `waiting` names the workers held at it now.

    It opens at `not_before` if it is armed, and closes by itself at `until`. Of the `workers` connected, the share lets
    `admitted` pass. `release` is how the opening goes; what has not begun has none. `problem` says what is wrong with
    what is stored: it cannot be read, or its epoch went back.
    """

    name: str
    state: str
    epoch: int
    by: str = ""
    reason: str = ""
    since: float | None = None
    not_before: float | None = None
    until: float | None = None
    admitted: int = 0
    share: float = 1.0
    waiting: tuple[str, ...] = ()
    workers: int = 0
    release: ReleaseView | None = None
    as_of: float | None = None
    problem: str = ""


class WorkerConcurrency(msgspec.Struct, frozen=True, gc=False):
    """How many dequeue tasks one worker has and wants for a queue, and why, in the worker's own words."""

    worker: str
    active: int
    wanted: int
    reason: str


class QueueView(msgspec.Struct, frozen=True, gc=False):
    """A queue. Depth is the service's approximate count, which includes messages in flight."""

    name: str
    depth: int | None = None
    poison: int | None = None
    active_tasks: int | None = None
    total_tasks: int | None = None
    in_flight: int | None = msgspec.field(default=None, name="in_hand")
    in_per_second: float | None = None
    out_per_second: float | None = None
    oldest_seconds: float | None = None
    workers: int = 0
    as_of: float | None = None
    decisions: tuple[WorkerConcurrency, ...] = ()
    problem: str = ""

    @property
    def waits_seconds(self) -> float | None:
        """How long the oldest message waits, to draw it: none waits in an empty queue, and that is known."""
        return 0.0 if self.depth == 0 else self.oldest_seconds


class LeaderClaim(msgspec.Struct, frozen=True, gc=False):
    """A worker says that it leads with that epoch; storage, as last read, does not."""

    worker: str
    epoch: int


class LeaderView(msgspec.Struct, frozen=True, gc=False):
    """An election. `holder` and `epoch` are what storage says; `holder` is "" while there is no leader.

    `claims` are workers that say they lead with a higher epoch: the next sample confirms one of them, or they are wrong.

    `lease_ends` is when the service frees the lease of `lease_seconds` if it is not renewed, whether or not the holder
    still lives; None if nobody has the lease, or if the holder has reported nothing of it. `remaining_seconds` is what
    was left of it when the fleet was put together.
    """

    name: str
    holder: str
    epoch: int
    lease: str
    since: float | None = None
    remaining_seconds: float | None = None
    standbys: tuple[str, ...] = ()
    as_of: float | None = None
    lease_ends: float | None = None
    lease_seconds: int = 15
    problem: str = ""
    claims: tuple[LeaderClaim, ...] = ()


class GrantView(msgspec.Struct, frozen=True, gc=False):
    """One range of numbers. `state` is "in use", "used", "returned", "lost" or "unattributed".

    Of a lost one, `last_issued` is what its process said last, at `heard_at`: it issued at least so far.
    """

    sequence: str
    first: int
    last: int
    owner: str
    granted_at: float | None
    state: str
    last_issued: int | None = None
    heard_at: float | None = None


class SequenceView(msgspec.Struct, frozen=True, gc=False):
    """A sequence. `problem` quotes what is wrong with its counter, if anything."""

    name: str
    next_number: int | None = None
    per_second: float | None = None
    runway_seconds: float | None = None
    owners: int = 0
    recent: tuple[GrantView, ...] = ()
    problem: str = ""
    as_of: float | None = None


class WorkerView(msgspec.Struct, frozen=True, gc=False):
    """A worker process. `presence` is "ok", "late" or "lost" by the age of its last heartbeat."""

    name: str
    instance: str
    host: str
    pid: int
    started_at: float
    software: str
    presence: str
    last_seen: float
    state: WorkerState

    @property
    def is_draining(self) -> bool:
        return self.state.mode == "draining"

    @property
    def silent_since(self) -> float | None:
        """When it was last heard, if that is too long ago."""
        return None if self.presence == "ok" else self.last_seen

    @property
    def sequence_names(self) -> tuple[str, ...]:
        return tuple(sequence.name for sequence in self.state.sequences)

    @property
    def head_cell(self) -> tuple[object, ...]:
        """What the first cell of its row depends on."""
        return self.name, self.instance, self.host, self.pid, self.presence, self.sequence_names

    @property
    def last_cells(self) -> tuple[object, ...]:
        """What the last cells of its row depend on, besides its memory."""
        return self.presence, self.state.elections, self.started_at, self.software


class Attention(msgspec.Struct, frozen=True, gc=False):
    """Something an operator should look at: what, how bad ("warning" or "critical"), what to do, and where.

    `kind` and `names` identify it, whatever figures the text has: the kind of condition, and the things it is about.
    """

    level: str
    what: str
    remedy: str
    url: str = ""
    kind: str = ""
    names: tuple[str, ...] = ()


class AlertView(msgspec.Struct, frozen=True, gc=False):
    """An alert that fires. `subject` is the thing that it is about, `since` when its condition began."""

    id: int
    rule: str
    subject: str
    what: str
    level: str
    since: float
    fired_at: float
    url: str = ""
    acknowledged_by: str = ""
    acknowledged_at: float | None = None


class Headline(msgspec.Struct, frozen=True, gc=False):
    """The fleet in one line, and why: "unknown", "stalled", the level of its worst open condition ("critical" or "warning"),
    "held" (every worker waits at a closed gate), "running" or "idle"."""

    state: str
    why: str


class Today(msgspec.Struct, frozen=True, gc=False):
    """Requests by operation since midnight (UTC), or since the dashboard started if that was later."""

    since: float
    requests: dict[str, int] = {}


class Fleet(msgspec.Struct, frozen=True, gc=False):
    """Everything at one moment. `degraded` says in words what the dashboard itself lacks ("" = nothing).

    `read_at` has when each kind of thing was last read from storage, and `troubles` what of the dashboard's own work failed.
    `own_requests` are those of `requests` that the dashboard sent, and `sampled_every` the seconds between two samples. `alerts` are those that fire.
    """

    taken_at: float
    headline: Headline
    storage: StorageView
    gates: tuple[GateView, ...] = ()
    queues: tuple[QueueView, ...] = ()
    leaders: tuple[LeaderView, ...] = ()
    sequences: tuple[SequenceView, ...] = ()
    workers: tuple[WorkerView, ...] = ()
    work: Work = Work()
    attention: tuple[Attention, ...] = ()
    requests_per_minute: float | None = None
    requests: dict[str, int] = {}
    queue_requests: dict[str, int] = {}
    own_requests: dict[str, int] = {}
    sampled_every: float | None = None
    queue_traffic: dict[str, int] = {}
    today: Today | None = None
    degraded: str = ""
    read_at: dict[str, float | None] = {}
    troubles: tuple[str, ...] = ()
    alerts: tuple[AlertView, ...] = ()


class Point(msgspec.Struct, frozen=True, gc=False):
    """One sample of a series, or the mean of several from `low` to `high`; a value None is a gap."""

    at: float
    value: float | None
    low: float | None = None
    high: float | None = None


class Depth(msgspec.Struct, frozen=True, gc=False):
    """A queue as storage sees it; `as_of` is when this very figure was read.

    `oldest_at` is when the message at the front was put (wall clock), as seen at `peeked_at`.
    """

    name: str
    depth: int | None
    poison: int | None
    as_of: float | None
    oldest_at: float | None = None
    peeked_at: float = 0.0


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One look. The views of leaders and sequences lack what only workers know. `odd_gates` says of each gate that could
    not be read why; what could be read has the moment of its own reading."""

    at: float
    storage: StorageView
    gates: tuple[GateState, ...] = ()
    gates_as_of: float | None = None
    leaders_as_of: float | None = None
    sequences_as_of: float | None = None
    odd_gates: dict[str, str] = {}
    queues: tuple[Depth, ...] = ()
    queues_as_of: float | None = None  # when they were listed; each figure has its own moment
    leaders: tuple[LeaderView, ...] = ()
    sequences: tuple[SequenceView, ...] = ()
    work: Work = Work()
    requests: dict[str, int] = {}
    queue_requests: dict[str, int] = {}
    queue_traffic: dict[str, int] = {}
    every_seconds: float = 1.0


NOTHING = Sample(at=0.0, storage=StorageView())
