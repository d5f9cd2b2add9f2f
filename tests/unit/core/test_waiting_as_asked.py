"""A wait that the service asks for (Retry-After) is kept, within the deadline."""

import asyncio

import pytest

from coordinator.azure.errors import refused
from coordinator.backoff import Backoff, retry, retry_blocking
from coordinator.errors import StorageBusy
from coordinator.testing.clock import ManualClock
from coordinator.testing.faults import FaultyStore, throttled
from coordinator.testing.queues import MemoryQueueTransport
from coordinator.testing.sequences import MemoryStore


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


def test_threads_wait_as_asked_as_well():
    store, pauses = FaultyStore(MemoryStore()), []
    store.try_optimistic_write("1", etag=None, metadata={})
    store.once(throttled(5))
    assert retry_blocking(store.get_data, backoff=Backoff(), sleep=pauses.append).data == "1"
    assert pauses == [5.0]
