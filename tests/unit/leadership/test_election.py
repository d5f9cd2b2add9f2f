"""What an election promises, on a clock that tests move."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from coordinator.errors import (
    AccessDenied,
    ConfigurationError,
    KennelError,
    LeadershipLost,
    LeaseCorrupt,
    StorageUnreachable,
)
from coordinator.leadership.lease import LeaderInfo
from coordinator.leadership.term import WITH_PUSH as PUSH
from coordinator.leadership.term import WITHOUT_PUSH as NO_PUSH
from coordinator.leadership.term import LeaseConfig, Term
from coordinator.realtime.bus import LocalBus, Notification
from coordinator.testing.leadership import MemoryLeaseStore, MemoryTermLog
from tests.unit.leadership.candidates import Candidates, cut_off


async def test_one_of_many_leads(candidates: Candidates) -> None:
    for number in range(10):
        candidates.campaign(candidates.election(f"node-{number}"))
    await candidates.clock.advance(120)
    assert [what for what, _, _ in candidates.log] == ["begin"]


async def test_the_epoch_is_raised_before_the_leader_acts(candidates: Candidates) -> None:
    seen: list[tuple[int, int]] = []

    async def task(term: Term) -> str:
        seen.append((term.epoch, (await candidates.store.read()).epoch))
        return "done"

    for _ in range(3):
        assert await candidates.election("node-1").run(task) == "done"
    assert seen == [(1, 1), (2, 2), (3, 3)]


async def fail_over(delay: float, old: LeaseConfig | None = None, new: LeaseConfig | None = None) -> float:
    """Seconds from the death of a leader, so long after a standby joined, until another leads."""
    fresh = Candidates()
    fresh.campaign(fresh.election("old", config=old))
    await fresh.clock.settle()
    fresh.campaign(fresh.election(f"new-{delay}", config=new))
    await fresh.clock.advance(20 + delay)
    # As kill -9 does: nothing of the old leader runs any more, and its lease stays.
    lease, until = fresh.store.holder_id, fresh.store._until
    fresh.runs.pop("old").cancel()
    await fresh.clock.settle()
    fresh.store.holder_id, fresh.store._until = lease, until
    killed = fresh.clock.monotonic()
    while not any(line[0] == "begin" and line[2] == 2 for line in fresh.log):
        await fresh.clock.advance(0.05)
        assert fresh.clock.monotonic() - killed < 100, f"killed {delay} s after a standby joined"
    for run in fresh.runs.values():
        run.cancel()
    await fresh.clock.settle()
    return fresh.clock.monotonic() - killed


async def test_a_dead_leader_is_followed_within_a_lease_and_a_second() -> None:
    for delay in (0.1, 1.0, 2.5, 4.0, 4.9, 5.1, 9.9):
        assert await fail_over(delay, PUSH, PUSH) <= 16.0, f"killed {delay} s after a renewal"


async def test_without_push_a_standby_follows_sooner_than_the_source_s_with_as_many_requests() -> None:
    """The source's tries each 16.25 s, at moments that have nothing to do with the renewals: 31.25 s at worst, 17.5 on
    average for renewals each 11.25 s."""
    times = [await fail_over(16.25 * number / 65) for number in range(65)]
    assert max(times) <= 20.5
    assert sum(times) / len(times) <= 12.5


@pytest.mark.parametrize(("old", "new"), [(PUSH, NO_PUSH), (NO_PUSH, PUSH), (LeaseConfig(40), NO_PUSH)])
async def test_a_standby_with_other_times_follows_within_the_leader_s_lease_and_a_second(
    old: LeaseConfig, new: LeaseConfig
) -> None:
    times = [await fail_over(2.5 * number, old, new) for number in range(16)]
    assert max(times) <= old.lease_seconds + 1


@pytest.mark.parametrize("old", [PUSH, NO_PUSH])
@pytest.mark.parametrize("new", [PUSH, NO_PUSH])
@pytest.mark.parametrize("trouble", ["it is cut off", "the blob is deleted"])
async def test_a_successor_with_other_times_begins_only_when_the_former_leader_has_ended(
    old: LeaseConfig, new: LeaseConfig, trouble: str
) -> None:
    for delay in range(0, 18, 3):
        fresh, history = Candidates(), MemoryTermLog()
        store = Apart(fresh.store)
        fresh.campaign(fresh.election("old", store=store, config=old, history=history))  # type: ignore[arg-type]
        await fresh.clock.settle()
        successor = fresh.election("new", config=new, history=history)
        if trouble == "it is cut off":
            fresh.campaign(successor)
        await fresh.clock.advance(20 + delay)
        store.is_cut_off = True
        if trouble == "the blob is deleted":
            fresh.campaign(successor)
            fresh.store._exists, fresh.store.holder_id = False, ""
            fresh.store._info = LeaderInfo(fresh.store.name)
        await fresh.clock.advance(60)
        assert fresh.log == [("begin", "old", 1), ("end", "old", 1), ("begin", "new", 2)]
        fresh.runs.pop("new").cancel()
        fresh.runs.pop("old").cancel()
        await fresh.clock.advance(60)


@pytest.mark.parametrize("config", [PUSH, NO_PUSH])
@pytest.mark.parametrize("trouble", ["slow request", "slow answer", "lost request", "lost answer"])
async def test_a_renewal_that_is_slow_or_lost_ends_no_term(
    candidates: Candidates, config: LeaseConfig, trouble: str
) -> None:
    candidates.campaign(candidates.election("node-1", config=config))
    await candidates.clock.advance(1)
    renewals = 0

    async def hold_up(operation: str) -> None:
        nonlocal renewals
        renewals += 1
        if trouble.startswith("slow"):
            await candidates.clock.sleep(2.0)
        elif renewals % 2:
            await asyncio.Event().wait()

    setattr(candidates.store, "before" if trouble.endswith("request") else "after", hold_up)
    await candidates.clock.advance(100)
    assert renewals >= 10
    assert candidates.log == [("begin", "node-1", 1)]


async def test_a_leader_that_storage_forgot_stops_before_its_lease_can_have_expired(
    candidates: Candidates,
) -> None:
    """Mistake 5: the deadline counts from the sending of the newest confirmed renewal."""
    candidates.campaign(candidates.election("node-1", lease_seconds=15))
    await candidates.clock.advance(12)  # the renewal at 10 s was confirmed
    cut_off(candidates.store)
    await candidates.clock.advance(11.4)
    assert candidates.log == [("begin", "node-1", 1)]
    await candidates.clock.advance(0.2)
    assert candidates.log == [("begin", "node-1", 1), ("end", "node-1", 1)]
    assert candidates.store._is_leased


async def test_a_lost_lease_is_noticed_at_its_deadline_and_not_at_the_next_tick(
    candidates: Candidates,
) -> None:
    """Mistake 6: even if the renewal's request hangs."""
    candidates.campaign(candidates.election("node-1", lease_seconds=15))
    await candidates.clock.advance(7)

    async def hang(operation: str) -> None:
        await asyncio.Event().wait()

    candidates.store.before = hang  # type: ignore[method-assign]
    await candidates.clock.advance(11.6)
    assert candidates.log[-1] == ("end", "node-1", 1)


async def test_one_lost_renewal_ends_no_term(candidates: Candidates) -> None:
    """Mistake 6."""
    candidates.campaign(candidates.election("node-1"))
    for trouble in ("request", "answer"):
        await candidates.clock.advance(4)
        lost = 0

        async def lose(operation: str) -> None:
            nonlocal lost
            lost += 1
            if lost <= 2:
                raise StorageUnreachable("connection reset", maybe_done=True)

        setattr(candidates.store, "before" if trouble == "request" else "after", lose)
        await candidates.clock.advance(26)
        assert lost > 2
    assert candidates.log == [("begin", "node-1", 1)]


async def test_a_taken_lease_ends_the_term_at_the_next_renewal(candidates: Candidates) -> None:
    candidates.campaign(candidates.election("node-1", lease_seconds=15))
    await candidates.clock.advance(7)
    await candidates.store.break_now()
    await candidates.store.acquire("another", 15)
    await candidates.clock.advance(3.1)
    assert candidates.log[-1] == ("end", "node-1", 1)


class Apart:
    """The same lease for one more node, whose requests are counted apart."""

    def __init__(self, store: MemoryLeaseStore) -> None:
        self.name, self.asked, self.is_cut_off = store.name, 0, False
        self._store = store

    def __getattr__(self, operation: str) -> Any:
        self.asked += 1
        if self.is_cut_off:
            raise StorageUnreachable("connection refused")
        return getattr(self._store, operation)


class Push(LocalBus):
    @property
    def is_connected(self) -> bool:
        return True


@pytest.mark.parametrize(("push", "leads", "waits"), [(False, 222, 222), (True, 360, 60)])
async def test_an_hour_costs(candidates: Candidates, push: bool, leads: int, waits: int) -> None:
    bus = Push() if push else LocalBus()
    leader, standby = Apart(candidates.store), Apart(candidates.store)
    candidates.campaign(candidates.election("leader", bus=bus, store=leader))  # type: ignore[arg-type]
    await candidates.clock.advance(1)
    candidates.campaign(candidates.election("standby", bus=bus, store=standby))  # type: ignore[arg-type]
    await candidates.clock.advance(20)
    leader.asked = standby.asked = 0
    await candidates.clock.advance(3600)
    assert leader.asked <= leads
    assert standby.asked <= waits
    assert len(candidates.log) == 1


async def test_a_standby_checks_as_often_as_its_leader_renews(candidates: Candidates) -> None:
    standby = Apart(candidates.store)
    candidates.campaign(candidates.election("leader", config=LeaseConfig(60)))
    await candidates.clock.advance(1)
    candidates.campaign(candidates.election("standby", store=standby))  # type: ignore[arg-type]
    await candidates.clock.advance(60)
    standby.asked = 0
    await candidates.clock.advance(3600)
    assert standby.asked == 90


@pytest.mark.parametrize("silent", ["renewals are heard", "the hub swallows them"])
@pytest.mark.parametrize("delay", [0.1, 3.0, 6.0, 9.9])
async def test_with_push_too_a_dead_leader_is_followed_within_a_lease_and_a_second(
    silent: str, delay: float, candidates: Candidates
) -> None:
    bus = Push()
    if silent == "the hub swallows them":
        bus.deliver = lambda hint: None  # type: ignore[method-assign]
    candidates.campaign(candidates.election("old", bus=bus))
    await candidates.clock.settle()
    candidates.campaign(candidates.election("new", bus=bus))
    await candidates.clock.advance(100 + delay)
    lease, until = candidates.store.holder_id, candidates.store._until
    cut_off(candidates.store)
    candidates.runs["old"].cancel()  # as kill -9 does: its lease stays
    await candidates.clock.settle()
    candidates.store.holder_id, candidates.store._until = lease, until
    del candidates.store.before
    await candidates.clock.advance(16)
    assert ("begin", "new", 2) in candidates.log


async def test_the_lease_is_given_back_only_when_the_work_has_ended(candidates: Candidates) -> None:
    states: list[bool] = []

    async def slow_to_stop(term: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await candidates.clock.sleep(3)
            states.append(candidates.store._is_leased and term.held)

    run = candidates.campaign(candidates.election("node-1"), slow_to_stop)
    await candidates.clock.advance(7)
    run.cancel()
    await candidates.clock.advance(4)
    assert states == [True]
    assert not candidates.store._is_leased


async def test_a_term_is_over_before_its_lease_is_free_although_the_answer_is_lost(
    candidates: Candidates,
) -> None:
    held: list[bool] = []
    election = candidates.election("node-1")
    candidates.campaign(election)
    await candidates.clock.advance(1)
    term = election.term
    assert term is not None

    async def lose(operation: str) -> None:
        if operation == "release":
            held.append(term.held)
            raise StorageUnreachable("connection reset", maybe_done=True)

    candidates.store.after = lose  # type: ignore[method-assign]
    assert election.step_down()
    await candidates.clock.advance(1)
    assert held
    assert not any(held)


async def test_work_that_will_not_stop_does_not_keep_the_lead(candidates: Candidates) -> None:
    async def stubborn(term: Term) -> None:
        until = candidates.clock.monotonic() + 100
        while (left := until - candidates.clock.monotonic()) > 0:
            with suppress(asyncio.CancelledError):
                await candidates.clock.sleep(left)

    election = candidates.election("node-1")
    candidates.campaign(election, stubborn)
    await candidates.clock.advance(7)
    assert election.step_down()
    candidates.campaign(candidates.election("node-2"))
    await candidates.clock.advance(26)
    assert candidates.log == [("begin", "node-2", 2)]
    await candidates.clock.advance(100)


async def test_stepping_down_lets_another_lead(candidates: Candidates) -> None:
    bus = LocalBus()
    first = candidates.election("node-1", bus=bus)
    candidates.campaign(first)
    await candidates.clock.settle()
    candidates.campaign(candidates.election("node-2", bus=bus))
    await candidates.clock.advance(12)
    assert first.step_down()
    await candidates.clock.advance(0.5)
    assert candidates.log == [("begin", "node-1", 1), ("end", "node-1", 1), ("begin", "node-2", 2)]
    assert first.role == "standby"
    assert not first.step_down()


async def test_an_unhealthy_leader_steps_down(candidates: Candidates) -> None:
    healthy = True
    election = candidates.election("node-1", health=lambda: healthy)
    candidates.campaign(election)
    await candidates.clock.advance(12)
    assert election.role == "leader"
    healthy = False
    await candidates.clock.advance(3.1)
    assert candidates.log[-1] == ("end", "node-1", 1)
    assert not candidates.store._is_leased


async def test_a_health_check_that_hangs_or_fails_is_a_no(candidates: Candidates) -> None:
    async def hang() -> bool:
        await asyncio.Event().wait()
        return True

    def fail() -> bool:
        raise RuntimeError("no database")

    for number, check in enumerate((hang, fail)):
        fresh = Candidates()
        fresh.campaign(fresh.election(f"node-{number}", health=check))
        await fresh.clock.advance(14)
        assert fresh.log[-1][0] == "end"
        fresh.runs[f"node-{number}"].cancel()
        await fresh.clock.advance(60)


async def test_an_error_of_the_task_is_raised_and_frees_the_lease(candidates: Candidates) -> None:
    async def fail(term: Term) -> None:
        raise RuntimeError("the books do not balance")

    with pytest.raises(RuntimeError, match="balance"):
        await candidates.election("node-1").run(fail)
    assert not candidates.store._is_leased


async def test_a_task_that_finds_its_term_lost_campaigns_again(candidates: Candidates) -> None:
    epochs: list[int] = []

    async def check(term: Term) -> None:
        epochs.append(term.epoch)
        if term.epoch == 1:
            term.end("test")
        term.check()

    candidates.campaign(candidates.election("node-1"), check)
    await candidates.clock.advance(30)
    assert epochs == [1, 2]


async def test_a_plain_function_leads_in_a_thread(candidates: Candidates) -> None:
    def plain(term: Term) -> int:
        term.check()
        return term.epoch

    assert await candidates.election("node-1").run(plain) == 1


async def test_everybody_who_waits_for_the_end_of_a_term_is_told_why(candidates: Candidates) -> None:
    terms: list[Term] = []

    async def task(term: Term) -> None:
        terms.append(term)
        await asyncio.Event().wait()

    election = candidates.election("node-1", lease_seconds=15)
    candidates.campaign(election, task)
    await candidates.clock.advance(1)

    async def told() -> str:
        return await terms[0].lost

    waiting = [asyncio.ensure_future(told()) for _ in range(3)]
    await candidates.clock.advance(5)
    assert not any(task.done() for task in waiting)
    await candidates.store.break_now()
    await candidates.clock.advance(5)
    assert all("taken away" in task.result() for task in waiting)
    with pytest.raises(LeadershipLost, match="term 1 of node-1 is over"):
        terms[0].check()


async def test_changes_are_told(candidates: Candidates) -> None:
    told: list[tuple[str, int]] = []
    election = candidates.election(
        "node-1", on_change=lambda role, term: told.append((role, term.epoch if term else 0))
    )
    run = candidates.campaign(election)
    await candidates.clock.advance(1)
    run.cancel()
    await candidates.clock.advance(1)
    assert told == [("standby", 0), ("leader", 1), ("standby", 0), ("stopped", 0)]


async def test_the_status_tells_what_is_left_of_the_lease_and_has_news_at_each_renewal(
    candidates: Candidates,
) -> None:
    election = candidates.election("a", lease_seconds=30)
    told: list[tuple[str, float]] = []

    def news() -> None:
        status = election.status()
        told.append((status.role, status.remaining_seconds))

    election.on_status = news
    candidates.campaign(election)
    await candidates.clock.advance(1)
    assert told[:2] == [("standby", 0.0), ("leader", 30.0)]
    began = len(told)
    await candidates.clock.advance(80)  # renewed each 20 s
    assert told[began:] == [("leader", 30.0)] * 4
    left = election.status().remaining_seconds
    await candidates.clock.advance(3)
    assert election.status().remaining_seconds == pytest.approx(left - 3)
    assert election.status().lease_seconds == 30


async def test_a_wrong_credential_is_raised(candidates: Candidates) -> None:
    async def denied(operation: str) -> None:
        raise AccessDenied("403")

    candidates.store.before = denied  # type: ignore[method-assign]
    with pytest.raises(AccessDenied):
        await candidates.election("node-1").run(candidates.lead)


async def test_an_unreachable_store_is_waited_for(candidates: Candidates) -> None:
    cut_off(candidates.store)
    candidates.campaign(candidates.election("node-1"))
    await candidates.clock.advance(60)
    del candidates.store.before
    await candidates.clock.advance(5)
    assert candidates.log == [("begin", "node-1", 1)]


async def test_a_lost_answer_to_the_acquiring_request_costs_no_lease(candidates: Candidates) -> None:
    lost = 0

    async def lose(operation: str) -> None:
        nonlocal lost
        if operation == "acquire" and not lost:
            lost += 1
            raise StorageUnreachable("connection reset", maybe_done=True)

    candidates.store.after = lose  # type: ignore[method-assign]
    candidates.campaign(candidates.election("node-1"))
    await candidates.clock.advance(7)
    assert (lost, candidates.log) == (1, [("begin", "node-1", 1)])


async def test_one_election_object_runs_once(candidates: Candidates) -> None:
    election = candidates.election("node-1")
    candidates.campaign(election)
    await candidates.clock.settle()
    with pytest.raises(KennelError, match="runs already"):
        await election.run(candidates.lead)


async def test_a_broken_lease_is_noticed_at_once_with_a_hint(candidates: Candidates) -> None:
    bus = LocalBus()
    candidates.campaign(candidates.election("node-1", bus=bus))
    await candidates.clock.advance(3)
    await candidates.store.break_now()
    await bus.publish(Notification("election:test-election", epoch=2))
    await candidates.clock.advance(0.1)
    assert ("end", "node-1", 1) in candidates.log


async def test_hints_that_lie_cost_at_most_a_request_a_second(candidates: Candidates) -> None:
    bus = LocalBus()
    candidates.campaign(candidates.election("node-1", bus=bus))
    await candidates.clock.advance(3)
    candidates.store.asked.clear()
    for _ in range(100):
        await bus.publish(Notification("election:test-election", epoch=99))
        await candidates.clock.advance(0.1)
    assert len(candidates.store.asked) <= 12
    assert len(candidates.log) == 1


async def test_everybody_learns_who_leads(candidates: Candidates) -> None:
    bus, seen = Push(), dict[str, list[str]](a=[], b=[])
    for name in seen:
        candidates.campaign(candidates.election(name, bus=bus, on_new_leader=seen[name].append))
        await candidates.clock.advance(1)
    candidates.runs["a"].cancel()
    await candidates.clock.advance(30)
    assert seen == {"a": ["a", "b"], "b": ["a", "b"]}


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_cancelling_a_run_however_often_frees_the_lease_and_ends_the_work(
    candidates: Candidates, times: int
) -> None:
    async def slow_to_stop(term: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await candidates.clock.sleep(3)
            candidates.log.append(("end", term.holder, term.epoch))

    run = candidates.campaign(candidates.election("node-1"), slow_to_stop)
    await candidates.clock.advance(7)
    for _ in range(times):
        run.cancel()
        await candidates.clock.advance(0.5)
    await candidates.clock.advance(5)
    assert run.cancelled()
    assert candidates.log == [("end", "node-1", 1)]
    assert not candidates.store._is_leased


async def test_a_thread_that_leads_has_ended_before_its_successor_begins(candidates: Candidates) -> None:
    began, may_end, log = threading.Event(), threading.Event(), list[str]()

    def plain(term: Term) -> None:
        began.set()
        while term.held:
            may_end.wait(0.01)
        may_end.wait(10)
        log.append("the thread ended")

    first = candidates.election("node-1")
    run = candidates.campaign(first, plain)  # type: ignore[arg-type]
    while not began.is_set():
        await candidates.clock.settle()
    run.cancel()
    for _ in range(50):
        await candidates.clock.settle()
    assert candidates.store._is_leased
    assert not run.done()
    may_end.set()
    while not run.done():
        await candidates.clock.settle()
    assert log == ["the thread ended"]
    assert not candidates.store._is_leased


async def test_a_record_that_went_back_is_raised_above_all_and_the_former_leader_is_outlasted(
    candidates: Candidates,
) -> None:
    history = MemoryTermLog()
    for _ in range(5):
        await candidates.election("node-1", history=history).run(_done)
    candidates.store._info = LeaderInfo(candidates.store.name, etag=candidates.store._version())  # wiped
    candidates.campaign(candidates.election("node-2", history=history))
    await candidates.clock.advance(19.9)
    assert candidates.log == []
    await candidates.clock.advance(1)
    assert candidates.log == [("begin", "node-2", 6)]
    await candidates.clock.advance(60)
    assert len(candidates.log) == 1


async def test_a_damaged_record_without_a_history_leads_nobody(candidates: Candidates) -> None:
    await candidates.election("node-1").run(_done)
    candidates.store._info = replace(candidates.store._info, epoch=0, problem="its epoch is 'abc'")
    with pytest.raises(LeaseCorrupt, match="set the metadata `epoch`"):
        await candidates.election("node-2").run(_done)
    assert not candidates.store._is_leased


async def _done(term: Term) -> None: ...


@pytest.mark.parametrize(
    "options",
    [
        {"renew_seconds": 14.0},
        {"renew_seconds": 0.5},
        {"renew_deadline_seconds": 15.0},
        {"renew_deadline_seconds": 9.0},
        {"retry_seconds": 0.0},
        {"retry_seconds": 16.0},
        {"renew_seconds": float("nan")},
    ],
)
def test_figures_that_do_not_fit_each_other_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="needed|must be"):
        LeaseConfig(**options)  # type: ignore[arg-type]


def test_a_lease_goes_to_the_service_as_a_whole_number() -> None:
    assert repr(LeaseConfig(15.0).lease_seconds) == "15"  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [14, 61, 15.5, 0, -1])
def test_a_lease_outside_the_services_bounds_is_refused(seconds: int) -> None:
    with pytest.raises(ConfigurationError, match="from 15 to 60"):
        LeaseConfig(seconds)


# --- mutex ------------------------------------------------------------------------------------------------------
