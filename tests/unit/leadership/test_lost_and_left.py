"""Terms and locks that end in unusual ways, and news that is none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from coordinator.errors import LeadershipLost, LockTimeout, StorageUnreachable
from coordinator.leadership.holding import Hold
from coordinator.leadership.lease import LeaderInfo
from coordinator.leadership.mutex import BlobDistributedMutex
from coordinator.leadership.repeating import lead_on
from coordinator.leadership.semaphore import BlobDistributedSemaphore
from coordinator.leadership.term import Term
from coordinator.leadership.watchdog import Watchdog
from coordinator.realtime.bus import RESYNC, Hint, LocalBus
from coordinator.testing.clock import ManualClock
from coordinator.testing.leadership import MemoryLeaseStore
from tests.unit.leadership.candidates import Candidates


def term(clock: ManualClock, name: str = "test-election") -> Term:
    now = clock.monotonic()
    return Term(
        name,
        holder="node-1",
        epoch=7,
        lease_id="lease",
        since=clock.time(),
        asked_at=now,
        deadline=now + 10,
        clock=clock,
    )


@pytest.fixture
def watchdog(monkeypatch: pytest.MonkeyPatch) -> Watchdog:
    """Without a thread: the test takes its steps."""
    monkeypatch.setattr(Watchdog, "_run", lambda self: None)
    return Watchdog()


async def test_the_watchdog_ends_an_overdue_term_and_its_work_without_a_callback(watchdog: Watchdog) -> None:
    clock = ManualClock()
    overdue, work = term(clock), asyncio.ensure_future(asyncio.Event().wait())
    watchdog.watch(overdue, work)
    assert watchdog.step() == pytest.approx(10.1)
    await clock.advance(10.2)
    assert watchdog.step() is None
    assert overdue.reason == "the event loop stalled past the end of the lease"
    with pytest.raises(asyncio.CancelledError):
        await work


async def test_the_watchdog_leaves_a_term_alone_that_was_ended_for_another_reason(
    watchdog: Watchdog, caplog: pytest.LogCaptureFixture
) -> None:
    clock, stalled = ManualClock(), list[Term]()
    ended, work = term(clock), asyncio.ensure_future(asyncio.Event().wait())
    watchdog.watch(ended, work, stalled.append)
    ended.end("an operator broke the lease")
    await clock.advance(10.2)
    assert watchdog.step() is None
    assert ended.reason == "an operator broke the lease"
    assert not stalled and not work.cancelling() and "stalled" not in caplog.text
    work.cancel()


async def test_a_standby_that_hears_of_a_new_connection_sends_no_request(candidates: Candidates) -> None:
    bus = LocalBus()
    candidates.campaign(candidates.election("node-1", bus=bus))
    await candidates.clock.advance(1)
    candidates.campaign(candidates.election("node-2", bus=bus))
    await candidates.clock.advance(0.5)
    asked = list(candidates.store.asked)
    bus.deliver(Hint(RESYNC))
    await candidates.clock.settle()
    assert candidates.store.asked == asked, "thousands connect at the same moment"


async def test_a_task_that_fails_as_its_term_is_lost_is_logged_with_its_error(
    candidates: Candidates, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(_: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("half a report was written")

    candidates.campaign(candidates.election("node-1", lease_seconds=15), work)
    await candidates.clock.advance(1)
    await candidates.store.break_now()
    await candidates.clock.advance(10)
    (record,) = [each for each in caplog.records if "failed as its term ended" in each.message]
    assert record.levelno == logging.ERROR
    assert record.exc_info and "half a report" in str(record.exc_info[1])


async def test_what_a_plain_function_raises_comes_out_of_the_election(candidates: Candidates) -> None:
    def work(_: Term) -> None:
        raise ValueError("no such month")

    running = candidates.campaign(candidates.election("node-1"), work)  # type: ignore[arg-type]
    await asyncio.wait(
        [running, ticking := asyncio.ensure_future(tick(candidates.clock))], return_when="FIRST_COMPLETED"
    )
    ticking.cancel()
    with pytest.raises(ValueError, match="no such month"):
        await running


async def tick(clock: ManualClock) -> None:
    """Time that passes by itself, for what ends in a thread."""
    while True:
        await clock.advance(0.01)
        await asyncio.sleep(0)


async def test_a_task_that_failed_is_run_again_though_nobody_asked_for_its_error(
    candidates: Candidates,
) -> None:
    terms: list[int] = []

    async def work(term: Term) -> None:
        terms.append(term.epoch)
        if len(terms) == 1:
            raise ValueError("once")

    candidates.runs["node-1"] = asyncio.ensure_future(
        lead_on(candidates.election("node-1"), work, clock=candidates.clock)
    )
    await candidates.clock.advance(30)
    assert len(terms) == 2 and terms[0] < terms[1]


# --- locks ---------------------------------------------------------------------------------------------------------


class Fleeting:
    """A candidate whose lease is lost at once."""

    def __init__(self) -> None:
        self.released = 0

    async def keep(self, _: Term) -> str:
        return "the lease was taken away"

    async def release(self, _: Term) -> None:
        self.released += 1


async def test_a_lock_that_was_lost_before_its_block_began_interrupts_the_block() -> None:
    candidate: Any = Fleeting()
    clock = ManualClock()
    hold = Hold("mutex close", (candidate, term(clock)))
    await clock.settle()

    async def block() -> None:
        hold.enter()
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            await hold.leave(type(error), error)
            raise

    with pytest.raises(LeadershipLost, match="mutex close was lost: the lease was taken away"):
        await block()
    assert candidate.released == 1


async def test_a_lock_that_is_released_inside_its_block_is_free_for_others_at_once(
    candidates: Candidates,
) -> None:
    bus = LocalBus()
    first, second = (
        BlobDistributedMutex(candidates.store, identity=name, bus=lambda: bus, clock=candidates.clock)
        for name in ("node-1", "node-2")
    )
    async with first:
        await first.release()
        assert first.term is None
        assert await second.try_acquire() is not None
    assert second.term is not None and second.term.held, (
        "the end of the block takes nothing from its successor"
    )
    await second.release()


def semaphore(
    clock: ManualClock, stores: Sequence[MemoryLeaseStore], bus: LocalBus
) -> BlobDistributedSemaphore:
    async def look() -> list[LeaderInfo]:
        for store in stores:
            store.asked.append("look")
        return [
            LeaderInfo(store.name, lease_state="leased" if store.holder_id else "available")
            for store in stores
        ]

    return BlobDistributedSemaphore("import", stores, look, identity="node-1", bus=lambda: bus, clock=clock)


async def test_who_waits_for_a_place_gives_up_after_the_time_that_was_said() -> None:
    clock, bus = ManualClock(), LocalBus()
    stores = [MemoryLeaseStore(f"import-{place}", clock=clock) for place in range(2)]
    holders = [semaphore(clock, stores, bus) for _ in range(2)]
    for holder in holders:
        await holder.acquire(timeout=1)
    began = clock.monotonic()
    waiting = asyncio.ensure_future(semaphore(clock, stores, bus).acquire(timeout=7))
    await clock.advance(6.9)
    assert not waiting.done()
    await clock.advance(0.2)
    with pytest.raises(LockTimeout, match="semaphore import was not free within 7 s"):
        await waiting
    assert clock.monotonic() - began < 8
    for holder in holders:
        await holder.release()


async def test_who_waits_for_a_place_without_a_limit_gets_the_one_that_becomes_free() -> None:
    clock, bus = ManualClock(), LocalBus()
    stores = [MemoryLeaseStore("import-0", clock=clock)]
    holder = semaphore(clock, stores, bus)
    await holder.acquire()
    waiter = semaphore(clock, stores, bus)
    waiting = asyncio.ensure_future(waiter.acquire())
    await clock.advance(20)
    assert not waiting.done()
    asked = list(stores[0].asked)
    bus.deliver(Hint(RESYNC))
    await clock.settle()
    assert stores[0].asked == asked, "a new connection alone is no reason to look"
    await holder.release()
    await clock.advance(5)
    assert (await waiting).held
    await waiter.release()


async def test_a_place_that_was_taken_without_an_answer_is_used_at_the_next_try() -> None:
    clock, bus = ManualClock(), LocalBus()
    stores = [MemoryLeaseStore(f"import-{place}", clock=clock) for place in range(2)]
    holder = semaphore(clock, stores, bus)
    held = await holder.acquire()
    (free,) = (store for store in stores if store.name != held.name)
    lost = 0

    async def lose(operation: str) -> None:
        nonlocal lost
        if operation == "acquire" and not lost:
            lost += 1
            raise StorageUnreachable("connection reset", maybe_done=True)

    free.after = lose  # type: ignore[method-assign]
    waiter = semaphore(clock, stores, bus)
    waiting = asyncio.ensure_future(waiter.acquire())
    await clock.advance(2.1)
    assert lost == 1
    assert (await waiting).name == free.name
    await waiter.release()
    await holder.release()


@pytest.mark.parametrize("callback", ["on_change", "on_new_leader", "on_status"])
async def test_a_callback_that_raises_is_logged_and_ends_no_term(
    candidates: Candidates, caplog: pytest.LogCaptureFixture, callback: str
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("the pager is away")

    options: dict[str, Any] = {} if callback == "on_status" else {callback: fail}
    election = candidates.election("node-1", **options)
    if callback == "on_status":
        election.on_status = fail
    run = candidates.campaign(election)
    await candidates.clock.advance(60)
    assert candidates.log == [("begin", "node-1", 1)]
    assert any(callback in each.message and each.exc_info for each in caplog.records)
    run.cancel()
    await candidates.clock.advance(1)
    assert not candidates.store._is_leased


async def test_an_on_stall_that_raises_leaves_the_other_terms_watched(
    watchdog: Watchdog, caplog: pytest.LogCaptureFixture
) -> None:
    clock, stalled = ManualClock(), list[str]()

    def fail(overdue: Term) -> None:
        stalled.append(overdue.name)
        raise ValueError("the pager is away")

    work = asyncio.create_task(asyncio.Event().wait())
    for name in ("one", "two"):
        watchdog.watch(term(clock, name), work, fail)
    await clock.advance(11)
    assert watchdog.step() is None
    assert stalled == ["one", "two"]
    assert sum("on_stall" in each.message for each in caplog.records) == 2
    work.cancel()
