"""Payloads whose messages are gone are removed; those that a message still needs never."""

from __future__ import annotations

import random

import pytest

from coordinator.errors import StorageUnreachable
from coordinator.queues.envelope import Envelope, PoisonRecord, encode
from coordinator.queues.queue import Queue
from coordinator.queues.sweeping import OldClaim, Swept, sweep, sweep_round
from coordinator.testing.clock import ManualClock
from coordinator.testing.queues import MemoryClaimStore, MemoryQueueTransport, memory_queue

DAY = 24 * 3600.0
LARGE = random.Random(2).randbytes(100_000).hex()


class Queues:
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
def queues() -> Queues:
    return Queues()


async def test_a_payload_that_never_expires_goes_a_day_after_its_message(queues: Queues) -> None:
    await queues.lose_one()
    assert await sweep(queues.queue) == Swept(0, 0)
    await queues.clock.advance(DAY + 1)
    assert await sweep(queues.queue) == Swept(1, 0)
    assert queues.claims.blobs == {}


async def test_what_a_message_in_the_queue_needs_stays(queues: Queues) -> None:
    await queues.queue.put(LARGE)
    await queues.lose_one()
    await queues.clock.advance(DAY + 1)
    assert await sweep(queues.queue) == Swept(1, 0)
    ((message,),) = [await queues.queue.peek()]
    assert message.items == (LARGE,)


async def test_what_a_message_in_poison_needs_stays(queues: Queues) -> None:
    (kept,) = await queues.queue.put(LARGE)
    await queues.queue.poison.put(PoisonRecord("work", kept.id, kept.text, "no", [], 1.0, 2.0, 5))
    await queues.transports["work"].delete(kept.id, kept.receipt)
    await queues.clock.advance(DAY + 1)
    assert await sweep(queues.queue) == Swept(0, 0)
    assert len(queues.claims.blobs) == 1


@pytest.mark.parametrize("what", ["in hand", "too many", "newer"])
async def test_nothing_is_removed_when_not_every_message_can_be_read(queues: Queues, what: str) -> None:
    await queues.lose_one()
    if what == "in hand":
        await queues.queue.put("small")
        await queues.transports["work"].get(1, visibility_seconds=7 * DAY)
    elif what == "too many":
        for _ in range(33):
            await queues.queue.put("small")
    else:
        await queues.queue.put_text(encode(Envelope(kennel=2, id="from a newer program")))
    await queues.clock.advance(DAY + 1)
    assert await sweep(queues.queue) == Swept(0, 1)
    assert len(queues.claims.blobs) == 1


async def test_a_queue_that_was_deleted_leaves_no_payload_behind(queues: Queues) -> None:
    await queues.queue.put(LARGE)
    await queues.queue.put(LARGE, ttl=60)
    await queues.queue.delete()
    await queues.clock.advance(2 * DAY)
    assert await sweep(queues.queue) == Swept(2, 0)
    assert queues.claims.blobs == {}


async def _old(queues: Queues, queue: str = "work") -> list[OldClaim]:
    """As a listing of all queues would tell them."""
    before = queues.clock.time() - DAY
    lasting = dict.fromkeys(await queues.claims.lasting(before), True)
    expired = dict.fromkeys(await queues.claims.expired(before), False)
    return [OldClaim(queue, name, lasts) for name, lasts in (lasting | expired).items()]


async def test_a_round_removes_what_no_message_needs_and_leaves_what_one_does(queues: Queues) -> None:
    await queues.lose_one()
    await queues.queue.put(LARGE, ttl=60)
    (kept,) = await queues.queue.put(LARGE)
    await queues.queue.poison.put(PoisonRecord("work", kept.id, kept.text, "no", [], 1.0, 2.0, 5))
    await queues.transports["work"].delete(kept.id, kept.receipt)
    await queues.clock.advance(2 * DAY)
    assert await sweep_round(await _old(queues), lambda name: queues.queue) == Swept(2, 0)
    assert kept.envelope.claim is not None
    assert list(queues.claims.blobs) == [kept.envelope.claim.name]


async def test_a_round_removes_a_bounded_number_at_a_time_and_comes_to_the_rest(queues: Queues) -> None:
    for _ in range(5):
        await queues.queue.put(LARGE, ttl=60)
    await queues.clock.advance(2 * DAY)
    for left in (3, 1, 0):
        await sweep_round(await _old(queues), lambda name: queues.queue, removals=2)
        assert len(queues.claims.blobs) == left


async def test_queues_that_cannot_be_judged_do_not_keep_others_from_their_turn(queues: Queues) -> None:
    await queues.lose_one()
    await queues.clock.advance(DAY + 1)
    (orphan,) = await _old(queues)
    asked: list[str] = []

    def queue_of(name: str) -> Queue[str]:
        asked.append(name)
        if name != "work":
            raise StorageUnreachable(f"{name} is away")
        return queues.queue

    others = [OldClaim(f"busy-{number}", "0" * 32, True) for number in range(3)]
    rounds = 0
    while queues.claims.blobs:
        swept = await sweep_round([*others, orphan], queue_of, queues=2)
        rounds += 1
        assert len(asked) == 2 * rounds
        assert swept.unknown == 2 - swept.removed
        assert rounds < 100


async def test_a_message_that_goes_back_from_poison_while_a_round_looks_keeps_its_payload(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is looked at while the message is in poison, and poison when it has just gone back to the queue."""
    (kept,) = await queues.queue.put(LARGE)
    (in_poison,) = await queues.queue.poison.put(
        PoisonRecord("work", kept.id, kept.text, "no", [], 1.0, 2.0, 5)
    )
    work = queues.transports["work"]
    await work.delete(kept.id, kept.receipt)
    await queues.clock.advance(DAY + 1)
    poison, moved = queues.transports["work-poison"], []
    count = poison.count

    async def moving() -> int:
        if not moved:
            moved.append(await work.put(kept.text))
            await poison.delete(in_poison.id, in_poison.receipt)
        return await count()

    monkeypatch.setattr(poison, "count", moving)
    assert await sweep_round(await _old(queues), lambda name: queues.queue) == Swept(0, 0)
    assert len(queues.claims.blobs) == 1
    assert moved
