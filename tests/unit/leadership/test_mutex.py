"""What a mutex promises, on a clock that tests move."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from coordinator.errors import (
    ConfigurationError,
    KennelError,
    LeadershipLost,
    LockTimeout,
    StorageUnreachable,
)
from coordinator.leadership.mutex import BlobDistributedMutex
from coordinator.realtime.bus import Bus, LocalBus
from tests.unit.leadership.candidates import Candidates


def mutex(candidates: Candidates, identity: str, bus: Bus) -> BlobDistributedMutex:
    return BlobDistributedMutex(candidates.store, identity=identity, bus=lambda: bus, clock=candidates.clock)


async def test_a_mutex_admits_one_at_a_time(candidates: Candidates) -> None:
    bus, inside, most, total = LocalBus(), 0, 0, 0

    async def work(number: int) -> None:
        nonlocal inside, most, total
        async with mutex(candidates, f"node-{number}", bus):
            inside, total = inside + 1, total + 1
            most = max(most, inside)
            await candidates.clock.sleep(3)
            inside -= 1

    workers = asyncio.gather(*(work(number) for number in range(8)))
    await candidates.clock.advance(600)
    await workers
    assert (most, total) == (1, 8)


async def test_a_block_whose_mutex_is_lost_is_interrupted(candidates: Candidates) -> None:
    async def work() -> None:
        async with mutex(candidates, "node-1", LocalBus()):
            await asyncio.Event().wait()

    working = asyncio.ensure_future(work())
    await candidates.clock.advance(1)
    await candidates.store.break_now()
    await candidates.clock.advance(10)
    with pytest.raises(LeadershipLost, match="mutex test-election was lost"):
        await working


async def test_a_block_that_is_cancelled_from_outside_stays_cancelled(candidates: Candidates) -> None:
    async def work() -> None:
        async with mutex(candidates, "node-1", LocalBus()):
            await asyncio.Event().wait()

    working = asyncio.ensure_future(work())
    await candidates.clock.advance(1)
    working.cancel()
    await candidates.clock.advance(1)
    assert working.cancelled()
    assert not candidates.store._is_leased


@pytest.mark.parametrize("timeout", [float("nan"), "3", True])
async def test_a_timeout_that_is_no_number_of_seconds_is_refused(
    candidates: Candidates, timeout: Any
) -> None:
    lock = mutex(candidates, "node-1", LocalBus())
    for attempt in (lock.acquire(timeout), lock.hold(timeout=timeout).__aenter__()):
        with pytest.raises(ConfigurationError, match="timeout must be seconds, or None"):
            await attempt
    assert await lock.try_acquire() is not None
    await lock.release()


async def test_trying_a_held_mutex_gives_nothing_and_a_timeout_says_so(candidates: Candidates) -> None:
    bus = LocalBus()
    first, second = mutex(candidates, "node-1", bus), mutex(candidates, "node-2", bus)
    assert await first.try_acquire() is not None
    assert await second.try_acquire() is None
    waiting = asyncio.ensure_future(second.acquire(timeout=30))
    await candidates.clock.advance(31)
    with pytest.raises(LockTimeout, match="within 30 s"):
        await waiting
    await first.release()
    await first.release()
    assert await second.try_acquire() is not None
    await second.release()


async def test_a_mutex_object_is_not_entered_twice(candidates: Candidates) -> None:
    lock = mutex(candidates, "node-1", LocalBus())
    await lock.acquire()
    with pytest.raises(KennelError, match="make one object for each task"):
        await lock.acquire()
    await lock.release()


async def test_a_request_that_fails_as_it_is_given_up_leaves_no_loose_error(candidates: Candidates) -> None:
    loose: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loose.append(context))

    async def fail_when_cancelled(operation: str) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise StorageUnreachable("cut at that moment") from None

    candidates.campaign(candidates.election("node-1"))
    await candidates.clock.advance(7)
    candidates.store.before = fail_when_cancelled  # type: ignore[method-assign]
    await candidates.clock.advance(30)
    gc.collect()
    assert loose == []
    del candidates.store.before


async def test_two_tasks_that_use_one_object_at_the_same_moment_do_not_both_get_it(
    candidates: Candidates,
) -> None:
    lock = mutex(candidates, "node-1", LocalBus())
    tries = [asyncio.ensure_future(lock.acquire()) for _ in range(3)]
    await candidates.clock.advance(1)
    assert [type(each.exception()) for each in tries] == [type(None), KennelError, KennelError]
    await lock.release()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), tasks=st.integers(2, 6), slow=st.floats(0.0, 3.0))
def test_a_shared_object_admits_one_at_a_time_and_forgets_nobody_however_slow_the_answers(
    seed: int, tasks: int, slow: float
) -> None:
    """Tasks of two nodes, each node with one object; answers are late, or lost, and tasks are cancelled."""

    async def play() -> None:
        candidates, rng, bus = Candidates(), random.Random(seed), LocalBus()
        inside, most, done = 0, 0, 0

        async def delay(operation: str) -> None:
            await candidates.clock.sleep(rng.uniform(0.0, slow))
            if rng.random() < 0.05:
                raise StorageUnreachable("the answer was lost", maybe_done=True)

        candidates.store.after = delay  # type: ignore[method-assign]
        shared = [mutex(candidates, f"node-{number}", bus) for number in range(2)]

        async def work(number: int) -> None:
            nonlocal inside, most, done
            for _ in range(3):
                with suppress(LeadershipLost):
                    async with shared[number % 2].hold() as term:
                        inside += term.held
                        most = max(most, inside)
                        try:
                            await candidates.clock.sleep(rng.uniform(0.0, 20.0))
                        finally:
                            inside -= 1
            done += 1

        running = [asyncio.ensure_future(work(number)) for number in range(tasks)]
        quitter = asyncio.ensure_future(work(0))
        await candidates.clock.advance(rng.uniform(0.0, 60.0))
        quitter.cancel()
        await candidates.clock.advance(tasks * 3 * 60.0 + 300.0)
        assert (most, done) == (1, tasks)
        assert all(each.done() for each in [*running, quitter])

    asyncio.run(play())


@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("moment", [0.0, 0.3, 0.6, 1.1])
async def test_cancelling_an_acquire_however_often_leaves_the_lease_free(
    candidates: Candidates, times: int, moment: float
) -> None:
    async def slow(operation: str) -> None:
        await candidates.clock.sleep(0.4)

    candidates.store.after = slow  # type: ignore[method-assign]
    trying = asyncio.ensure_future(mutex(candidates, "node-1", LocalBus()).acquire())
    await candidates.clock.advance(moment)
    for _ in range(times):
        trying.cancel()
        await candidates.clock.settle()
    await candidates.clock.advance(5)
    assert trying.cancelled()
    assert not candidates.store._is_leased


async def test_a_hold_that_is_lost_interrupts_its_block_and_others_go_on(candidates: Candidates) -> None:
    lock, ended = mutex(candidates, "node-1", LocalBus()), list[str]()

    async def work() -> None:
        try:
            async with lock.hold(timeout=1):
                await asyncio.Event().wait()
        except LeadershipLost as error:
            ended.append(str(error))

    working = asyncio.ensure_future(work())
    await candidates.clock.advance(1)
    with pytest.raises(LockTimeout):
        await advancing(candidates, enter(lock, 3))
    await candidates.store.break_now()
    await candidates.clock.advance(10)
    await working
    assert "was lost" in ended[0]
    await advancing(candidates, enter(lock, 3))


async def enter(lock: BlobDistributedMutex, timeout: float) -> None:
    async with lock.hold(timeout=timeout):
        pass


async def advancing(candidates: Candidates, work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    await candidates.clock.advance(10)
    await task
