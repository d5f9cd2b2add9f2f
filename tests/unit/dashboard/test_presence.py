"""Promises of presence and releases."""

from __future__ import annotations

import pytest

from coordinator.gates.state import GateState
from coordinator.realtime.protocol import GateStatus, ListenerStatus, Receipt, WorkerState
from coordinator.testing.clock import ManualClock
from dashboard.hub.presence import FORGET_SECONDS, SKEW_SECONDS, Presence, quantile

from .making import hello, waiting

GATE = "start-it"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def presence(clock: ManualClock) -> Presence:
    return Presence("here", clock=clock)


def receipt(epoch: int = 1, delay: float = 0.05) -> Receipt:
    return Receipt(GATE, epoch, "push", delay, passed_at=100.0)


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
    presence.told("i-a", WorkerState())
    assert presence.workers()[0].presence == "ok"


def test_a_worker_that_said_it_was_stopping_is_not_missed(presence: Presence) -> None:
    presence.joined(hello("a"))
    presence.told("i-a", WorkerState(mode="stopping"))
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


def test_a_release_expects_those_who_waited_and_counts_each_once(presence: Presence) -> None:
    for name in "abc":
        presence.joined(hello(name, state=waiting()))
    presence.joined(hello("idle"))
    presence.opened(GATE, 1, written_at=99.0)
    presence.passed("i-a", receipt(delay=0.010))
    presence.passed("i-a", receipt(delay=0.020))
    presence.passed("i-b", receipt(delay=0.200))
    release = presence.tracks[GATE].view()
    assert (release.expected, release.passed, release.stragglers) == (3, 2, ("c",))
    assert release.delays_ms == pytest.approx((10.0, 200.0))
    assert release.p99_ms == pytest.approx(200.0)


def test_an_opening_by_somebody_else_is_tracked_from_the_hint_on(presence: Presence) -> None:
    for name in "ab":
        presence.joined(hello(name, state=waiting()))
    presence.hinted(GATE, 4)
    presence.told("i-b", WorkerState(gates=(GateStatus(GATE, "open", 4, passed_epoch=4),)))
    presence.passed("i-b", receipt(epoch=4))
    release = presence.tracks[GATE].view()
    assert (release.epoch, release.expected, release.passed) == (4, 2, 1)
    assert release.written_at == pytest.approx(99.95)


def test_a_receipt_of_a_closed_gate_makes_no_release(presence: Presence) -> None:
    presence.joined(hello("a", state=waiting()))
    presence.joined(hello("forger"))
    presence.passed("i-forger", receipt(epoch=7, delay=-1e10), GateState(name=GATE, epoch=7, state="closed"))
    presence.passed("i-forger", receipt(epoch=6), GateState(name=GATE, epoch=7, state="closed"))
    assert GATE not in presence.tracks


def test_storage_says_when_an_opening_was_written_and_for_whom_not_a_receipt(
    presence: Presence, clock: ManualClock
) -> None:
    presence.joined(hello("a", state=waiting()))
    written = clock.time() - 5
    presence.passed(
        "i-a", receipt(epoch=7, delay=-1e10), GateState(name=GATE, epoch=7, state="open", changed_at=written)
    )
    assert presence.tracks[GATE].view().written_at == written


def test_no_delay_is_longer_than_the_opening_is_old(presence: Presence, clock: ManualClock) -> None:
    presence.joined(hello("a", state=waiting()))
    presence.opened(GATE, 1, written_at=clock.time() - 5)
    presence.passed("i-a", receipt(delay=1e10))
    assert presence.tracks[GATE].view().delays_ms == ((5 + SKEW_SECONDS) * 1000,)


def test_a_receipt_of_an_older_opening_does_not_count_for_the_newer(presence: Presence) -> None:
    presence.joined(hello("a", state=waiting()))
    presence.opened(GATE, 2)
    presence.passed("i-a", receipt(epoch=1))
    assert presence.tracks[GATE].view().passed == 0


def test_a_release_for_a_share_expects_that_share_only(presence: Presence) -> None:
    for number in range(200):
        presence.joined(hello(f"w-{number}", state=waiting()))
    track = presence.opened(GATE, 1, share=0.25)
    assert 25 < len(track.expected) < 75


def test_other_processes_learn_of_local_workers_only(presence: Presence, clock: ManualClock) -> None:
    other = Presence("there", clock=clock)
    presence.joined(hello("a", state=waiting()))
    other.merge("here", presence.local_news())
    assert other.waiting_at(GATE) == {"i-a": "a"}
    assert other.local_news() == []


def test_a_worker_missing_from_its_process_summary_has_left(presence: Presence, clock: ManualClock) -> None:
    presence.joined(hello("a"), home="there")
    presence.merge("there", [])
    assert presence.workers()[0].presence == "late"


def test_a_summary_does_not_overrule_a_worker_connected_here(presence: Presence, clock: ManualClock) -> None:
    presence.joined(hello("a", state=waiting()))
    stale = Presence("there", clock=clock)
    stale.joined(hello("a"))
    presence.merge("there", stale.local_news())
    assert presence.waiting_at(GATE) == {"i-a": "a"}


def test_a_worker_that_reconnects_elsewhere_belongs_there(presence: Presence, clock: ManualClock) -> None:
    presence.joined(hello("a"))
    presence.left("i-a")
    there = Presence("there", clock=clock)
    there.joined(hello("a"))
    presence.merge("there", there.local_news())
    assert presence.entries["i-a"].home == "there"
    assert presence.workers()[0].presence == "ok"


def test_a_process_that_was_away_learns_of_the_release_from_another(presence: Presence) -> None:
    for name in ("a", "b"):
        presence.joined(hello(name, state=waiting()))
    presence.opened(GATE, 3, written_at=90.0)
    presence.pushed(GATE, 3, 91.0)
    presence.passed("i-a", receipt(3, 0.1))
    away = Presence("there")
    away.passed("i-c", receipt(3, 0.3))
    for _ in range(2):  # told again it changes nothing
        away.merge_releases(presence.releases_news())
        release = away.tracks[GATE].view()
        assert (release.expected, release.passed, release.stragglers) == (3, 2, ("b",))
        assert (release.delays_ms, release.pushed_at) == ((100.0, 300.0), 91.0)
    away.opened(GATE, 4)
    away.merge_releases(presence.releases_news())
    assert away.tracks[GATE].epoch == 4


def test_sums_grow_although_a_worker_starts_again_from_zero(presence: Presence) -> None:
    def state(done: int, requests: int) -> WorkerState:
        return WorkerState(
            listeners=(ListenerStatus("orders-in", done=done),), requests={"queue.GetMessages": requests}
        )

    presence.joined(hello("a", instance="1", state=state(0, 5)))
    presence.told("1", state(10, 9))
    presence.joined(hello("a", instance="2", state=state(0, 1)))
    presence.told("2", state(3, 2))
    assert presence.done["orders-in"] == 13
    assert presence.requests["queue.GetMessages"] == 11


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [(0, 0.5, None), (1, 0.99, 0), (100, 0.5, 49), (100, 0.99, 98), (4, 0.5, 1)],
)
def test_a_quantile_is_a_value_that_was_seen(count: int, share: float, expected: float | None) -> None:
    assert quantile([float(number) for number in range(count)], share) == expected
