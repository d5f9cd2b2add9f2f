"""Handing the lease to a successor, on a clock that tests move."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.errors import StorageUnreachable
from coordinator.leadership.lease import Successor
from coordinator.realtime.bus import LocalBus
from coordinator.testing.clock import ManualClock
from coordinator.testing.leadership import MemoryLeaseStore, MemoryTermLog
from tests.unit.leadership.candidates import Candidates


class PushBus(LocalBus):
    @property
    def is_connected(self) -> bool:
        return True


async def test_a_stopped_leader_hands_its_lease_over_with_no_moment_between(candidates: Candidates) -> None:
    bus, leased = PushBus(), []
    candidates.campaign(candidates.election("old", bus=bus))
    await candidates.clock.settle()
    candidates.campaign(candidates.election("new", bus=bus))
    await candidates.clock.advance(7)

    async def note(operation: str) -> None:
        leased.append(candidates.store._is_leased)

    candidates.store.before = note  # type: ignore[method-assign]
    candidates.store.after = note  # type: ignore[method-assign]
    candidates.runs["old"].cancel()
    await candidates.clock.settle()
    assert candidates.log == [("begin", "old", 1), ("end", "old", 1), ("begin", "new", 2)]
    await candidates.clock.advance(30)
    assert all(leased)
    assert candidates.log[-1] == ("begin", "new", 2)


async def test_a_hand_over_waits_for_the_work_to_end(candidates: Candidates) -> None:
    bus = PushBus()

    async def slow_to_stop(term: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await candidates.clock.sleep(3)
            candidates.log.append(("end", "old", 1))

    candidates.campaign(candidates.election("old", bus=bus), slow_to_stop)
    await candidates.clock.settle()
    candidates.campaign(candidates.election("new", bus=bus))
    await candidates.clock.advance(7)
    candidates.runs["old"].cancel()
    await candidates.clock.advance(2.9)
    assert candidates.log == []
    await candidates.clock.advance(0.2)
    assert candidates.log == [("end", "old", 1), ("begin", "new", 2)]


async def test_a_nominee_that_died_delays_the_others_by_two_seconds_only(candidates: Candidates) -> None:
    bus = PushBus()
    first = candidates.election("old", bus=bus)
    candidates.campaign(first)
    await candidates.clock.settle()
    candidates.campaign(candidates.election("new", bus=bus))
    await candidates.clock.advance(7)
    await candidates.store.nominate(Successor("dead", "dead-id"))
    assert first.step_down()
    await candidates.clock.advance(1.9)
    assert candidates.log[-1] == ("end", "old", 1)
    await candidates.clock.advance(0.2)
    assert candidates.log[-1] == ("begin", "new", 2)


async def test_a_nominee_that_begins_at_the_last_moment_keeps_its_lease(candidates: Candidates) -> None:
    """Race: the old leader loses patience while the nominee raises the epoch."""
    bus = PushBus()
    old, new = candidates.election("old", bus=bus), candidates.election("new", bus=bus)
    candidates.campaign(old)
    await candidates.clock.settle()
    candidates.campaign(new)
    await candidates.clock.advance(7)

    async def begin_now(operation: str) -> None:
        if operation == "release":
            slow.set()
            await candidates.clock.sleep(0.5)

    slow = asyncio.Event()
    reads = 0

    async def hold_the_nominee(operation: str) -> None:
        nonlocal reads
        if operation == "acquire":
            await slow.wait()
        await begin_now(operation)

    candidates.store.before = hold_the_nominee  # type: ignore[method-assign]
    old.step_down()
    await candidates.clock.advance(10)
    del candidates.store.before
    assert candidates.log[-1] == ("begin", "new", 2)
    await candidates.clock.advance(30)
    assert [entry for entry in candidates.log if entry[0] == "begin"] == [
        ("begin", "old", 1),
        ("begin", "new", 2),
    ]


async def test_without_push_nobody_is_nominated_and_it_costs_nothing(candidates: Candidates) -> None:
    candidates.campaign(candidates.election("old"))
    await candidates.clock.settle()
    candidates.campaign(candidates.election("new"))
    await candidates.clock.advance(60)
    assert "nominate" not in candidates.store.asked


async def test_a_standby_asks_once_for_each_leader(candidates: Candidates) -> None:
    bus = PushBus()
    candidates.campaign(candidates.election("a", bus=bus))
    await candidates.clock.settle()
    candidates.campaign(candidates.election("b", bus=bus))
    candidates.campaign(candidates.election("c", bus=bus))
    await candidates.clock.advance(600)
    assert candidates.store.asked.count("nominate") == 2
    candidates.runs["a"].cancel()
    await candidates.clock.advance(600)
    assert candidates.store.asked.count("nominate") == 3
    assert len([entry for entry in candidates.log if entry[0] == "begin"]) == 2


async def test_an_unreachable_store_ends_a_hand_over_without_harm(candidates: Candidates) -> None:
    bus = PushBus()
    candidates.campaign(candidates.election("old", bus=bus))
    await candidates.clock.settle()
    candidates.campaign(candidates.election("new", bus=bus))
    await candidates.clock.advance(7)

    async def cut(operation: str) -> None:
        if operation in ("change", "release"):
            raise StorageUnreachable("cut")

    candidates.store.before = cut  # type: ignore[method-assign]
    candidates.runs["old"].cancel()
    await candidates.clock.advance(20)
    assert candidates.runs["old"].done()
    assert candidates.log[-1] == ("begin", "new", 2)


async def test_every_term_is_recorded_with_its_end() -> None:
    clock = ManualClock()
    candidates, log = Candidates(), MemoryTermLog()
    candidates.clock, candidates.store = clock, MemoryLeaseStore(clock=clock)

    async def done(term: object) -> str:
        return "done"

    await candidates.election("a", history=log).run(done)
    candidates.campaign(candidates.election("b", lease_seconds=15, history=log))
    await clock.advance(7)
    await candidates.store.break_now()
    await clock.advance(4)
    candidates.runs["b"].cancel()
    await clock.advance(20)
    terms = await log.newest("test-election", 10)
    assert [(term.epoch, term.holder, term.ended is not None) for term in reversed(terms)] == [
        (1, "a", True),
        (2, "b", True),
        (3, "b", True),
    ]
    assert [term.how.split(":")[0] for term in reversed(terms)] == ["finished", "lost", "stopped"]


@pytest.mark.parametrize("limit", [0, 1, 5])
async def test_the_newest_terms_are_listed(limit: int) -> None:
    log, candidates = MemoryTermLog(), Candidates()
    for _ in range(3):
        await candidates.election("a", history=log).run(_nothing)
    assert [term.epoch for term in await log.newest("test-election", limit)] == [3, 2, 1][:limit]


async def _nothing(term: object) -> None: ...
