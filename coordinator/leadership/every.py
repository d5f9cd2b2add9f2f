"""Single runs at set times, by whoever leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.backoff import TRANSIENT, Backoff, retry
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import ConfigurationError, LeadershipLost, PreconditionFailed
from coordinator.leadership.election import Election
from coordinator.leadership.schedule import Missed, Schedule, due
from coordinator.leadership.term import Term
from coordinator.leadership.working import run_task

_log = logging.getLogger("coordinator.leadership")


@dataclass(frozen=True)
class Run:
    """One run of a job: the moment it is for (seconds since 1970), and the term of the node that runs it."""

    job: str
    scheduled_at: float
    term: Term


@dataclass(frozen=True)
class Job:
    """What to run, and when: `task(run)` is async or plain (then in a thread).

    `missed`: what to do about moments at which nobody led: "skip" them, or run "once" for all of them together.
    `late_seconds`: how late a run may begin without counting as missed, 60 by default; less than a fail-over (a lease
    and a second) would skip runs that fell into one.
    """

    name: str
    schedule: Schedule
    task: Callable[[Run], Any]
    missed: Missed = "skip"
    late_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.missed not in ("skip", "once"):
            raise ConfigurationError(f"job {self.name}: missed must be skip or once, got {self.missed!r}")


class RunLog(Protocol):
    """Remembers the newest run of each job."""

    async def newest(self, job: str) -> tuple[float | None, str]:
        """The moment of the newest run (None if there never was one), and a version for `claim`."""

    async def claim(self, job: str, scheduled_at: float, version: str, holder: str) -> None:
        """Record a run before it begins. Raises `PreconditionFailed` if another run was recorded meanwhile."""


async def run_every(
    election: Election, jobs: Sequence[Job], log: RunLog, *, clock: Clock = SYSTEM_CLOCK
) -> None:
    """Campaign, and run the jobs at their times while leading; until cancelled.

    Guarantees at most one run for each scheduled moment of a job, over all nodes: the run is claimed by a conditional
    write before it begins. A run that crashes is not repeated. The first leader ever begins with the next moment. An
    error of a job is logged and ends that run alone.
    """

    if not jobs:
        raise ConfigurationError("run_every needs at least one job")

    async def lead(term: Term) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for job in jobs:
                    group.create_task(_keep(job, term, log, clock), name=f"every {job.name}")
        except* LeadershipLost as group_error:
            error = group_error
        raise LeadershipLost(f"{term.name}: term {term.epoch} is over: {term.reason}") from error

    await election.run(lead)


async def _keep(job: Job, term: Term, log: RunLog, clock: Clock) -> None:
    while True:
        look_at = await _step(job, term, log, clock)
        await clock.sleep(look_at - clock.time())


async def _step(job: Job, term: Term, log: RunLog, clock: Clock) -> float:
    """Run the job if it is due; returns when to look again."""
    try:
        last, version = await retry(lambda: log.newest(job.name), backoff=Backoff(), clock=clock)
        now = clock.time()
        if last is None:
            await log.claim(job.name, now, version, term.holder)
            return job.schedule.next_after(now)
        todo = due(job.schedule, last=last, now=now, missed=job.missed, late_seconds=job.late_seconds)
        if todo.scheduled_at is None:
            return todo.look_at
        term.check()
        # Lost answers make the claim fail when it is repeated: then the moment goes by without a run, never twice.
        await log.claim(job.name, todo.scheduled_at, version, term.holder)
    except (*TRANSIENT, PreconditionFailed) as error:
        _log.warning("Job %s could not be claimed: %s", job.name, error, extra={"action": "every"})
        return clock.time() + 1.0
    run = Run(job.name, todo.scheduled_at, term)
    try:
        await run_task(job.task, run, term)
    except LeadershipLost:
        raise
    except Exception:
        _log.exception("Job %s failed", job.name, extra={"action": "every", "resource": job.name})
    return job.schedule.next_after(max(todo.scheduled_at, clock.time()))
