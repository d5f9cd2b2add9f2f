"""What an opening will do, said before it is made: when, until when, and for how many of the workers. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from coordinator.gates.state import rollout_bucket
from dashboard.live.fleet import Fleet

FAR_SECONDS = 4_102_444_800.0
"""The end of 2099: later is a moment in milliseconds."""


class Plan(NamedTuple):
    """An opening that was not made yet. `admitted` of `workers` may pass; `problem` says why it cannot be made."""

    gate: str
    at: float | None
    until: float | None
    share: float
    admitted: int
    workers: int
    problem: str


def plan(fleet: Fleet, gate: str, *, at: float | None, until: float | None, share: float, now: float) -> Plan:
    """The opening as the workers that are connected now would see it."""
    names = [
        worker.name
        for worker in fleet.workers
        if worker.presence != "lost" and any(each.name == gate for each in worker.state.gates)
    ]
    return Plan(
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
