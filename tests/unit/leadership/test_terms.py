"""What a term says of itself, and whether blocking locks give back what they hold."""

from __future__ import annotations

import pytest
from anyio.from_thread import start_blocking_portal

from coordinator.errors import ConfigurationError, KennelError, LeadershipLost, LockTimeout
from coordinator.leadership.candidate import Candidate
from coordinator.leadership.mutex import BlobDistributedMutex
from coordinator.leadership.repeating import lead_on
from coordinator.leadership.term import LeaseConfig, Term
from coordinator.realtime.bus import LocalBus
from tests.unit.leadership.candidates import Candidates


async def led(candidates: Candidates) -> Term:
    candidate = Candidate(
        candidates.store, identity="node-1", bus=LocalBus, clock=candidates.clock, config=LeaseConfig()
    )
    term = await candidate.try_acquire()
    assert term is not None
    return term


async def test_a_term_says_how_long_it_lasts_and_how_long_it_is_overdue(candidates: Candidates) -> None:
    term = await led(candidates)
    assert term.overdue_seconds == 0 and term.lease_left(2.0) == pytest.approx(term.remaining_seconds + 2.0)
    assert "epoch=1" in repr(term) and "held=True" in repr(term)
    deadline = term.remaining_seconds
    await candidates.clock.advance(deadline + 5.0)
    assert (term.held, term.overdue_seconds, term.lease_left(2.0)) == (False, pytest.approx(5.0), 0.0)
    assert term.reason == "its lease could not be renewed in time"


async def test_a_term_too_short_for_an_effect_refuses_it(candidates: Candidates) -> None:
    term = await led(candidates)
    term.check(needs_seconds=1.0)
    with pytest.raises(LeadershipLost, match=r"has [0-9.]+ s left; 600 s are needed"):
        term.check(needs_seconds=600.0)


async def test_what_was_lost_stays_lost(candidates: Candidates) -> None:
    term = await led(candidates)
    term.end("its lease was broken")
    term.end("of another reason")
    assert not term.extend(candidates.clock.monotonic() + 100) and term.is_ended
    assert await term.lost == "its lease was broken"
    with pytest.raises(LeadershipLost, match="term 1 of node-1 is over: its lease was broken"):
        term.check()


async def test_a_way_to_lead_on_that_nobody_knows_is_refused(candidates: Candidates) -> None:
    with pytest.raises(ConfigurationError, match="again must be epoch or campaign, got 'always'"):
        await lead_on(candidates.election("node-1"), candidates.lead, again="always", clock=candidates.clock)  # type: ignore[arg-type]


def test_a_thread_holds_a_lock_for_its_block_and_gives_it_back() -> None:
    candidates, bus = Candidates(), LocalBus()
    with start_blocking_portal() as portal:
        lock, other = (
            BlobDistributedMutex(
                candidates.store,
                identity=name,
                bus=lambda: bus,
                clock=candidates.clock,
                portal=lambda: portal,
            )
            for name in ("node-1", "node-2")
        )
        with lock.hold_blocking() as term:
            assert term.held
            with pytest.raises(LockTimeout, match="was not free within 0 s"), other.hold_blocking(timeout=0):
                pass
        with other.hold_blocking(timeout=0) as later:
            assert later.epoch == term.epoch + 1


def test_a_thread_hears_after_its_block_that_the_lock_was_lost() -> None:
    candidates, bus = Candidates(), LocalBus()
    with start_blocking_portal() as portal:
        lock = BlobDistributedMutex(
            candidates.store,
            identity="node-1",
            bus=lambda: bus,
            clock=candidates.clock,
            portal=lambda: portal,
        )
        with pytest.raises(LeadershipLost, match="was lost: an operator broke it"):
            with lock.hold_blocking() as term:
                portal.call(term.end, "an operator broke it")


async def test_a_blocking_lock_stops_no_event_loop_and_needs_another(candidates: Candidates) -> None:
    bus = LocalBus()
    without = BlobDistributedMutex(
        candidates.store, identity="node-1", bus=lambda: bus, clock=candidates.clock
    )
    with pytest.raises(ConfigurationError, match=r"hold_blocking needs an event loop in another thread"):
        with without.hold_blocking():
            pass
    with start_blocking_portal() as portal:
        lock = BlobDistributedMutex(
            candidates.store,
            identity="node-1",
            bus=lambda: bus,
            clock=candidates.clock,
            portal=lambda: portal,
        )
        with pytest.raises(KennelError, match=r"would stop this event loop; use `async with lock.hold\(\)`"):
            with lock.hold_blocking():
                pass
