"""Every read that pages make. Returns frozen values; blocking functions for threads."""

from __future__ import annotations

import time

from dashboard.hub.runtime import current
from dashboard.live import fleet_memory
from dashboard.live import history as past
from dashboard.live import releases as plans
from dashboard.live.fleet import Fleet, Point
from dashboard.live.fleet_memory import PastWorkerView
from dashboard.live.releases import Plan


def fleet() -> Fleet:
    """The newest of everything, from memory. Asking keeps the sampler at its quick pace for a few seconds."""
    fleet_state = current().fleet_state
    fleet_state.asked()
    return fleet_state.fleet()


def opening(gate: str, *, at: float | None, until: float | None, share: float) -> Plan:
    """What an opening of that gate would do now."""
    return plans.plan(glance(), gate, at=at, until=until, share=share, now=time.time())


def ended_workers(*, before: float | None = None, limit: int = 50) -> list[PastWorkerView]:
    """The workers of the last 30 days that ended, the newest first."""
    return fleet_memory.ended(current().source, before=before, limit=limit)


def glance() -> Fleet:
    """The same for machines that ask all the time: leaves the sampler at its pace."""
    return current().fleet_state.fleet()


def history(series: str, seconds: float) -> list[Point]:
    """A series over the last `seconds`, oldest first; a point with value None is a gap."""
    until = time.time()
    points = past.read(series, until - seconds, until)
    resolution = past.level_for(seconds)[0] * past.step_for(seconds)
    after = points[-1].at if points else until - seconds
    points += [
        point
        for point in current().fleet_state.recent(series, since=until - seconds)
        if point.value is not None and point.at >= after + resolution
    ]
    return past.with_gaps(points, resolution)
