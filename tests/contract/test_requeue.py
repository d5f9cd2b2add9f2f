"""Bringing messages back from poison and moving them, on every queue service alike."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from coordinator import Storage
from coordinator.config import StorageConfig
from coordinator.queues.envelope import PoisonRecord
from coordinator.queues.protocols import ReceivedMessage
from coordinator.queues.queue import Queue
from coordinator.queues.requeue import delete_poison, move, read_poison, requeue_poison
from coordinator.testing.queues import MemoryClaimStore, MemoryQueueTransport, memory_queue

Make = Callable[[str], Queue[Any]]
ITEMS = {"inline": "small", "packed": "x" * 70_000, "claimed": random.Random(3).randbytes(100_000).hex()}


@pytest.fixture(params=["memory", "azurite"])
async def make(
    request: pytest.FixtureRequest, connection_string: str, storage_prefix: str
) -> AsyncIterator[Make]:
    """Makes queues of one account."""
    if request.param == "memory":
        transports: dict[str, MemoryQueueTransport] = {}
        # One store a queue: a payload must be carried over, not found by luck.
        stores: dict[str, MemoryClaimStore] = {}
        yield lambda name: memory_queue(
            name, type=str, transports=transports, claims=stores.setdefault(name, MemoryClaimStore())
        )
        return
    config = StorageConfig(prefix=storage_prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        yield lambda name: storage.queue(f"{storage_prefix}{name}", type=str)


async def poisoned(queue: Queue[Any], *items: str, left: list[int] | None = None) -> None:
    """A message as a listener leaves it in poison."""
    await queue.put(*items)
    (message,) = await queue.take(1, visibility_seconds=60)
    await queue.poison.put(
        PoisonRecord(queue.name, message.id, message.text, "no", [], 1.0, 2.0, 5, left=left)
    )
    await queue.transport.delete(message.id, message.receipt)


async def contents(queue: Queue[Any]) -> list[Any]:
    return sorted(item for message in await queue.peek() for item in message.items)


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS.keys())
async def test_a_message_comes_back_whole(make: Make, item: str) -> None:
    queue = make("work")
    await poisoned(queue, item)
    assert await requeue_poison(queue) == 1
    assert await contents(queue) == [item]
    assert await queue.poison.depth() == 0


async def test_only_what_was_left_of_a_message_comes_back(make: Make) -> None:
    queue = make("work")
    await poisoned(queue, "a", "b", "c", left=[1])
    assert await requeue_poison(queue) == 1
    assert await contents(queue) == ["b"]


async def test_only_as_many_come_back_as_were_asked_for(make: Make) -> None:
    queue = make("work")
    for item in "abc":
        await poisoned(queue, item)
    assert await requeue_poison(queue, limit=2) == 2
    assert (await queue.depth(), await queue.poison.depth()) == (2, 1)
    assert len(await queue.poison.peek()) == 1, "the one that stayed can be seen at once"


async def test_only_those_named_come_back_and_the_others_stay_visible(make: Make) -> None:
    queue = make("work")
    for item in "abc":
        await poisoned(queue, item)
    chosen = (await queue.poison.peek())[1]
    assert await requeue_poison(queue, ids={chosen.id}) == 1
    assert await queue.depth() == 1
    assert len(await visible(queue.poison, 2)) == 2


async def visible(queue: Queue[Any], count: int) -> set[str]:
    """The ids of what can be seen once so many can: what was read is hidden for a second."""
    while len(seen := await queue.peek()) < count:
        await asyncio.sleep(0.05)
    return {message.id for message in seen}


async def read(queue: Queue[Any]) -> list[ReceivedMessage]:
    found = {message.id: message async for batch in read_poison(queue) for message in batch}
    return list(found.values())


@pytest.mark.parametrize("count", [0, 1, 70])
async def test_all_of_poison_is_read_and_is_visible_a_second_later(make: Make, count: int) -> None:
    queue = make("work")
    for n in range(count):
        await queue.poison.put(PoisonRecord(queue.name, f"m-{n}", '"x"', "no", [], 1.0, 2.0, 5))
    before = asyncio.get_running_loop().time()
    assert len(await read(queue)) == count
    assert len(await visible(queue.poison, min(count, 32))) == min(count, 32)
    assert asyncio.get_running_loop().time() - before < 30
    assert await requeue_poison(queue) == count


async def test_known_messages_are_retried_and_deleted_and_no_other_is_touched(make: Make) -> None:
    queue = make("work")
    for item in "abcd":
        await poisoned(queue, item)
    a, b, c, d = await read(queue)
    await visible(queue.poison, 4)
    assert await requeue_poison(queue, known=[b]) == 1
    assert await delete_poison(queue, known=[c, c]) == 1
    assert {message.id for message in await queue.poison.peek()} == {a.id, d.id}, "at once, all others"
    assert [message.dequeue_count for message in await queue.poison.transport.peek(32)] == [1, 1]
    assert await contents(queue) == ["b"]


async def test_a_known_message_that_somebody_received_since_stays_and_says_so(make: Make) -> None:
    queue = make("work")
    await poisoned(queue, "a")
    (known,) = await read(queue)
    await visible(queue.poison, 1)
    await read(queue)
    for moved in (await requeue_poison(queue, known=[known]), await delete_poison(queue, known=[known])):
        assert (moved, moved.left) == (0, 1)
        assert moved.reasons == ("somebody received or removed it since it was read",)
    assert len(await visible(queue.poison, 1)) == 1
    assert await queue.depth() == 0


async def test_only_those_named_are_deleted_from_poison_and_the_others_stay(make: Make) -> None:
    queue = make("work")
    for item in "abc":
        await poisoned(queue, item)
    await queue.poison.put_text('"left here by hand"')
    seen = await queue.poison.peek()
    assert await delete_poison(queue, {seen[1].id, seen[3].id, "no-such-message"}) == 2
    assert await queue.depth() == 0
    assert await visible(queue.poison, 2) == {seen[0].id, seen[2].id}
    assert await requeue_poison(queue) == 2
    assert await contents(queue) == ["a", "c"]


async def test_what_is_no_poison_record_stays_in_poison(make: Make) -> None:
    queue = make("work")
    await queue.poison.put_text('"left here by hand"')
    assert await requeue_poison(queue) == 0
    assert len(await queue.poison.peek()) == 1


async def test_a_queue_without_poison_gives_nothing_back(make: Make) -> None:
    assert await requeue_poison(make("work")) == 0


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS.keys())
async def test_messages_move_with_their_payload(make: Make, item: str) -> None:
    source, target = make("old-work"), make("work")
    await source.put(item)
    assert await move(source, target) == 1
    assert await contents(target) == [item]
    assert await source.depth() == 0


async def test_a_foreign_message_moves_as_it_is(make: Make) -> None:
    source, target = make("old-work"), make("work")
    await source.put_text("<not> & 'ours'")
    assert await move(source, target) == 1
    assert [message.text for message in await target.peek()] == ["<not> & 'ours'"]
