"""Messages come back from poison whole, with their history, and move between queues with their payloads."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from coordinator.queues.delivery import Reject
from coordinator.queues.queue import Queue
from coordinator.queues.requeue import move, requeue_poison
from coordinator.testing.clock import ManualClock
from coordinator.testing.queues import MemoryClaimStore, MemoryQueueTransport, memory_queue

LARGE = random.Random(1).randbytes(300_000).hex()


class Queues:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.transports: dict[str, MemoryQueueTransport] = {}
        self.claims = MemoryClaimStore()
        self.got: list[Any] = []

    def queue(self, name: str = "work") -> Queue[Any]:
        return memory_queue(name, type=str, clock=self.clock, transports=self.transports, claims=self.claims)

    async def run(self, handler: Any) -> None:
        listener = self.queue().listener(handler)
        running = asyncio.create_task(listener.run())
        await self.clock.advance(2)
        while await self.transports["work"].count():
            await self.clock.advance(1)
            await asyncio.sleep(0.001)  # payloads are unpacked in a thread
        stopping = asyncio.create_task(listener.stop(1))
        while not stopping.done():
            await self.clock.advance(1)
            await asyncio.sleep(0.001)
        await running

    async def reject(self, item: str) -> None:
        raise Reject("not now")

    async def keep(self, item: str) -> None:
        self.got.append(item)


@pytest.fixture
def queues() -> Queues:
    return Queues()


@pytest.mark.parametrize("item", ["small", "x" * 70_000, LARGE], ids=["inline", "packed", "claimed"])
async def test_a_message_comes_back_from_poison_whole(queues: Queues, item: str) -> None:
    await queues.queue().put(item)
    await queues.run(queues.reject)
    assert await queues.queue().poison.depth() == 1
    assert await requeue_poison(queues.queue()) == 1
    assert await queues.queue().poison.depth() == 0
    await queues.run(queues.keep)
    assert queues.got == [item]
    assert queues.claims.blobs == {}


async def test_a_second_stay_in_poison_tells_of_the_first(queues: Queues) -> None:
    await queues.queue().put("x")
    for _ in range(2):
        await queues.run(queues.reject)
        await requeue_poison(queues.queue())
    await queues.run(queues.reject)
    (message,) = await queues.queue().poison.peek()
    assert [failure.reason for failure in message.items[0].failures] == ["not now"] * 3
    assert {failure.handler for failure in message.items[0].failures} == {"Queues.reject"}


async def test_only_the_item_that_failed_comes_back(queues: Queues) -> None:
    async def one_bad(item: str) -> None:
        queues.got.append(item)
        if item == "b" and queues.got.count("b") == 1:
            raise Reject("bad")

    await queues.queue().put("a", "b", "c")
    await queues.run(one_bad)
    await requeue_poison(queues.queue())
    await queues.run(one_bad)
    assert sorted(queues.got) == ["a", "b", "b", "c"]


async def test_a_foreign_message_comes_back_with_its_history(queues: Queues) -> None:
    await queues.queue().put_text('"from elsewhere"')
    await queues.run(queues.reject)
    await requeue_poison(queues.queue())
    await queues.run(queues.keep)
    assert queues.got == ["from elsewhere"]


async def test_a_foreign_message_that_fills_its_64_kib_comes_back_too(queues: Queues) -> None:
    text = '"' + "&" * 13_000 + '"'
    await queues.queue().put_text(text)
    await queues.run(queues.reject)
    await requeue_poison(queues.queue())
    await queues.run(queues.keep)
    assert queues.got == ["&" * 13_000]


async def test_only_the_messages_named_come_back(queues: Queues) -> None:
    await queues.queue().put("a")
    await queues.queue().put("b")
    await queues.run(queues.reject)
    first, _ = await queues.queue().poison.peek()
    assert await requeue_poison(queues.queue(), ids={first.id}) == 1
    await queues.clock.advance(1)
    assert len(await queues.queue().poison.peek()) == 1
    assert await queues.queue().depth() == 1


@pytest.mark.parametrize("item", ["small", LARGE], ids=["inline", "claimed"])
async def test_messages_move_to_another_queue_with_their_payload(queues: Queues, item: str) -> None:
    source = queues.queue("old-work")
    await source.put(item)
    assert await move(source, queues.queue()) == 1
    assert await source.depth() == 0
    await queues.run(queues.keep)
    assert queues.got == [item]
    assert queues.claims.blobs == {}
