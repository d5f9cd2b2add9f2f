"""What one worker process did, living or dead, from what is kept: its last report, gates that it passed, its terms, acts on it, messages it gave up."""

from __future__ import annotations

from typing import NamedTuple

from coordinator.leadership.azure import list_terms
from coordinator.leadership.terms import TermRecord
from coordinator.realtime.protocol import WorkerState
from dashboard.core import audit
from dashboard.hub.runtime import current, look, storage
from dashboard.live import fleet_memory
from dashboard.live.fleet import Fleet
from dashboard.models import PoisonMessage

MOST_ELECTIONS, MOST_TERMS, MOST_ROWS = 5, 20, 50


class Moment(NamedTuple):
    """What happened when. `kind` is started, passed, led, act, poison or seen."""

    at: float
    kind: str
    what: str
    name: str = ""


class Life(NamedTuple):
    """A worker process. `end` is "" while it is connected, else "stopped" or "lost"; the newest moment is first."""

    name: str
    instance: str
    host: str
    pid: int
    software: str
    started_at: float
    last_seen: float
    end: str
    state: WorkerState
    moments: tuple[Moment, ...]
    problems: tuple[str, ...]


async def _terms_of(election: str) -> list[TermRecord]:
    return await list_terms(storage(), election, limit=MOST_TERMS)


def life(fleet: Fleet, instance: str) -> Life | None:
    """The worker process with that instance; None if nothing is kept of it."""
    alive = next((worker for worker in fleet.workers if worker.instance == instance), None)
    if alive is not None:
        end = "lost" if alive.presence == "lost" else ""
        name, host, pid, software = alive.name, alive.host, alive.pid, alive.software
        started_at, last_seen, state = alive.started_at, alive.last_seen, alive.state
    else:
        past = fleet_memory.one(current().source, instance)
        if past is None:
            return None
        hello, end, last_seen = past.hello, past.ended, past.last_seen
        name, host, pid, software = hello.worker, hello.host, hello.pid, hello.software
        started_at, state = hello.started_at, hello.state
    moments = [Moment(started_at, "started", "Started")]
    if end == "lost":
        moments.append(
            Moment(last_seen, "seen", "Last heartbeat: the process crashed, hung or lost its connection")
        )
    elif end:
        moments.append(Moment(last_seen, "seen", "Stopped"))
    moments += [
        Moment(
            release.written_at + delay,
            "passed",
            f"Passed epoch {release.epoch}, {delay:.2f} s after the opening",
            release.gate,
        )
        for release in current().releases.news()
        if (delay := release.delays.get(instance)) is not None
    ]
    problems = []
    for election in [each.name for each in state.elections][:MOST_ELECTIONS]:
        seen = look(f"terms {election} {MOST_TERMS}", _terms_of, election)
        if seen.problem:
            problems.append(seen.problem)
        for term in seen.value or ():
            if term.holder == name and started_at <= term.since <= last_seen + 60:
                moments.append(Moment(term.since, "led", f"Led, epoch {term.epoch}", election))
                if term.ended is not None:
                    said = f"Stopped leading: {term.how}" if term.how else "Stopped leading"
                    moments.append(Moment(term.ended, "led", said, election))
    rows = audit.shown().filter(target=instance).order_by("-pk")[:MOST_ROWS]
    moments += [Moment(row.at, "act", f"{row.action} by {row.actor}: {row.outcome}") for row in rows]
    given_up = PoisonMessage.objects.filter(
        source=current().source, worker=name, last_at__gte=started_at, last_at__lte=last_seen + 60
    ).order_by("-last_at")[:MOST_ROWS]
    moments += [
        Moment(row.last_at, "poison", f"Gave up a message: {row.error} {row.reason}".rstrip(), row.queue)
        for row in given_up
    ]
    moments.sort(key=lambda moment: moment.at, reverse=True)
    return Life(
        name,
        instance,
        host,
        pid,
        software,
        started_at,
        last_seen,
        end,
        state,
        tuple(moments),
        tuple(problems),
    )
