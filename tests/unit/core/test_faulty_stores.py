"""Stores in memory meet the same faults as requests through the fault proxy."""

import asyncio

import pytest

from coordinator.errors import NotFound, StorageBusy, StorageUnreachable
from coordinator.testing.clock import ManualClock
from coordinator.testing.faults import (
    BUSY,
    DROP_ANSWER,
    HANGS_AFTER,
    HANGS_BEFORE,
    RESET_BEFORE,
    THROTTLED,
    TOO_MANY,
    FaultyStore,
    answer_delayed,
    delayed,
)
from coordinator.testing.queues import MemoryQueueTransport
from coordinator.testing.sequences import MemoryStore


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def queue(clock):
    store = FaultyStore(MemoryQueueTransport("orders-in", clock=clock), clock=clock, hang_seconds=4)
    await store.create()
    return store


@pytest.mark.parametrize(
    ("fault", "error", "carried_out", "maybe_done", "retry_after"),
    [
        (DROP_ANSWER, StorageUnreachable, True, True, 0.0),
        (RESET_BEFORE, StorageUnreachable, False, True, 0.0),
        (BUSY, StorageBusy, False, True, 0.0),
        (THROTTLED, StorageBusy, False, True, 1.0),
        (TOO_MANY, StorageBusy, False, False, 1.0),
    ],
    ids=lambda value: getattr(value, "name", None),
)
async def test_a_call_fails_as_the_adapter_of_the_service_would(
    queue, fault, error, carried_out, maybe_done, retry_after
):
    queue.once(fault, method="put")
    with pytest.raises(error) as caught:
        await queue.put("hello")
    assert (caught.value.maybe_done, caught.value.retry_after_seconds) == (maybe_done, retry_after)
    assert await queue.count() == carried_out
    assert [each.method for each in queue.applied] == ["put"]


@pytest.mark.parametrize(("fault", "early"), [(delayed(3), 0), (answer_delayed(3), 1)])
async def test_a_late_call_acts_late_and_a_late_answer_has_acted_at_once(queue, clock, fault, early):
    queue.once(fault, method="put")
    putting = asyncio.create_task(queue.put("hello"))
    await clock.advance(2.9)
    assert (putting.done(), await queue.count()) == (False, early)
    await clock.advance(0.2)
    assert (putting.done(), await queue.count()) == (True, 1)
    await putting


@pytest.mark.parametrize(("fault", "messages"), [(HANGS_BEFORE, 0), (HANGS_AFTER, 1)])
async def test_a_call_that_hangs_ends_as_a_request_that_timed_out(queue, clock, fault, messages):
    queue.once(fault, method="put")
    putting = asyncio.create_task(queue.put("hello"))
    await clock.advance(3.9)
    assert not putting.done()
    await clock.advance(0.2)
    with pytest.raises(StorageUnreachable) as caught:
        await putting
    assert caught.value.maybe_done
    assert await queue.count() == messages


async def test_each_call_meets_the_fault_in_turn(queue):
    calls = []
    for turn in queue.for_each_request(DROP_ANSWER, RESET_BEFORE):
        try:
            with turn:
                await queue.put("hello")
                await queue.clear()
        except StorageUnreachable:
            calls.append((turn.fault, turn.applied.method))
        else:
            assert turn.applied is None
        await queue.clear()
    assert calls == [(fault, call) for fault in (DROP_ANSWER, RESET_BEFORE) for call in ("put", "clear")]


def test_stores_that_block_and_what_is_no_call_work_as_well():
    store = FaultyStore(MemoryStore())
    with pytest.raises(NotFound):
        store.get_data()
    store.once(DROP_ANSWER, method="try_optimistic_write")
    with pytest.raises(StorageUnreachable):
        store.try_optimistic_write("1", etag=None, metadata={})
    assert store.get_data().data == "1"
    assert FaultyStore(MemoryQueueTransport("orders-in")).name == "orders-in"
