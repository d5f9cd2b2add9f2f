"""The listener on a queue in memory, with time told by hand."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from coordinator.errors import ConfigurationError
from coordinator.queues.delivery import Done, Reject, Retry
from coordinator.queues.handlers import MessageContext
from coordinator.queues.settling import RetryPolicy
from coordinator.tables.idempotency import once
from coordinator.tables.table import Table
from coordinator.testing.tables import MemoryTableStore
from tests.unit.queues.harness import ListenerHarness


async def test_every_item_reaches_the_handler_and_its_message_is_deleted(harness: ListenerHarness) -> None:
    for number in range(100):
        await harness.queue.put(number)
    async with harness.listening(tasks=range(51)):
        await harness.clock.advance(1)
        assert sorted(harness.got) == list(range(100))
        assert await harness.queue.depth() == 0


async def test_many_items_of_one_put_share_a_message_and_are_handled_one_by_one(
    harness: ListenerHarness,
) -> None:
    assert len(await harness.queue.put(*range(120))) == 3
    async with harness.listening():
        await harness.clock.advance(1)
    assert sorted(harness.got) == list(range(120))


async def test_a_plain_function_is_run_in_a_thread(harness: ListenerHarness) -> None:
    threads: list[str] = []

    def handler(item: int) -> None:
        threads.append(threading.current_thread().name)
        harness.got.append(item)

    await harness.queue.put(1)
    async with harness.listening(handler):
        while await harness.queue.depth():
            await asyncio.sleep(0.001)
    assert harness.got == [1]
    assert threads[0].startswith("queue-work")


@pytest.mark.parametrize("is_async", [True, False], ids=["async def", "def"])
async def test_a_listener_says_how_long_its_longest_running_handler_has_run(
    harness: ListenerHarness, is_async: bool
) -> None:
    may_end, in_thread = asyncio.Event(), threading.Event()

    async def handler(item: int) -> None:
        harness.got.append(item)
        await may_end.wait()

    def plain(item: int) -> None:
        harness.got.append(item)
        in_thread.wait(30)

    async with harness.listening(handler if is_async else plain, tasks=range(2, 4)) as listener:
        assert listener.status().oldest_task_seconds == 0
        await harness.queue.put(1)
        await harness.clock.advance(40)
        await harness.queue.put(2)
        await harness.clock.advance(60)
        oldest = listener.status().oldest_task_seconds
        assert harness.got == [1, 2]
        assert oldest is not None and 90 <= oldest <= 100
        may_end.set()
        in_thread.set()
        while await harness.queue.depth():
            await asyncio.sleep(0.001)
            await harness.clock.settle()
        assert listener.status().oldest_task_seconds == 0


async def test_a_failing_message_is_tried_again_and_then_kept_in_poison_with_its_reason(
    harness: ListenerHarness,
) -> None:
    async def handler(item: int) -> None:
        harness.got.append(item)
        raise ValueError("no such customer")

    await harness.queue.put(7)
    async with harness.listening(handler, retries=RetryPolicy(attempts=3)) as listener:
        await harness.clock.advance(120)
        assert harness.got == [7, 7, 7]
        assert await harness.queue.depth() == 0
        (record,) = await harness.poisoned()
        assert (record.reason, record.attempts, record.failures[0].error) == (
            "no such customer",
            3,
            "ValueError",
        )
        assert "raise ValueError" in record.failures[0].trace
        assert listener.status().poisoned == 1


async def test_an_error_in_one_message_stops_no_task(harness: ListenerHarness) -> None:
    async def handler(item: int) -> None:
        if item % 2:
            raise ValueError("odd")
        harness.got.append(item)

    for number in range(20):
        await harness.queue.put(number)
    async with harness.listening(handler, tasks=range(1, 3), retries=RetryPolicy(attempts=1)) as listener:
        await harness.clock.advance(2)
        assert sorted(harness.got) == list(range(0, 20, 2))
        assert listener.active_tasks == 2
        assert len(await harness.poisoned()) == 10


async def test_a_handler_that_rejects_sends_to_poison_at_once(harness: ListenerHarness) -> None:
    async def handler(item: int) -> None:
        harness.got.append(item)
        raise Reject("not an order")

    await harness.queue.put(1)
    async with harness.listening(handler):
        await harness.clock.advance(5)
    assert harness.got == [1]
    assert [record.reason for record in await harness.poisoned()] == ["not an order"]


async def test_a_handler_decides_when_it_is_tried_again(harness: ListenerHarness) -> None:
    async def handler(item: int) -> None:
        harness.got.append(harness.clock.monotonic())
        if len(harness.got) == 1:
            raise Retry(after=90)

    await harness.queue.put(1)
    async with harness.listening(handler):
        await harness.clock.advance(200)
    assert 90 <= harness.got[1] - harness.got[0] <= 96


@pytest.mark.parametrize("is_async", [True, False], ids=["async def", "def"])
@pytest.mark.parametrize("wrapped", [True, False], ids=["middleware", "bare"])
async def test_what_a_handler_returns_instead_of_raising_it_is_a_failed_try(
    harness: ListenerHarness, is_async: bool, wrapped: bool
) -> None:
    def answer(item: int) -> Retry | Reject:
        harness.got.append(item)
        return Retry("not yet", after=100) if harness.got.count(item) < 2 else Reject("never")

    async def handler(item: int) -> Retry | Reject:
        return answer(item)

    @contextlib.asynccontextmanager
    async def around(context: MessageContext) -> AsyncIterator[None]:
        yield

    await harness.queue.put(7)
    async with harness.listening(handler if is_async else answer, middleware=[around] if wrapped else []):
        while len(harness.got) < 2 or await harness.queue.depth():
            await harness.clock.advance(10)
            await asyncio.sleep(0.001)
        (record,) = await harness.poisoned()
    assert (harness.got, record.reason) == ([7, 7], "never")


async def test_once_takes_a_retry_that_is_returned_for_a_failed_try(harness: ListenerHarness) -> None:
    @once(Table(MemoryTableStore()), key=str, clock=harness.clock)
    async def handler(item: int) -> Retry | None:
        harness.got.append(item)
        return Retry("not yet", after=100) if len(harness.got) < 2 else None

    await harness.queue.put(7)
    async with harness.listening(handler):
        await harness.clock.advance(300)
        assert await harness.queue.depth() == 0
    assert harness.got == [7, 7]


def test_a_handler_with_a_yield_is_refused_since_a_call_runs_none_of_it(harness: ListenerHarness) -> None:
    async def numbers(item: int) -> AsyncIterator[int]:
        yield item

    def blocking(item: int) -> Iterator[int]:
        yield item

    class Callable:
        async def __call__(self, item: int) -> AsyncIterator[int]:
            yield item

    for handler in (numbers, blocking, Callable(), functools.partial(blocking)):
        with pytest.raises(ConfigurationError, match="has a yield"):
            harness.queue.listener(handler)


async def test_only_the_failed_items_of_a_message_are_tried_again(harness: ListenerHarness) -> None:
    async def handler(item: int) -> None:
        harness.got.append(item)
        if item == 3 and harness.got.count(3) == 1:
            raise ValueError

    await harness.queue.put(*range(6))
    async with harness.listening(handler):
        await harness.clock.advance(60)
    assert sorted(harness.got) == [0, 1, 2, 3, 3, 4, 5]
    assert await harness.queue.depth() == 0


async def test_a_batch_handler_answers_for_each_item(harness: ListenerHarness) -> None:
    async def handler(items: list[int]) -> list[Any]:
        harness.got.append(items)
        return [Reject("zero") if item == 0 else Done() for item in items]

    await harness.queue.put(*range(4))
    async with harness.listening(handler, batch=10):
        await harness.clock.advance(5)
    assert harness.got == [[0, 1, 2, 3]]
    (record,) = await harness.poisoned()
    assert (record.reason, record.left) == ("zero", [0])
    assert await harness.queue.depth() == 0


async def test_a_long_handler_keeps_its_message_for_six_times_the_visibility(
    harness: ListenerHarness,
) -> None:
    done = asyncio.Event()

    async def handler(item: int) -> None:
        harness.got.append(item)
        await done.wait()

    await harness.queue.put(1)
    async with harness.listening(handler, visibility_seconds=10) as listener:
        await harness.clock.advance(60)
        assert (await listener.query_state()).renewals >= 6
        done.set()
        await harness.clock.advance(30)
        assert harness.got == [1]
        assert await harness.queue.depth() == 0


async def test_stop_gives_back_what_no_handler_has_seen_and_counts_no_attempt(
    harness: ListenerHarness,
) -> None:
    release = asyncio.Event()

    async def handler(item: int) -> None:
        harness.got.append(item)
        await release.wait()

    async with harness.listening(handler, tasks=range(1, 11)) as listener:
        listener.work_detected = lambda event: 1
        for number in range(10):
            await harness.queue.put(number)
        await harness.clock.advance(0.5)
        assert len(harness.got) == 1
        assert listener.status().in_hand == 10
    visible = await harness.queue.peek()
    assert sorted(message.items[0] for message in visible) == list(range(10))
    unseen = [(await harness.queue.open(message.text))[0].unstarted for message in visible]
    assert sorted(unseen) == [0, *[1] * 9]


async def test_a_paused_listener_takes_nothing_until_it_is_resumed(harness: ListenerHarness) -> None:
    async with harness.listening() as listener:
        listener.pause()
        await harness.clock.advance(10)
        await harness.queue.put(1)
        await harness.clock.advance(60)
        assert harness.got == []
        assert listener.status().state == "paused"
        listener.resume()
        await harness.clock.advance(1)
        assert harness.got == [1]


async def test_what_cannot_be_decoded_goes_to_poison_whole_with_the_path_of_the_fault(
    harness: ListenerHarness,
) -> None:
    await harness.queue.create()
    await harness.transport.put("not json <&>")
    await harness.transport.put('{"kennel":1,"id":"x","items":["seven"]}')
    async with harness.listening():
        await harness.clock.advance(5)
    records = {record.text: record.reason for record in await harness.poisoned()}
    assert set(records) == {"not json <&>", '{"kennel":1,"id":"x","items":["seven"]}'}
    assert "Expected `int`, got `str`" in records['{"kennel":1,"id":"x","items":["seven"]}']


async def test_a_message_from_a_newer_program_is_left_for_a_newer_worker(harness: ListenerHarness) -> None:
    await harness.queue.create()
    await harness.transport.put('{"kennel":2,"id":"x","items":[1]}')
    async with harness.listening(retries=RetryPolicy(base_seconds=300, cap_seconds=300)):
        await harness.clock.advance(5)
        assert await harness.queue.depth() == 1
        assert await harness.poisoned() == []


# --- empty and busy -------------------------------------------------------------------------------------------------
