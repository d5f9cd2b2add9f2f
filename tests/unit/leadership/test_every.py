"""Single runs at set times."""

from __future__ import annotations

import asyncio
import threading

import pytest

from coordinator.errors import ConfigurationError
from coordinator.leadership.every import Job, Run, run_every
from coordinator.leadership.schedule import Schedule, due
from coordinator.testing.leadership import MemoryRunLog
from tests.unit.leadership.candidates import Candidates

NOON = 1_700_049_600.0  # 2023-11-15 12:00 UTC


@pytest.mark.parametrize(
    ("text", "moment", "after", "by"),
    [
        ("30s", NOON, NOON + 30, NOON),
        ("5m", NOON + 1, NOON + 300, NOON),
        ("2h", NOON - 1, NOON, NOON - 7200),
        ("1d", NOON, NOON + 43200, NOON - 43200),
        ("0 12 * * *", NOON, NOON + 86400, NOON),
        ("0 12 * * *", NOON - 0.5, NOON, NOON - 86400),
        ("0 12 * * *", NOON + 0.5, NOON + 86400, NOON),
        ("*/15 * * * *", NOON + 60, NOON + 900, NOON),
    ],
)
def test_schedules_name_moments(text: str, moment: float, after: float, by: float) -> None:
    assert (Schedule(text).next_after(moment), Schedule(text).newest_by(moment)) == (after, by)


@pytest.mark.parametrize(
    "text", ["", "5", "0m", "5w", "-5m", "every day", "* * * *", "61 * * * *", "* * * * * *"]
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="use a number with s, m, h or d"):
        Schedule(text)


@pytest.mark.parametrize(
    ("last", "now", "missed", "runs"),
    [
        (NOON, NOON + 10, "skip", None),  # done already
        (NOON - 300, NOON, "skip", NOON),  # on time
        (NOON - 300, NOON + 59, "skip", NOON),  # late, but within what a fail-over takes
        (NOON - 300, NOON + 61, "skip", None),  # missed
        (NOON - 300, NOON + 61, "once", NOON),
        (NOON - 3000, NOON + 61, "once", NOON),  # ten were missed: one run
        (NOON + 300, NOON, "once", None),  # the clock went back: not again
    ],
)
def test_what_is_due_follows_the_policy(last: float, now: float, missed: str, runs: float | None) -> None:
    found = due(Schedule("5m"), last=last, now=now, missed=missed, late_seconds=60)  # type: ignore[arg-type]
    assert found.scheduled_at == runs
    assert found.look_at > now


class Book:
    def __init__(self) -> None:
        self.runs: list[float] = []

    async def note(self, run: Run) -> None:
        run.term.check()
        self.runs.append(run.scheduled_at)


async def test_each_moment_is_run_once_though_leaders_come_and_go(candidates: Candidates) -> None:
    log, book = MemoryRunLog(), Book()
    jobs = [Job("tidy", Schedule("30s"), book.note)]
    begun = candidates.clock.time()
    for name in ("a", "b"):
        candidates.runs[name] = asyncio.ensure_future(
            run_every(candidates.election(name), jobs, log, clock=candidates.clock)
        )
    for _ in range(10):
        await candidates.clock.advance(53)
        await candidates.store.break_now()
    moments = [begun + 30 * number for number in range(1, 40)]
    assert book.runs == sorted(set(book.runs))
    assert all(run % 30 == 0 for run in book.runs)
    assert len(book.runs) >= 15, (book.runs, moments)


@pytest.mark.parametrize(("missed", "number"), [("skip", 0), ("once", 1)])
async def test_missed_moments_follow_the_policy(candidates: Candidates, missed: str, number: int) -> None:
    log, book = MemoryRunLog(), Book()
    await log.claim("tidy", candidates.clock.time() - 7200, "", "somebody")
    await candidates.clock.advance(3600 - candidates.clock.time() % 3600 + 600)  # ten past the hour
    jobs = [Job("tidy", Schedule("1h"), book.note, missed=missed)]  # type: ignore[arg-type]
    candidates.runs["a"] = asyncio.ensure_future(
        run_every(candidates.election("a"), jobs, log, clock=candidates.clock)
    )
    await candidates.clock.advance(1200)
    assert len(book.runs) == number
    await candidates.clock.advance(1900)
    assert len(book.runs) == number + 1


async def test_a_job_that_fails_does_not_stop_the_others_or_itself(candidates: Candidates) -> None:
    log, book, tries = MemoryRunLog(), Book(), []

    def fail(run: Run) -> None:
        tries.append(run.scheduled_at)
        raise RuntimeError("no disk")

    async def fail_async(run: Run) -> None:
        fail(run)

    jobs = [Job("bad", Schedule("30s"), fail_async), Job("good", Schedule("30s"), book.note)]
    candidates.runs["a"] = asyncio.ensure_future(
        run_every(candidates.election("a"), jobs, log, clock=candidates.clock)
    )
    await candidates.clock.advance(200)
    assert len(tries) == len(book.runs) >= 6


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="missed must be skip or once"):
        Job("tidy", Schedule("5m"), print, missed="twice")  # type: ignore[arg-type]


async def test_a_run_in_a_thread_has_ended_before_a_successor_begins(candidates: Candidates) -> None:
    """A thread cannot be cancelled: the lease stays taken until it ends, and it can see that its term is over."""
    began, may_end, log = threading.Event(), threading.Event(), list[str]()

    def slow(run: Run) -> None:
        began.set()
        while run.term.held:
            may_end.wait(0.01)
        may_end.wait(10)
        log.append("the thread ended")

    async def next_one(term: object) -> None:
        log.append("the successor began")

    jobs = [Job("tidy", Schedule("30s"), slow)]
    first = asyncio.ensure_future(
        run_every(candidates.election("a"), jobs, MemoryRunLog(), clock=candidates.clock)
    )
    candidates.runs["a"] = first
    await candidates.clock.advance(31)
    while not began.is_set():
        await candidates.clock.settle()
    candidates.campaign(candidates.election("b"), next_one)
    first.cancel()
    for _ in range(50):
        await candidates.clock.settle()
    assert candidates.store._is_leased
    assert (log, first.done()) == ([], False)
    may_end.set()
    while not first.done():
        await candidates.clock.settle()
    await candidates.clock.advance(20)
    assert log == ["the thread ended", "the successor began"]
