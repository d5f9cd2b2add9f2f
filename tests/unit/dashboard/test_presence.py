"""Promises of presence."""

from __future__ import annotations

import pytest

from coordinator.realtime.protocol import ListenerStatus, WorkerState
from coordinator.testing.clock import ManualClock
from dashboard.live.presence import FORGET_SECONDS, Presence, Summary, pace_of

from .making import hello, waiting

GATE = "start-it"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def presence(clock: ManualClock) -> Presence:
    return Presence("here", clock=clock)


@pytest.mark.parametrize(
    ("silent_seconds", "expected"), [(0, "ok"), (2.9, "ok"), (3.1, "late"), (9.9, "late"), (10.1, "lost")]
)
async def test_a_silent_worker_becomes_late_then_lost(
    presence: Presence, clock: ManualClock, silent_seconds: float, expected: str
) -> None:
    presence.joined(hello("a"))
    await clock.advance(silent_seconds)
    assert presence.workers()[0].presence == expected


async def test_a_heartbeat_makes_a_late_worker_ok_again(presence: Presence, clock: ManualClock) -> None:
    presence.joined(hello("a"))
    await clock.advance(5)
    presence.report("i-a", WorkerState())
    assert presence.workers()[0].presence == "ok"


def test_a_worker_that_said_it_was_stopping_is_not_missed(presence: Presence) -> None:
    presence.joined(hello("a"))
    presence.report("i-a", WorkerState(mode="stopping"))
    presence.left("i-a")
    assert presence.workers() == []


async def test_a_worker_that_vanished_stays_to_be_missed_and_is_forgotten_at_last(
    presence: Presence, clock: ManualClock
) -> None:
    presence.joined(hello("a"))
    presence.left("i-a")
    await clock.advance(11)
    presence.forget()
    assert presence.workers()[0].presence == "lost"
    await clock.advance(FORGET_SECONDS)
    presence.forget()
    assert presence.workers() == []


def test_a_restarted_worker_takes_the_place_of_its_lost_self(presence: Presence, clock: ManualClock) -> None:
    presence.joined(hello("a", instance="first"))
    presence.left("first")
    presence.joined(hello("a", instance="second"))
    assert [view.instance for view in presence.workers()] == ["second"]


def test_other_processes_learn_of_local_workers_only(presence: Presence, clock: ManualClock) -> None:
    other = Presence("there", clock=clock)
    presence.joined(hello("a", state=waiting()))
    other.merge("here", presence.summary()[0])
    assert other.waiting_at(GATE) == {"i-a": "a"}
    assert other.local() == []


async def test_a_summary_brings_what_is_new_in_portions_and_names_all(
    monkeypatch: pytest.MonkeyPatch, presence: Presence, clock: ManualClock
) -> None:
    monkeypatch.setattr("dashboard.live.presence.MOST_NEWS", 2)
    for name in "abc":
        presence.joined(hello(name))
        await clock.advance(0.1)
    first, told = presence.summary()
    assert [news.hello.worker for news in first.news] == ["a", "b"]
    assert first.present == ["i-a", "i-b", "i-c"]
    second, told = presence.summary(told)
    assert [news.hello.worker for news in second.news] == ["c"]
    assert presence.summary(told)[0].news == []
    presence.report("i-a", waiting())
    assert [news.hello.state for news in presence.summary(told)[0].news] == [waiting()]


async def test_the_larger_the_fleet_the_less_often_each_worker_reports_and_is_missed(
    clock: ManualClock,
) -> None:
    presence = Presence("here", clock=clock)
    paces = []
    for number in range(1_300):
        presence.joined(hello(f"w-{number}"))
        if presence.set_pace():
            paces.append((number + 1, presence.pace))
    assert paces == [(501, 2.0), (1_001, 3.0)]
    assert {pace_of(1), pace_of(100), pace_of(10_000), pace_of(99_999)} == {1.0, 10.0}
    await clock.advance(6.9)
    assert {view.presence for view in presence.workers()} == {"ok"}
    await clock.advance(8.0)
    assert {view.presence for view in presence.workers()} == {"late"}
    await clock.advance(2.0)
    assert {view.presence for view in presence.workers()} == {"lost"}
    for number in range(425):  # 875 are left: with a quarter more it is still 3
        presence.report(f"i-w-{number}", WorkerState(mode="stopping"))
        presence.left(f"i-w-{number}")
        presence.set_pace()
    assert presence.pace == 3.0
    for number in range(425, 550):
        presence.report(f"i-w-{number}", WorkerState(mode="stopping"))
        presence.left(f"i-w-{number}")
        presence.set_pace()
    assert presence.pace == 2.0


def test_a_worker_missing_from_its_process_summary_has_left(presence: Presence, clock: ManualClock) -> None:
    presence.joined(hello("a"), process_id="there")
    presence.merge("there", Summary([]))
    assert presence.workers()[0].presence == "late"


def test_a_summary_does_not_overrule_a_worker_connected_here(presence: Presence, clock: ManualClock) -> None:
    presence.joined(hello("a", state=waiting()))
    stale = Presence("there", clock=clock)
    stale.joined(hello("a"))
    presence.merge("there", stale.summary()[0])
    assert presence.waiting_at(GATE) == {"i-a": "a"}


def test_a_worker_that_reconnects_elsewhere_belongs_there(presence: Presence, clock: ManualClock) -> None:
    presence.joined(hello("a"))
    presence.left("i-a")
    there = Presence("there", clock=clock)
    there.joined(hello("a"))
    presence.merge("there", there.summary()[0])
    assert presence.entries["i-a"].process_id == "there"
    assert presence.workers()[0].presence == "ok"


def test_sums_grow_although_a_worker_starts_again_from_zero(presence: Presence) -> None:
    def state(done: int, requests: int) -> WorkerState:
        return WorkerState(
            listeners=(ListenerStatus("orders-in", done=done),), requests={"queue.GetMessages": requests}
        )

    presence.joined(hello("a", instance="1", state=state(0, 5)))
    presence.report("1", state(10, 9))
    presence.joined(hello("a", instance="2", state=state(0, 1)))
    presence.report("2", state(3, 2))
    assert presence.done["orders-in"] == 13
    assert presence.requests["queue.GetMessages"] == 11
