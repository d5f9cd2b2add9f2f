"""Payloads whose messages are gone are removed; those that a message still needs never."""

from __future__ import annotations

import random

import pytest

from coordinator.queues.envelope import Envelope, encode
from coordinator.queues.poison import PoisonRecord
from coordinator.queues.queue import Queue
from coordinator.queues.sweeping import Swept, sweep
from coordinator.testing.clock import ManualClock
from coordinator.testing.queues import MemoryClaimStore, MemoryQueueTransport, memory_queue

DAY = 24 * 3600.0
LARGE = random.Random(2).randbytes(100_000).hex()


class Desk:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.claims = MemoryClaimStore(self.clock)
        self.transports: dict[str, MemoryQueueTransport] = {}
        self.queue: Queue[str] = memory_queue(
            "work", type=str, clock=self.clock, transports=self.transports, claims=self.claims
        )

    async def lose_one(self) -> None:
        """A process died between deleting a message and its payload."""
        (kept,) = await self.queue.put(LARGE)
        await self.transports["work"].delete(kept.id, kept.receipt)


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_a_payload_that_never_expires_goes_a_day_after_its_message(desk: Desk) -> None:
    await desk.lose_one()
    assert await sweep(desk.queue) == Swept(0, 0)
    await desk.clock.advance(DAY + 1)
    assert await sweep(desk.queue) == Swept(1, 0)
    assert desk.claims.blobs == {}


async def test_what_a_message_in_the_queue_needs_stays(desk: Desk) -> None:
    await desk.queue.put(LARGE)
    await desk.lose_one()
    await desk.clock.advance(DAY + 1)
    assert await sweep(desk.queue) == Swept(1, 0)
    ((message,),) = [await desk.queue.peek()]
    assert message.items == (LARGE,)


async def test_what_a_message_in_poison_needs_stays(desk: Desk) -> None:
    (kept,) = await desk.queue.put(LARGE)
    await desk.queue.poison.put(PoisonRecord("work", kept.id, kept.text, "no", [], 1.0, 2.0, 5))
    await desk.transports["work"].delete(kept.id, kept.receipt)
    await desk.clock.advance(DAY + 1)
    assert await sweep(desk.queue) == Swept(0, 0)
    assert len(desk.claims.blobs) == 1


@pytest.mark.parametrize("what", ["in hand", "too many", "newer"])
async def test_nothing_is_removed_when_not_every_message_can_be_read(desk: Desk, what: str) -> None:
    await desk.lose_one()
    if what == "in hand":
        await desk.queue.put("small")
        await desk.transports["work"].get(1, visibility_seconds=7 * DAY)
    elif what == "too many":
        for _ in range(33):
            await desk.queue.put("small")
    else:
        await desk.queue.put_text(encode(Envelope(kennel=2, id="from a newer program")))
    await desk.clock.advance(DAY + 1)
    assert await sweep(desk.queue) == Swept(0, 1)
    assert len(desk.claims.blobs) == 1


async def test_a_queue_that_was_deleted_leaves_no_payload_behind(desk: Desk) -> None:
    await desk.queue.put(LARGE)
    await desk.queue.put(LARGE, ttl=60)
    await desk.queue.delete()
    await desk.clock.advance(2 * DAY)
    assert await sweep(desk.queue) == Swept(2, 0)
    assert desk.claims.blobs == {}
