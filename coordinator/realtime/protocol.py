"""The messages between a worker and the hub: small, versioned, bounded, one JSON object per websocket text frame.

Storage is the truth; these carry hints and telemetry. The receiver of a frame that is malformed or too large closes
the socket with a reason; nothing is guessed. Fields may be added with defaults within a version: unknown fields are
ignored, so older and newer ends understand each other. A new kind of frame, or a new word where words are listed, needs a
new version; both ends then speak the newest that both know (`agreed`), or part with a reason. A worker is milder than
that: it skips kinds and commands that it does not know, for its push must not be lost over them.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from coordinator.bounds import (
    MAX_ITEMS,
    Count,
    Duration,
    Held,
    Instance,
    Label,
    Moment,
    Name,
    Number,
    Offset,
    ProcessId,
    Rate,
    Reason,
    Text,
    Word,
    plainly,
)
from coordinator.errors import ProtocolViolation
from coordinator.realtime.bus import Notification

VERSION = 2
OLDEST = 1
"""The oldest version that this end still speaks."""
MAX_FRAME_BYTES = 64 * 1024
SUBPROTOCOL = "kennel.v1"

CLOSE_MALFORMED = 4400
CLOSE_UNAUTHORIZED = 4401
CLOSE_FORBIDDEN = 4403
CLOSE_TOO_LARGE = 1009
CLOSE_TOO_FAST = 4429
CLOSE_SLOW = 4408
CLOSE_REPLACED = 4409
CLOSE_GOING_AWAY = 1001

Version = Annotated[int, Meta(ge=0, le=1_000_000)]
Few = Meta(max_length=MAX_ITEMS)
Topics = Annotated[tuple[Label, ...], Few]
ALL_TOPICS = ("*",)


class GateStatus(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A gate as a worker sees it. `state` is "unknown" until the first answer; `passed_epoch` 0 means never passed.

    `inside` is how much work is passing it; a close is complete when that is 0. `offset_seconds` is how far the
    worker's clock is from the storage service's, None if unknown. `problem` is what the worker finds wrong with the gate
    as stored: damaged, or at a lower epoch than it was; "" if nothing. `disproved` counts the pushes that storage did not
    confirm.
    """

    name: Name
    state: Word = "unknown"
    epoch: Count = 0
    waiting: bool = False
    passed_epoch: Count = 0
    inside: Held = 0
    offset_seconds: Offset | None = None
    problem: Text = ""
    disproved: Count = 0


Bucket = Annotated[int, Meta(ge=0, le=1_000)]


class HandlerFigures(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What the handler of a listener did since the listener was made; every number only grows.

    An item counts each time that the handler ran for it. `durations` and `waits` count items by bucket of time: how long
    the handler took, and how long the item had waited before its first attempt (`coordinator.queues.figures`).
    """

    handler: Text = ""
    done: Count = 0
    failed: Count = 0
    retried: Count = 0
    durations: Annotated[dict[Bucket, Count], Few] = {}
    waits: Annotated[dict[Bucket, Count], Few] = {}


class ListenerStatus(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A queue listener. `oldest_seconds` is how long the longest-held message has been invisible.

    `oldest_task_seconds` is how long the longest-running call of the handler has run, 0 if none runs; older workers do not say.
    """

    queue: Name
    active_tasks: Held = 0
    total_tasks: Held = 0
    wanted_tasks: Held = 0
    in_hand: Held = 0
    done: Count = 0
    failed: Count = 0
    poisoned: Count = 0
    stale_receipts: Count = 0
    oldest_seconds: Duration = 0.0
    state: Word = "stopped"
    reason: Reason = ""
    figures: HandlerFigures = HandlerFigures()
    oldest_task_seconds: Duration | None = None


class LeadershipStatus(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An election. `remaining_seconds` is what is left of the leader's lease of `lease_seconds`, if it is not renewed.

    It is counted from when the newest confirmed renewal was sent, so the service frees the lease no sooner, and later
    by no more than that request took.
    """

    name: Name
    role: Word = "standby"
    epoch: Count = 0
    remaining_seconds: Duration = 0.0
    lease_seconds: Annotated[int, Meta(ge=1, le=3600)] = 15


class SequenceStatus(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A number generator. `last_issued` 0 means none yet; `runway_seconds` None means unknown."""

    name: Name
    first: Number = 0
    last: Number = 0
    last_issued: Number = 0
    issued: Count = 0
    per_second: Rate = 0.0
    runway_seconds: Duration | None = None
    conflicts: Count = 0
    grants: Count = 0


class WorkerState(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """All that a worker reports about itself.

    `requests` counts by operation, `queue_requests` those to queues by queue ("" for the sum of many small ones);
    `queue_traffic` has bytes and claims by ``QUEUE/WHAT``, as `Meter.traffic` returns them.
    """

    mode: Literal["starting", "running", "draining", "stopping"] = "running"
    gates: Annotated[tuple[GateStatus, ...], Few] = ()
    listeners: Annotated[tuple[ListenerStatus, ...], Few] = ()
    elections: Annotated[tuple[LeadershipStatus, ...], Few] = ()
    sequences: Annotated[tuple[SequenceStatus, ...], Few] = ()
    requests: Annotated[dict[Label, Count], Few] = {}
    queue_requests: Annotated[dict[Text, Count], Few] = {}
    queue_traffic: Annotated[dict[Label, Count], Few] = {}
    cpu_seconds: Duration = 0.0
    memory_bytes: Count = 0


class Hello(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="hello"):
    """First frame of a worker. `instance` is unique per process start; `prefix` says which fleet it belongs to.

    `version` is the newest that it speaks, `oldest` the oldest; 0 if that is the same. `secret` is random, made with
    `instance`: only who knows it may take the place of that instance's socket. The hub keeps a digest of it. `follows`: the
    topics of the hints that it wants; None or `ALL_TOPICS` for all.
    """

    version: Version
    worker: Label
    instance: Instance
    host: Text
    pid: ProcessId
    started_at: Moment
    software: Text
    prefix: Text
    state: WorkerState
    oldest: Version = 0
    secret: Text = ""
    follows: Topics | None = None


class State(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="state"):
    """Heartbeat with the state; what it leaves out has its default.

    `same` (from version 2) names the fields of the state that are as in the last frame, and are left out. `follows`: as in
    `Hello`, if it has changed since; None if not.
    """

    state: WorkerState
    same: Annotated[tuple[Word, ...], Few] = ()
    follows: Topics | None = None


class Receipt(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="receipt"):
    """This worker passed a gate. `delay_seconds` is from the opening (as stored) to the pass, by wall clocks."""

    gate: Name
    epoch: Count
    source: Word
    delay_seconds: Offset
    passed_at: Moment


class Announce(msgspec.Struct, frozen=True, gc=False, tag="announce"):
    """Ask the hub to pass a hint to every worker of this prefix."""

    hint: Notification


class Welcome(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="welcome"):
    """First frame of the hub: the version that both speak from here on.

    The worker sends `State` at least every `heartbeat_seconds`.
    """

    version: Version
    heartbeat_seconds: Annotated[float, Meta(gt=0, le=3600)]
    server_time: Moment


class Pace(msgspec.Struct, frozen=True, gc=False, tag="pace"):
    """From now on `State` is due at least every `heartbeat_seconds` (from version 2)."""

    heartbeat_seconds: Annotated[float, Meta(gt=0, le=3600)]


class Hinted(msgspec.Struct, frozen=True, gc=False, tag="hint"):
    """Look again: something changed."""

    hint: Notification


class Command(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="command"):
    """An operator asks this worker to do something: drain, resume or stop; or to step down from an election.

    `id` is that of the request that asked, as in the audit.
    """

    verb: Literal["drain", "resume", "stop", "step_down"]
    id: Text
    target: Text = ""
    by: Text = ""


class Unknown(NamedTuple):
    """A frame of a newer hub that this worker skips: what it was, for the log."""

    what: str


class _Kind(msgspec.Struct, frozen=True, gc=False):
    type: Text
    verb: Text = ""


FromWorker = Hello | State | Receipt | Announce
FromHub = Welcome | Pace | Hinted | Command

_encoder = msgspec.json.Encoder()
_from_worker: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)
_from_hub: msgspec.json.Decoder[FromHub] = msgspec.json.Decoder(FromHub)
_kind: msgspec.json.Decoder[_Kind] = msgspec.json.Decoder(_Kind)
_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in (Welcome, Pace, Hinted, Command))
_VERBS = frozenset(get_args(get_type_hints(Command)["verb"]))
M = TypeVar("M")


_BLANK = WorkerState()


def changes(before: WorkerState, now: WorkerState) -> State:
    """The heartbeat that brings `now` to an end that has `before`."""
    same = tuple(
        name
        for name in WorkerState.__struct_fields__
        if getattr(now, name) == getattr(before, name) != getattr(_BLANK, name)
    )
    return State(msgspec.structs.replace(now, **{name: getattr(_BLANK, name) for name in same}), same)


def whole(before: WorkerState, message: State) -> WorkerState:
    """The state that a heartbeat brings to an end that has `before`."""
    if not message.same:
        return message.state
    if strange := {*message.same} - {*WorkerState.__struct_fields__}:
        raise ProtocolViolation(f"a state has no field {min(strange)[:40]!r}")
    return msgspec.structs.replace(message.state, **{name: getattr(before, name) for name in message.same})


def encode(message: FromWorker | FromHub) -> str:
    """One frame of text."""
    return _encoder.encode(message).decode()


def decode_from_worker(frame: str | bytes) -> FromWorker:
    """Decode what a worker sent; raises `ProtocolViolation` with the path of the fault."""
    return _decode(_from_worker, frame)


def decode_from_hub(frame: str | bytes) -> FromHub | Unknown:
    """Decode what the hub sent; raises `ProtocolViolation` with the path of the fault.

    A kind of frame or command that only newer releases know is no fault: it is `Unknown`.
    """
    try:
        return _decode(_from_hub, frame)
    except ProtocolViolation as fault:
        try:
            kind = _decode(_kind, frame)
        except ProtocolViolation:
            raise fault from None
        if kind.type not in _KINDS:
            return Unknown(kind.type[:40])
        if kind.type == "command" and kind.verb not in _VERBS:
            return Unknown(f"command {kind.verb[:40]}")
        raise


def agreed(version: int, oldest: int) -> int:
    """The version to speak with an end that speaks `oldest` (0: only `version`) to `version`: the newest both know.

    Raises `ProtocolViolation` if there is none.
    """
    least = oldest or version
    if least <= version and max(least, OLDEST) <= min(version, VERSION):
        return min(version, VERSION)
    raise ProtocolViolation(
        f"protocol version {_span(least, version)}; this end knows {_span(OLDEST, VERSION)}"
    )


def _span(oldest: int, newest: int) -> str:
    return str(newest) if oldest == newest else f"{oldest} to {newest}"


def _decode(decoder: msgspec.json.Decoder[M], frame: str | bytes) -> M:
    size = len(frame) if isinstance(frame, bytes) else len(frame.encode())
    if size > MAX_FRAME_BYTES:
        raise ProtocolViolation(f"frame of {size} bytes; at most {MAX_FRAME_BYTES} are allowed")
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(f"frame is not a known message: {plainly(error)}") from error
