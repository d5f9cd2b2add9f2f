"""Every read that pages make. Returns frozen values; blocking functions for threads."""

from __future__ import annotations

import time

from dashboard.hub.runtime import current
from dashboard.live import fleet_memory
from dashboard.live import history as past
from dashboard.live import releases as plans
from dashboard.live.fleet import Fleet, Point
from dashboard.live.fleet_memory import PastWorkerView
from dashboard.live.releases import OpeningPlan

EARLIER_SECONDS = 90.0
"""How much more of an earlier span is read, so that a graph has it until it asks again."""


def fleet() -> Fleet:
    """The newest of everything, from memory. Asking keeps the sampler at its quick pace for a few seconds."""
    fleet_state = current().fleet_state
    fleet_state.asked()
    return fleet_state.fleet()


def opening(gate: str, *, at: float | None, until: float | None, share: float) -> OpeningPlan:
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


def earlier(series: str, seconds: float, before: float) -> list[Point]:
    """The same span `before` seconds ago, and a minute more, at the moments of today."""
    until = time.time() - before
    age = seconds + before
    points = past.read(series, until - seconds, until + EARLIER_SECONDS, age=age)
    resolution = past.level_for(age)[0] * past.step_for(seconds, age)
    return [Point(point.at + before, point.value) for point in past.with_gaps(points, resolution)]
