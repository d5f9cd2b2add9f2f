"""A wait that the service asks for (Retry-After) is kept, within the deadline."""

import asyncio

import pytest

from coordinator.azure.errors import refused
from coordinator.backoff import Backoff, retry, retry_blocking
from coordinator.errors import StorageBusy
from coordinator.tables.commit import commit
from coordinator.tables.operations import Insert
from coordinator.tables.optimistic import optimistic_update
from coordinator.tables.table import Table
from coordinator.testing.clock import ManualClock
from coordinator.testing.faults import FaultyStore, throttled
from coordinator.testing.queues import MemoryQueueTransport
from coordinator.testing.sequences import MemoryStore
from coordinator.testing.tables import MemoryTableStore


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("", 0),
        ("7", 7),
        ("0", 0),
        ("-3", 0),
        ("1.5", 0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 0),
        ("9" * 400, 0),
    ],
)
def test_the_wait_asked_for_is_part_of_the_error(header, seconds):
    error = refused(503, "ServerBusy", "", "get", "orders", retry_after=header)
    assert error.retry_after_seconds == seconds


async def test_a_repeated_call_waits_as_long_as_it_was_asked_to():
    clock = ManualClock()
    queue = FaultyStore(MemoryQueueTransport("orders-in", clock=clock), clock=clock)
    await queue.create()
    queue.times(2, throttled(5, status=429))
    asking = asyncio.create_task(retry(queue.count, backoff=Backoff(), clock=clock))
    await clock.advance(9.9)
    assert not asking.done()
    await clock.advance(0.2)
    assert await asking == 0
    assert queue.requests == 4


async def test_a_wait_beyond_the_deadline_is_an_error_at_once():
    clock = ManualClock()
    queue = FaultyStore(MemoryQueueTransport("orders-in", clock=clock), clock=clock)
    queue.once(throttled(31))
    with pytest.raises(StorageBusy):
        await retry(queue.count, backoff=Backoff(deadline_seconds=30), clock=clock)


@pytest.mark.parametrize(
    "write",
    [
        lambda table: commit(table, Insert(("p", "r"), {"n": 1})),
        lambda table: optimistic_update(table, ("p", "r"), lambda values: values | {"n": 1}, create={}),
    ],
    ids=["commit", "optimistic_update"],
)
async def test_a_conditional_write_waits_as_long_as_it_was_asked_to(write):
    clock = ManualClock()
    store = MemoryTableStore(clock=clock)
    store.fail_next(refused(503, "ServerBusy", "", "write", "memory", retry_after="7"), done=False)
    writing = asyncio.create_task(write(Table(store)))
    await clock.advance(6.9)
    assert not writing.done()
    await clock.advance(0.2)
    await writing
    assert store.rows["p", "r"].values == {"n": 1}


def test_threads_wait_as_asked_as_well():
    store, pauses = FaultyStore(MemoryStore()), []
    store.try_optimistic_write("1", etag=None, metadata={})
    store.once(throttled(5))
    assert retry_blocking(store.get_data, backoff=Backoff(), sleep=pauses.append).data == "1"
    assert pauses == [5.0]
