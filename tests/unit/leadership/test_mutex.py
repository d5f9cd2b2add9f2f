"""What a mutex promises, on a clock that tests move."""

from __future__ import annotations

import asyncio
import gc

import pytest

from coordinator.bus import Bus, LocalBus
from coordinator.errors import (
    KennelError,
    LeadershipLost,
    LockTimeout,
    StorageUnreachable,
)
from coordinator.leadership.mutex import BlobDistributedMutex
from tests.unit.leadership.hall import Hall


def mutex(hall: Hall, identity: str, bus: Bus) -> BlobDistributedMutex:
    return BlobDistributedMutex(hall.store, identity=identity, bus=lambda: bus, clock=hall.clock)


async def test_a_mutex_admits_one_at_a_time(hall: Hall) -> None:
    bus, inside, most, total = LocalBus(), 0, 0, 0

    async def work(number: int) -> None:
        nonlocal inside, most, total
        async with mutex(hall, f"node-{number}", bus):
            inside, total = inside + 1, total + 1
            most = max(most, inside)
            await hall.clock.sleep(3)
            inside -= 1

    workers = asyncio.gather(*(work(number) for number in range(8)))
    await hall.clock.advance(600)
    await workers
    assert (most, total) == (1, 8)


async def test_a_block_whose_mutex_is_lost_is_interrupted(hall: Hall) -> None:
    async def work() -> None:
        async with mutex(hall, "node-1", LocalBus()):
            await asyncio.Event().wait()

    working = asyncio.ensure_future(work())
    await hall.clock.advance(1)
    await hall.store.break_now()
    await hall.clock.advance(5)
    with pytest.raises(LeadershipLost, match="mutex test-election was lost"):
        await working


async def test_a_block_that_is_cancelled_from_outside_stays_cancelled(hall: Hall) -> None:
    async def work() -> None:
        async with mutex(hall, "node-1", LocalBus()):
            await asyncio.Event().wait()

    working = asyncio.ensure_future(work())
    await hall.clock.advance(1)
    working.cancel()
    await hall.clock.advance(1)
    assert working.cancelled()
    assert not hall.store._is_leased


async def test_trying_a_held_mutex_gives_nothing_and_a_timeout_says_so(hall: Hall) -> None:
    bus = LocalBus()
    first, second = mutex(hall, "node-1", bus), mutex(hall, "node-2", bus)
    assert await first.try_acquire() is not None
    assert await second.try_acquire() is None
    waiting = asyncio.ensure_future(second.acquire(timeout=30))
    await hall.clock.advance(31)
    with pytest.raises(LockTimeout, match="within 30 s"):
        await waiting
    await first.release()
    await first.release()
    assert await second.try_acquire() is not None
    await second.release()


async def test_a_mutex_object_is_not_entered_twice(hall: Hall) -> None:
    lock = mutex(hall, "node-1", LocalBus())
    await lock.acquire()
    with pytest.raises(KennelError, match="one object for each task"):
        await lock.acquire()
    await lock.release()


async def test_a_request_that_fails_as_it_is_given_up_leaves_no_loose_error(hall: Hall) -> None:
    loose: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loose.append(context))

    async def fail_when_cancelled(operation: str) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise StorageUnreachable("cut at that moment") from None

    hall.campaign(hall.election("node-1"))
    await hall.clock.advance(7)
    hall.store.before = fail_when_cancelled  # type: ignore[method-assign]
    await hall.clock.advance(30)
    gc.collect()
    assert loose == []
    del hall.store.before
