"""Values for the tests of this room."""

from __future__ import annotations

from typing import Any

from coordinator.clock import Clock
from coordinator.realtime import protocol
from coordinator.realtime.protocol import GateStatus, Hello, WorkerState
from dashboard.core.backplane import Backplane
from dashboard.live.fleet import WorkerView
from dashboard.live.fleet_state import FleetState
from dashboard.live.presence import Presence
from dashboard.live.releases import KnownGates, ReleaseTracker

NOW = 1_700_000_000.0


def hello(name: str, *, instance: str = "", pid: int = 1, state: WorkerState | None = None) -> Hello:
    return Hello(
        version=protocol.VERSION,
        worker=name,
        instance=instance or f"i-{name}",
        host="host",
        pid=pid,
        started_at=NOW,
        software="test",
        prefix="t-",
        state=state or WorkerState(),
    )


def waiting(gate: str = "start-it") -> WorkerState:
    return WorkerState(gates=(GateStatus(gate, "closed", waiting=True),))


def worker(name: str, *, presence: str = "ok", **state: Any) -> WorkerView:
    return WorkerView(name, f"i-{name}", "host", 1, NOW, "test", presence, NOW, WorkerState(**state))


def releases_of(presence: Presence, clock: Clock) -> ReleaseTracker:
    backplane = Backplane(clock=clock)
    return ReleaseTracker(presence.waiting_at, KnownGates(backplane, clock=clock), backplane, clock=clock)


def fleet_state_of(presence: Presence, clock: Clock) -> FleetState:
    return FleetState(presence, releases_of(presence, clock), Backplane(clock=clock), clock=clock)
