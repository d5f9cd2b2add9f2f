"""What one look at the storage account found. A part that could not be read keeps its last rows, with their age."""

from __future__ import annotations

import msgspec

from coordinator.gates.state import GateState
from dashboard.live.fleet import LeaderView, SequenceView, StorageView
from dashboard.live.workloads import Work


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
    leaders: tuple[LeaderView, ...] = ()
    sequences: tuple[SequenceView, ...] = ()
    work: Work = Work()
    requests: dict[str, int] = {}
    queue_requests: dict[str, int] = {}
    queue_traffic: dict[str, int] = {}
    every_seconds: float = 1.0
    took_seconds: float = 0.0


NOTHING = Sample(at=0.0, storage=StorageView())
