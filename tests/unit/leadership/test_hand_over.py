"""Handing the lease to a successor, on a clock that tests move."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.errors import StorageUnreachable
from coordinator.leadership.lease import Successor
from coordinator.realtime.bus import LocalBus
from coordinator.testing.clock import ManualClock
from coordinator.testing.leadership import MemoryLeaseStore, MemoryTermLog
from tests.unit.leadership.hall import Hall


class PushBus(LocalBus):
    @property
    def is_connected(self) -> bool:
        return True


async def test_a_stopped_leader_hands_its_lease_over_with_no_moment_between(hall: Hall) -> None:
    bus, leased = PushBus(), []
    hall.campaign(hall.election("old", bus=bus))
    await hall.clock.settle()
    hall.campaign(hall.election("new", bus=bus))
    await hall.clock.advance(7)

    async def note(operation: str) -> None:
        leased.append(hall.store._is_leased)

    hall.store.before = note  # type: ignore[method-assign]
    hall.store.after = note  # type: ignore[method-assign]
    hall.runs["old"].cancel()
    await hall.clock.settle()
    assert hall.log == [("begin", "old", 1), ("end", "old", 1), ("begin", "new", 2)]
    await hall.clock.advance(30)
    assert all(leased)
    assert hall.log[-1] == ("begin", "new", 2)


async def test_a_hand_over_waits_for_the_work_to_end(hall: Hall) -> None:
    bus = PushBus()

    async def slow_to_stop(term: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await hall.clock.sleep(3)
            hall.log.append(("end", "old", 1))

    hall.campaign(hall.election("old", bus=bus), slow_to_stop)
    await hall.clock.settle()
    hall.campaign(hall.election("new", bus=bus))
    await hall.clock.advance(7)
    hall.runs["old"].cancel()
    await hall.clock.advance(2.9)
    assert hall.log == []
    await hall.clock.advance(0.2)
    assert hall.log == [("end", "old", 1), ("begin", "new", 2)]


async def test_a_nominee_that_died_delays_the_others_by_two_seconds_only(hall: Hall) -> None:
    bus = PushBus()
    first = hall.election("old", bus=bus)
    hall.campaign(first)
    await hall.clock.settle()
    hall.campaign(hall.election("new", bus=bus))
    await hall.clock.advance(7)
    await hall.store.nominate(Successor("dead", "dead-id"))
    assert first.step_down()
    await hall.clock.advance(1.9)
    assert hall.log[-1] == ("end", "old", 1)
    await hall.clock.advance(0.2)
    assert hall.log[-1] == ("begin", "new", 2)


async def test_a_nominee_that_begins_at_the_last_moment_keeps_its_lease(hall: Hall) -> None:
    """Race: the old leader loses patience while the nominee raises the epoch."""
    bus = PushBus()
    old, new = hall.election("old", bus=bus), hall.election("new", bus=bus)
    hall.campaign(old)
    await hall.clock.settle()
    hall.campaign(new)
    await hall.clock.advance(7)

    async def begin_now(operation: str) -> None:
        if operation == "release":
            slow.set()
            await hall.clock.sleep(0.5)

    slow = asyncio.Event()
    reads = 0

    async def hold_the_nominee(operation: str) -> None:
        nonlocal reads
        if operation == "acquire":
            await slow.wait()
        await begin_now(operation)

    hall.store.before = hold_the_nominee  # type: ignore[method-assign]
    old.step_down()
    await hall.clock.advance(10)
    del hall.store.before
    assert hall.log[-1] == ("begin", "new", 2)
    await hall.clock.advance(30)
    assert [entry for entry in hall.log if entry[0] == "begin"] == [("begin", "old", 1), ("begin", "new", 2)]


async def test_without_push_nobody_is_nominated_and_it_costs_nothing(hall: Hall) -> None:
    hall.campaign(hall.election("old"))
    await hall.clock.settle()
    hall.campaign(hall.election("new"))
    await hall.clock.advance(60)
    assert "nominate" not in hall.store.asked


async def test_a_standby_asks_once_for_each_leader(hall: Hall) -> None:
    bus = PushBus()
    hall.campaign(hall.election("a", bus=bus))
    await hall.clock.settle()
    hall.campaign(hall.election("b", bus=bus))
    hall.campaign(hall.election("c", bus=bus))
    await hall.clock.advance(600)
    assert hall.store.asked.count("nominate") == 2
    hall.runs["a"].cancel()
    await hall.clock.advance(600)
    assert hall.store.asked.count("nominate") == 3
    assert len([entry for entry in hall.log if entry[0] == "begin"]) == 2


async def test_an_unreachable_store_ends_a_hand_over_without_harm(hall: Hall) -> None:
    bus = PushBus()
    hall.campaign(hall.election("old", bus=bus))
    await hall.clock.settle()
    hall.campaign(hall.election("new", bus=bus))
    await hall.clock.advance(7)

    async def cut(operation: str) -> None:
        if operation in ("change", "release"):
            raise StorageUnreachable("cut")

    hall.store.before = cut  # type: ignore[method-assign]
    hall.runs["old"].cancel()
    await hall.clock.advance(20)
    assert hall.runs["old"].done()
    assert hall.log[-1] == ("begin", "new", 2)


async def test_every_term_is_recorded_with_its_end() -> None:
    clock = ManualClock()
    hall, log = Hall(), MemoryTermLog()
    hall.clock, hall.store = clock, MemoryLeaseStore(clock=clock)

    async def done(term: object) -> str:
        return "done"

    await hall.election("a", history=log).run(done)
    hall.campaign(hall.election("b", history=log))
    await clock.advance(7)
    await hall.store.break_now()
    await clock.advance(4)
    hall.runs["b"].cancel()
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
    log, hall = MemoryTermLog(), Hall()
    for _ in range(3):
        await hall.election("a", history=log).run(_nothing)
    assert [term.epoch for term in await log.newest("test-election", limit)] == [3, 2, 1][:limit]


async def _nothing(term: object) -> None: ...
