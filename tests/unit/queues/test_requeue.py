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


class Desk:
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
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize("item", ["small", "x" * 70_000, LARGE], ids=["inline", "packed", "claimed"])
async def test_a_message_comes_back_from_poison_whole(desk: Desk, item: str) -> None:
    await desk.queue().put(item)
    await desk.run(desk.reject)
    assert await desk.queue().poison.depth() == 1
    assert await requeue_poison(desk.queue()) == 1
    assert await desk.queue().poison.depth() == 0
    await desk.run(desk.keep)
    assert desk.got == [item]
    assert desk.claims.blobs == {}


async def test_a_second_stay_in_poison_tells_of_the_first(desk: Desk) -> None:
    await desk.queue().put("x")
    for _ in range(2):
        await desk.run(desk.reject)
        await requeue_poison(desk.queue())
    await desk.run(desk.reject)
    (message,) = await desk.queue().poison.peek()
    assert [failure.reason for failure in message.items[0].failures] == ["not now"] * 3


async def test_only_the_item_that_failed_comes_back(desk: Desk) -> None:
    async def one_bad(item: str) -> None:
        desk.got.append(item)
        if item == "b" and desk.got.count("b") == 1:
            raise Reject("bad")

    await desk.queue().put("a", "b", "c")
    await desk.run(one_bad)
    await requeue_poison(desk.queue())
    await desk.run(one_bad)
    assert sorted(desk.got) == ["a", "b", "b", "c"]


async def test_a_foreign_message_comes_back_with_its_history(desk: Desk) -> None:
    await desk.queue().put_text('"from elsewhere"')
    await desk.run(desk.reject)
    await requeue_poison(desk.queue())
    await desk.run(desk.keep)
    assert desk.got == ["from elsewhere"]


async def test_a_foreign_message_that_fills_its_64_kib_comes_back_too(desk: Desk) -> None:
    text = '"' + "&" * 13_000 + '"'
    await desk.queue().put_text(text)
    await desk.run(desk.reject)
    await requeue_poison(desk.queue())
    await desk.run(desk.keep)
    assert desk.got == ["&" * 13_000]


async def test_only_the_messages_named_come_back(desk: Desk) -> None:
    await desk.queue().put("a")
    await desk.queue().put("b")
    await desk.run(desk.reject)
    first, _ = await desk.queue().poison.peek()
    assert await requeue_poison(desk.queue(), ids={first.id}) == 1
    assert len(await desk.queue().poison.peek()) == 1
    assert await desk.queue().depth() == 1


@pytest.mark.parametrize("item", ["small", LARGE], ids=["inline", "claimed"])
async def test_messages_move_to_another_queue_with_their_payload(desk: Desk, item: str) -> None:
    source = desk.queue("old-work")
    await source.put(item)
    assert await move(source, desk.queue()) == 1
    assert await source.depth() == 0
    await desk.run(desk.keep)
    assert desk.got == [item]
    assert desk.claims.blobs == {}
