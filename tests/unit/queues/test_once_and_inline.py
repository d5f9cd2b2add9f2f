"""`once` and `process_inline` where others come between, or storage is away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.errors import ConfigurationError, StorageUnreachable
from coordinator.queues.delivery import Done, Retry
from coordinator.queues.queue import process_inline
from coordinator.queues.settling import RetryPolicy
from coordinator.tables.idempotency import once
from coordinator.tables.operations import ANY, Delete, Insert, Replace
from coordinator.tables.rows import Key, Row
from coordinator.tables.table import Table
from coordinator.testing.faults import Fault, FaultyStore
from coordinator.testing.queues import memory_queue
from coordinator.testing.tables import MemoryTableStore
from tests.unit.queues.harness import ListenerHarness

AWAY = Fault("away", committed=False, answer="close")
ROW = Key("7", "once")


class Meddled(MemoryTableStore):
    """Somebody else acts right before the row is read, or written over."""

    before_read: Any = None
    before_replace: Any = None

    async def read(self, key: Key, select: tuple[str, ...] | None = None) -> Row:
        if (act := self.before_read) is not None:
            self.before_read = None
            await act()
        return await super().read(key, select)

    async def write(self, operation: Any) -> str:
        if isinstance(operation, Replace) and (act := self.before_replace) is not None:
            self.before_replace = None
            await act()
        return await super().write(operation)


def test_outside_of_a_listener_a_def_handler_is_run_once_too() -> None:
    did: list[int] = []

    @once(Table(MemoryTableStore("marks")), key=str)
    def pay(item: int) -> str:
        did.append(item)
        return "paid"

    assert (pay(7), pay(7)) == ("paid", None)
    assert did == [7]


async def test_a_claim_that_is_given_up_meanwhile_is_tried_again_soon() -> None:
    store = Meddled("marks")
    table = Table(store)
    await table.write(Insert(ROW, {"state": "begun", "until": 2e9, "owner": "another"}))
    store.before_read = lambda: table.write(Delete(ROW, ANY))

    @once(table, key=str)
    async def pay(item: int) -> None:
        raise AssertionError("another delivery may still be at it")

    with pytest.raises(Retry, match="has just failed") as raised:
        await pay(7)
    assert raised.value.after == 1


async def test_of_two_who_find_a_dead_claim_one_takes_it_over() -> None:
    store = Meddled("marks")
    table = Table(store)
    dead = {"state": "begun", "until": 1.0, "owner": "dead"}
    await table.write(Insert(ROW, dead))
    store.before_replace = lambda: table.write(Replace(ROW, {**dead, "owner": "faster"}, ANY))
    did: list[int] = []

    @once(table, key=str)
    async def pay(item: int) -> None:
        did.append(item)

    with pytest.raises(Retry, match="began first"):
        await pay(7)
    assert did == []
    await pay(7)
    assert did == [7]


async def test_a_mark_that_cannot_be_removed_is_left_to_the_end_of_its_claim(
    harness: ListenerHarness,
) -> None:
    store: Any = FaultyStore(MemoryTableStore("marks", clock=harness.clock), clock=harness.clock)
    table = Table(store)
    did: list[float] = []

    @once(table, key=str, claim_seconds=20, clock=harness.clock)
    async def pay(item: int) -> None:
        did.append(harness.clock.monotonic())
        if len(did) == 1:
            store.always(AWAY)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await pay(7)
    store.heal()
    with pytest.raises(Retry, match="is being processed"):
        await pay(7)
    await harness.clock.advance(21)
    await pay(7)
    assert len(did) == 2


async def test_without_a_key_the_id_of_the_message_is_one(harness: ListenerHarness) -> None:
    marks = Table(MemoryTableStore("marks"))

    @once(marks, clock=harness.clock)
    async def pay(item: int) -> None:
        harness.got.append(item)
        if len(harness.got) == 1:
            raise ValueError("not yet")

    await harness.queue.put(7)
    await harness.queue.put(7)
    async with harness.listening(pay, tasks=range(1, 2), retries=RetryPolicy(base_seconds=1, cap_seconds=1)):
        await harness.clock.advance(10)
    assert harness.got == [7, 7, 7], "two messages, and one of them twice"
    assert len([row async for row in marks.scan()]) == 2


async def test_of_a_batch_with_one_key_twice_the_second_waits_and_is_found_done(
    harness: ListenerHarness,
) -> None:
    @once(Table(MemoryTableStore("marks")), key=str, clock=harness.clock)
    async def pay(items: list[int]) -> list[Any]:
        harness.got.append(items)
        return [Done() for _ in items]

    await harness.queue.put(7, 7, 8)
    async with harness.listening(pay, batch=3, tasks=range(1, 2)):
        await harness.clock.advance(10)
        assert await harness.queue.depth() == 0
    assert harness.got == [[7, 8]]


async def test_a_batch_whose_mark_cannot_be_written_has_that_item_tried_again(
    harness: ListenerHarness,
) -> None:
    store: Any = FaultyStore(MemoryTableStore("marks", clock=harness.clock), clock=harness.clock)

    @once(Table(store), key=str, claim_seconds=5, clock=harness.clock)
    async def pay(items: list[int]) -> list[Any]:
        harness.got.append(items)
        if len(harness.got) == 1:
            store.always(AWAY)
        return [Done() for _ in items]

    await harness.queue.put(7, 8)
    retries = RetryPolicy(attempts=9, base_seconds=5, cap_seconds=5)
    async with harness.listening(pay, batch=2, tasks=range(1, 2), retries=retries):
        await harness.clock.advance(40)
        store.heal()
        await harness.clock.advance(60)
        assert await harness.queue.depth() == 0
    assert {item for items in harness.got for item in items} == {7, 8}
    assert await harness.poisoned_count() == 0


# --- put and keep ----------------------------------------------------------------------------------------------------


async def test_what_is_kept_stays_hidden_while_the_block_runs_although_storage_fails_once(
    harness: ListenerHarness,
) -> None:
    store = FaultyStore(harness.transport, clock=harness.clock)
    transports: Any = {**harness.transports, "work": store}
    queue = memory_queue("work", type=int, clock=harness.clock, transports=transports)
    await queue.create()
    store.times(1, AWAY, method="update")
    async with process_inline(queue, 7, seconds=10) as item:
        await harness.clock.advance(9)
        assert item == 7
        assert await harness.transport.get(1, visibility_seconds=1) == []
    # The first renewal failed: the message came to light at 10 s, and is somebody else's now.
    assert await queue.depth() == 0


async def test_a_block_that_fails_shows_its_message_at_once(harness: ListenerHarness) -> None:
    await harness.queue.create()
    with pytest.raises(ZeroDivisionError):
        async with process_inline(harness.queue, 7, seconds=600):
            raise ZeroDivisionError
    (message,) = await harness.queue.peek()
    assert message.items == (7,)


async def test_a_block_that_fails_while_storage_is_away_leaves_its_message_to_time(
    harness: ListenerHarness,
) -> None:
    store = FaultyStore(harness.transport, clock=harness.clock)
    transports: Any = {**harness.transports, "work": store}
    queue = memory_queue("work", type=int, clock=harness.clock, transports=transports)
    await queue.create()

    async def fail() -> None:
        async with process_inline(queue, 7, seconds=30):
            store.always(AWAY)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    store.heal()
    assert await queue.peek() == []
    await harness.clock.advance(31)
    assert len(await queue.peek()) == 1


async def test_a_message_that_another_took_meanwhile_is_left_to_it(harness: ListenerHarness) -> None:
    await harness.queue.create()
    async with process_inline(harness.queue, 7, seconds=10):
        harness.transport.update = _gone  # type: ignore[method-assign]
        await harness.clock.advance(11)
        (taken,) = await harness.transport.get(1, visibility_seconds=60)
    assert await harness.queue.depth() == 1, "it is in the other's hands"
    await harness.transport.delete(taken.id, taken.receipt)


async def _gone(*_: Any, **__: Any) -> str:
    raise StorageUnreachable("away", resource="work")


@pytest.mark.parametrize("seconds", [1, 604_801])
async def test_a_time_that_no_message_can_be_hidden_for_is_refused(
    harness: ListenerHarness, seconds: float
) -> None:
    with pytest.raises(ConfigurationError, match="2 to 604,800"):
        async with process_inline(harness.queue, 7, seconds=seconds):
            raise AssertionError("it was not stored")
    await asyncio.sleep(0)
    assert not harness.transport.exists
