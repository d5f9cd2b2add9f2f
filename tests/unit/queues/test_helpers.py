"""Once, put and keep, shards and priorities, middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coordinator.errors import ConfigurationError, StorageUnreachable
from coordinator.queues.delivery import Retry
from coordinator.queues.handlers import MessageContext, current_message
from coordinator.queues.listener import QueueListener
from coordinator.queues.queue import Queue, process_inline
from coordinator.queues.shards import ShardedQueue
from coordinator.realtime.bus import LocalBus
from coordinator.tables.idempotency import once
from coordinator.tables.table import Table
from coordinator.testing.clock import ManualClock
from coordinator.testing.queues import MemoryQueueTransport, MemoryShards, memory_queue
from coordinator.testing.tables import MemoryTableStore


class Queues:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.bus = LocalBus()
        self.transports: dict[str, MemoryQueueTransport] = {}
        self.got: list[Any] = []

    def queue(self, name: str = "work", **schema: Any) -> Queue[Any]:
        schema.setdefault("type", int)
        return memory_queue(
            name, clock=self.clock, bus=lambda: self.bus, transports=self.transports, **schema
        )

    async def keep(self, item: Any) -> None:
        self.got.append(item)

    @asynccontextmanager
    async def running(self, listener: QueueListener[Any]) -> AsyncIterator[None]:
        task = asyncio.create_task(listener.run())
        await self.clock.settle()
        yield
        stopping = asyncio.create_task(listener.stop(1))
        while not stopping.done():
            await self.clock.advance(1)
        await task


@pytest.fixture
def queues() -> Queues:
    return Queues()


# --- once -----------------------------------------------------------------------------------------------------------


async def test_a_handler_marked_once_runs_once_however_often_its_item_comes(queues: Queues) -> None:
    table = Table(MemoryTableStore("marks"))

    @once(table, key=str, clock=queues.clock)
    async def pay(item: int) -> None:
        queues.got.append(item)

    for _ in range(3):
        await pay(7)
    assert queues.got == [7]


async def test_a_handler_marked_once_that_failed_is_run_again(queues: Queues) -> None:
    @once(Table(MemoryTableStore("marks")), key=str, clock=queues.clock)
    async def pay(item: int) -> None:
        queues.got.append(item)
        if len(queues.got) == 1:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await pay(7)
    await pay(7)
    await pay(7)
    assert queues.got == [7, 7]


async def test_a_second_delivery_waits_for_the_first_and_takes_over_only_after_its_claim(
    queues: Queues,
) -> None:
    hang = asyncio.Event()

    @once(Table(MemoryTableStore("marks")), key=str, claim_seconds=60, clock=queues.clock)
    async def pay(item: int) -> None:
        queues.got.append(item)
        await hang.wait()

    first = asyncio.create_task(pay(7))
    await queues.clock.settle()
    with pytest.raises(Retry) as caught:
        await pay(7)
    assert caught.value.after == pytest.approx(60)
    await queues.clock.advance(61)
    second = asyncio.create_task(pay(7))
    await queues.clock.settle()
    assert queues.got == [7, 7]
    hang.set()
    await asyncio.gather(first, second)


async def test_a_claim_whose_answer_was_lost_is_recognised(queues: Queues) -> None:
    store = MemoryTableStore("marks")
    store.fail_next(StorageUnreachable("lost", maybe_done=True), done=True)

    @once(Table(store), key=str)
    async def pay(item: int) -> None:
        queues.got.append(item)

    await pay(7)
    assert queues.got == [7]


# --- put and keep ---------------------------------------------------------------------------------------------------


async def test_what_is_kept_is_hidden_while_it_is_worked_on_and_gone_afterwards(queues: Queues) -> None:
    queue = queues.queue()
    await queue.create()
    before = queues.transports["work"].requests
    async with process_inline(queue, 5, seconds=10) as item:
        assert item == 5
        await queues.clock.advance(60)
        assert await queues.transports["work"].get(1, visibility_seconds=1) == []
    assert await queue.depth() == 0
    async with process_inline(queue, 6, seconds=10):
        before = queues.transports["work"].requests
    assert queues.transports["work"].requests == before + 1


async def test_what_was_kept_goes_to_listeners_if_the_putter_fails(queues: Queues) -> None:
    with pytest.raises(ValueError, match="no"):
        async with process_inline(queues.queue(), 5):
            raise ValueError("no")
    async with queues.running(queues.queue().listener(queues.keep)):
        await queues.clock.advance(1)
    assert queues.got == [5]


# --- shards and priorities ------------------------------------------------------------------------------------------


async def test_shards_are_filled_in_turn_and_drained_by_one_listener(queues: Queues) -> None:
    sharded: ShardedQueue[int] = ShardedQueue(queues.queue, "work", shards=4)
    for number in range(40):
        await sharded.put(number)
    assert [await queue.depth() for queue in sharded.queues] == [10] * 4
    assert await sharded.depth() == 40
    async with queues.running(sharded.listener(queues.keep)):
        await queues.clock.advance(2)
    assert sorted(queues.got) == list(range(40))


async def test_equal_keys_go_to_the_same_shard(queues: Queues) -> None:
    sharded: ShardedQueue[int] = ShardedQueue(queues.queue, "work", shards=4)
    for number in range(10):
        await sharded.put(number, key="customer-7")
    depths = [await queue.depth() for queue in sharded.queues]
    assert sorted(depths) == [0, 0, 0, 10]


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2)])
async def test_resharding_while_running_loses_nothing(queues: Queues, before: int, after: int) -> None:
    sharded: ShardedQueue[int] = ShardedQueue(queues.queue, "work", shards=before)
    async with queues.running(sharded.listener(queues.keep)):
        for number in range(20):
            await sharded.put(number)
        await sharded.reshard(after)
        for number in range(20, 40):
            await sharded.put(number)
        await queues.clock.advance(10)
    assert sorted(queues.got) == list(range(40))


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2)])
async def test_resharding_in_one_process_is_followed_by_putters_and_listeners_of_others(
    queues: Queues, before: int, after: int
) -> None:
    store = MemoryShards()

    def process() -> ShardedQueue[int]:
        return ShardedQueue(queues.queue, "work", shards=before, store=store)

    operator, putter, worker = process(), process(), process()
    async with queues.running(worker.listener(queues.keep)):
        for number in range(20):
            await putter.put(number)
        await operator.reshard(after)
        await putter.put(20)  # not yet aware
        await queues.clock.advance(11)
        for number in range(21, 40):
            await putter.put(number)
        await queues.clock.advance(30)
    assert (putter.shards, worker.shards) == (after, after)
    assert sorted(queues.got) == list(range(40))
    late = process()
    await late.follow()
    assert (late.shards, len(late.queues)) == (after, 5), "what was filled once is drained by newcomers, too"


async def test_two_who_reshard_at_once_agree_in_the_end(queues: Queues) -> None:
    store = MemoryShards()
    first, second = (ShardedQueue(queues.queue, "work", shards=1, store=store) for _ in range(2))
    await asyncio.gather(first.reshard(3), second.reshard(7))
    layout, _ = await store.read("work")
    assert layout is not None
    assert (layout.shards in (3, 7), layout.most) == (True, 7)


async def test_a_heavier_queue_gets_more_and_a_lighter_one_still_its_turn(queues: Queues) -> None:
    urgent, normal = queues.queue("urgent"), queues.queue("normal")
    for number in range(300):
        await urgent.put(number)
        await normal.put(1000 + number)
    listener = urgent.listener(queues.keep, tasks=range(1, 2), weight=4, extra_queues=[(normal, 1)])
    async with queues.running(listener):
        while len(queues.got) < 600:
            await queues.clock.advance(1)
    first = queues.got[:200]
    urgent_share = sum(item < 1000 for item in first) / len(first)
    assert 0.65 <= urgent_share <= 0.9
    assert sorted(queues.got) == [*range(300), *range(1000, 1300)]


# --- middleware, types ----------------------------------------------------------------------------------------------


async def test_middleware_surrounds_the_handler_and_sees_its_error(queues: Queues) -> None:
    seen: list[Any] = []

    @asynccontextmanager
    async def watch(context: MessageContext) -> AsyncIterator[None]:
        seen.append((context.item, context.attempt))
        try:
            yield
        except ValueError:
            seen.append("failed")
            raise

    async def handler(item: int) -> None:
        assert current_message().item == item
        if current_message().attempt == 1:
            raise ValueError("no")

    await queues.queue().put(3)
    async with queues.running(queues.queue().listener(handler, middleware=[watch])):
        await queues.clock.advance(10)
    assert seen == [(3, 1), "failed", (3, 2)]


async def test_items_of_older_versions_are_brought_up_step_by_step(queues: Queues) -> None:
    await queues.queue(type=Any).put("7")
    newer = queues.queue(
        type=dict[str, int],
        version=2,
        upcasters={0: lambda text: {"n": text}, 1: lambda d: {"n": int(d["n"])}},
    )
    async with queues.running(newer.listener(queues.keep)):
        await queues.clock.advance(1)
    assert queues.got == [{"n": 7}]


async def test_an_item_that_is_no_json_is_refused_before_anything_is_stored(queues: Queues) -> None:
    with pytest.raises(ConfigurationError, match="cannot be put in a queue"):
        await queues.queue(type=Any).put(1, object())
    assert await queues.queue().depth() == 0


async def test_a_batch_handler_s_annotation_may_say_what_its_list_holds(queues: Queues) -> None:
    await queues.queue().put(1, 2, 3)
    async with queues.running(queues.queue(type=list[int]).listener(queues.keep, batch=10)):
        await queues.clock.advance(1)
    assert queues.got == [[1, 2, 3]]
