"""Promises of releases: who is expected, who counts, and what other processes learn."""

from __future__ import annotations

import pytest

from coordinator.gates.state import GateState
from coordinator.realtime.protocol import GateStatus, Receipt, WorkerState
from coordinator.testing.clock import ManualClock
from dashboard.live.fleet import ReleaseView
from dashboard.live.presence import Presence
from dashboard.live.releases import SKEW_SECONDS, ReleaseTracker, quantile

from .making import hello, releases_of, waiting

GATE = "start-it"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def presence(clock: ManualClock) -> Presence:
    return Presence("here", clock=clock)


@pytest.fixture
def releases(presence: Presence, clock: ManualClock) -> ReleaseTracker:
    return releases_of(presence, clock)


def shown(releases: ReleaseTracker) -> ReleaseView:
    return releases.views()[GATE]


def receipt(epoch: int = 1, delay: float = 0.05) -> Receipt:
    return Receipt(GATE, epoch, "push", delay, passed_at=100.0)


def test_a_release_expects_those_who_waited_and_counts_each_once(
    presence: Presence, releases: ReleaseTracker
) -> None:
    for name in "abc":
        presence.joined(hello(name, state=waiting()))
    presence.joined(hello("idle"))
    releases.begin(GATE, 1, written_at=99.0)
    releases.count("i-a", receipt(delay=0.010))
    releases.count("i-a", receipt(delay=0.020))
    releases.count("i-b", receipt(delay=0.200))
    release = shown(releases)
    assert (release.expected, release.passed, release.stragglers) == (3, 2, ("c",))
    assert release.delays_ms == pytest.approx((10.0, 200.0))
    assert release.p99_ms == pytest.approx(200.0)


def test_an_opening_by_somebody_else_is_tracked_from_the_notice_on(
    presence: Presence, releases: ReleaseTracker
) -> None:
    for name in "ab":
        presence.joined(hello(name, state=waiting()))
    releases.notice(GATE, 4)
    presence.report("i-b", WorkerState(gates=(GateStatus(GATE, "open", 4, passed_epoch=4),)))
    releases.count("i-b", receipt(epoch=4))
    release = shown(releases)
    assert (release.epoch, release.expected, release.passed) == (4, 2, 1)
    assert release.written_at == pytest.approx(99.95)


def test_a_receipt_of_a_closed_gate_makes_no_release(presence: Presence, releases: ReleaseTracker) -> None:
    presence.joined(hello("a", state=waiting()))
    presence.joined(hello("forger"))
    releases.gates.sampled((GateState(name=GATE, epoch=7, state="closed"),), {}, None)
    releases.count("i-forger", receipt(epoch=7, delay=-1e10))
    releases.count("i-forger", receipt(epoch=6))
    assert GATE not in releases.views()


def test_storage_says_when_an_opening_was_written_and_for_whom_not_a_receipt(
    presence: Presence, releases: ReleaseTracker, clock: ManualClock
) -> None:
    presence.joined(hello("a", state=waiting()))
    written = clock.time() - 5
    releases.gates.sampled((GateState(name=GATE, epoch=7, state="open", changed_at=written),), {}, None)
    releases.count("i-a", receipt(epoch=7, delay=-1e10))
    assert shown(releases).written_at == written


def test_no_delay_is_longer_than_the_opening_is_old(
    presence: Presence, releases: ReleaseTracker, clock: ManualClock
) -> None:
    presence.joined(hello("a", state=waiting()))
    releases.begin(GATE, 1, written_at=clock.time() - 5)
    releases.count("i-a", receipt(delay=1e10))
    assert shown(releases).delays_ms == ((5 + SKEW_SECONDS) * 1000,)


def test_a_receipt_of_an_older_opening_does_not_count_for_the_newer(
    presence: Presence, releases: ReleaseTracker
) -> None:
    presence.joined(hello("a", state=waiting()))
    releases.begin(GATE, 2)
    releases.count("i-a", receipt(epoch=1))
    assert shown(releases).passed == 0


def test_a_release_for_a_share_expects_that_share_only(presence: Presence, releases: ReleaseTracker) -> None:
    for number in range(200):
        presence.joined(hello(f"w-{number}", state=waiting()))
    releases.begin(GATE, 1, share=0.25)
    assert 25 < shown(releases).expected < 75


async def test_a_release_is_held_written_begun_pushed_and_known_in_this_order(
    presence: Presence, releases: ReleaseTracker, clock: ManualClock
) -> None:
    for name in ("a", "b"):
        presence.joined(hello(name, state=waiting()))

    async def write() -> GateState:
        assert releases.holds_pages
        presence.report("i-b", WorkerState(gates=(GateStatus(GATE, "open", 3, passed_epoch=3),)))
        releases.passed("i-b", receipt(3))  # faster than the answer to the write
        return GateState(name=GATE, epoch=3, state="open", changed_at=clock.time())

    opened = await releases.release(GATE, write)
    release = shown(releases)
    assert (release.epoch, release.passed, release.written_at) == (3, 1, opened.changed_at)
    assert release.stragglers == ("a",)
    assert release.pushed_at is not None
    assert (releases.gates.get(GATE), releases.epoch_of(GATE)) == (opened, 3)


def test_a_process_that_was_away_learns_of_the_release_from_another(
    presence: Presence, releases: ReleaseTracker, clock: ManualClock
) -> None:
    for name in ("a", "b"):
        presence.joined(hello(name, state=waiting()))
    releases.begin(GATE, 3, written_at=90.0)
    releases.count("i-a", receipt(3, 0.1))
    away = releases_of(Presence("there", clock=clock), clock)
    away.count("i-c", receipt(3, 0.3))
    for _ in range(2):  # the same news again change nothing
        away.merge(releases.news())
        release = shown(away)
        assert (release.expected, release.passed, release.stragglers) == (3, 2, ("b",))
        assert release.delays_ms == (100.0, 300.0)
    away.begin(GATE, 4)
    away.merge(releases.news())
    assert shown(away).epoch == 4


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [(0, 0.5, None), (1, 0.99, 0), (100, 0.5, 49), (100, 0.99, 98), (4, 0.5, 1)],
)
def test_a_quantile_is_a_value_that_was_seen(count: int, share: float, expected: float | None) -> None:
    assert quantile([float(number) for number in range(count)], share) == expected
