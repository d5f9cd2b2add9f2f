"""What becomes of an item whose handler answers, or ends, in an unusual way."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest

from coordinator.errors import ConfigurationError, StorageUnreachable
from coordinator.queues.delivery import Reject, Retry
from coordinator.queues.envelope import Envelope, encode, encode_item
from coordinator.queues.handlers import MessageContext, current_message
from coordinator.queues.settling import RetryPolicy, TryFailed
from coordinator.testing.faults import DROP_ANSWER, FaultyStore
from coordinator.testing.queues import memory_queue
from tests.unit.queues.bench import Bench

ONE_TRY = RetryPolicy(attempts=1)


async def until(bench: Bench, ready: Callable[[], bool]) -> None:
    """Until what a handler's thread does is seen; the clock only ticks."""
    async with asyncio.timeout(20):
        while not ready():
            await bench.clock.advance(0.01)
            await asyncio.sleep(0.001)


async def reasons(bench: Bench) -> list[str]:
    return sorted(record.reason for record in await bench.poisoned())


@asynccontextmanager
async def counted(context: MessageContext, seen: list[str]) -> AsyncIterator[None]:
    seen.append(f"begin {context.item}")
    yield
    seen.append(f"end {context.item}")


@pytest.mark.parametrize(
    "answer", [Retry("not now", after=1), Reject("no such item")], ids=["retry", "reject"]
)
async def test_a_wrapped_handler_may_return_a_retry_or_a_reject(bench: Bench, answer: Exception) -> None:
    seen: list[str] = []

    async def handler(item: int) -> Any:
        bench.got.append(item)
        return answer

    await bench.queue.put(7)
    wrap = partial(counted, seen=seen)
    async with bench.listening(handler, middleware=[wrap], retries=RetryPolicy(attempts=2)):
        await bench.clock.advance(3)
    assert bench.got == [7] * (2 if isinstance(answer, Retry) else 1)
    assert seen == ["begin 7"] * len(bench.got), "what comes after a try that failed must not be run"
    assert await reasons(bench) == [str(answer)]


async def test_a_batch_handler_has_no_middleware_and_no_single_message(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match="a batch handler has none"):
        bench.queue.listener(lambda items: None, batch=2, middleware=[partial(counted, seen=[])])

    async def handler(items: list[int]) -> None:
        with pytest.raises(LookupError, match="current_batch"):
            current_message()
        bench.got.append(items)

    await bench.queue.put(1, 2)
    async with bench.listening(handler, batch=2, retries=ONE_TRY):
        await bench.clock.advance(1)
    assert bench.got == [[1, 2]] and await bench.poisoned_count() == 0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([None], "it got 2 items and gave 1"),
        ([None, "done"], "a batch handler's outcomes are Done, Retry or Reject, not 'done'"),
    ],
)
async def test_a_batch_handler_that_answers_something_else_fails_and_is_corrected(
    bench: Bench, answer: list[Any], reason: str
) -> None:
    async def handler(items: list[int]) -> list[Any]:
        return answer

    await bench.queue.put(1, 2)
    async with bench.listening(handler, batch=2, retries=ONE_TRY):
        await bench.clock.advance(1)
    (record,) = await bench.poisoned()
    assert len(record.failures) == 2
    assert all(reason in failure.reason for failure in record.failures)


async def test_a_handler_that_cancels_its_own_task_fails_and_the_listener_goes_on(bench: Bench) -> None:
    async def handler(item: int) -> None:
        bench.got.append(item)
        if item == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    await bench.queue.put(1)
    await bench.queue.put(2)
    async with bench.listening(handler, tasks=range(1, 2), retries=ONE_TRY):
        await bench.clock.advance(1)
    assert sorted(bench.got) == [1, 2]
    assert await reasons(bench) == ["the handler raised CancelledError"]


async def test_a_handler_that_exits_after_its_time_out_is_reported_as_late(bench: Bench) -> None:
    async def handler(item: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            sys.exit(3)

    await bench.queue.put(1)
    async with bench.listening(handler, timeout=5, retries=ONE_TRY):
        await bench.clock.advance(8)
    assert await reasons(bench) == ["it took longer than its time-out of 5 s"]


async def test_a_stop_iteration_out_of_a_thread_is_a_failure_with_its_name(bench: Bench) -> None:
    def handler(item: int) -> None:
        bench.got.append(item)
        next(iter(()))

    await bench.queue.put(1)
    await bench.queue.poison.create()
    async with bench.listening(handler, retries=ONE_TRY):
        await until(bench, lambda: bool(bench.transports["work-poison"]._messages))
    assert await reasons(bench) == ["the handler raised StopIteration"]


async def test_a_plain_function_that_returns_a_coroutine_is_awaited(bench: Bench) -> None:
    async def work(item: int) -> Any:
        bench.got.append(item)
        return Reject("looked at")

    await bench.queue.put(4)
    await bench.queue.poison.create()
    async with bench.listening(lambda item: work(item), retries=ONE_TRY):
        await until(bench, lambda: bool(bench.transports["work-poison"]._messages))
    assert bench.got == [4]
    assert await reasons(bench) == ["looked at"]


async def test_a_callback_for_failed_tries_that_fails_is_logged_and_changes_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(failed: TryFailed) -> None:
        raise ZeroDivisionError("in the callback")

    async def handler(item: int) -> None:
        raise ValueError("no such customer")

    async with bench.listening(handler, retries=ONE_TRY) as listener:
        listener.try_failed = broken
        await bench.queue.put(1)
        await bench.clock.advance(20)
    assert await reasons(bench) == ["no such customer"]
    assert "The try_failed handler of work failed" in caplog.text


# --- messages whose deliveries never reported -----------------------------------------------------------------------


async def taken_by_the_dead(bench: Bench, times: int, count: int = 1) -> None:
    for _ in range(times):
        left = count
        while left > 0:
            got = await bench.transport.get(min(32, left), visibility_seconds=1)
            assert got
            left -= len(got)
        await bench.clock.advance(2)


async def test_an_item_that_cannot_be_decoded_is_no_suspect(bench: Bench) -> None:
    await bench.queue.create()
    items = [encode_item("seven"), encode_item(8)]
    await bench.transport.put(encode(Envelope(kennel=1, id="x", items=items)))
    await taken_by_the_dead(bench, 2)
    async with bench.listening(retries=RetryPolicy(attempts=5)):
        await bench.clock.advance(3)
    (record,) = await bench.poisoned()
    assert "Expected `int`, got `str`" in record.failures[0].reason
    assert bench.got == [8]


async def test_more_suspects_than_can_be_watched_are_left_to_others(bench: Bench) -> None:
    for number in range(40):
        await bench.queue.put(number)
    await taken_by_the_dead(bench, 2, count=40)
    done = asyncio.Event()

    async def handler(item: int) -> None:
        bench.got.append(item)
        await done.wait()

    async with bench.listening(handler, tasks=range(50, 51)) as listener:
        await bench.clock.advance(1)
        assert 1 <= len(listener.leases) <= 33, "the others have to be visible to other processes"
        done.set()
        await bench.clock.advance(300)
        assert sorted(bench.got) == list(range(40)), "each of them once, in the end"


async def test_a_suspect_that_cannot_be_marked_is_not_run(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await bench.queue.put(7)
    await taken_by_the_dead(bench, 2)
    store = FaultyStore(bench.transport, clock=bench.clock)
    store.times(1, DROP_ANSWER.__class__("away", committed=False, answer="close"), method="update")
    transports: Any = {**bench.transports, "work": store}
    bench.queue = memory_queue("work", type=int, clock=bench.clock, transports=transports)
    async with bench.listening():
        await bench.clock.advance(5)
        assert bench.got == [], "it ran although nothing would show that it killed this process"
        await bench.clock.advance(60)
    assert bench.got == [7]
    assert "is not run, for it could not be marked" in caplog.text


async def test_a_suspect_that_somebody_deletes_is_not_run(bench: Bench) -> None:
    await bench.queue.put(1)
    await bench.queue.put(2)
    await taken_by_the_dead(bench, 2, count=2)
    done = asyncio.Event()

    async def handler(item: int) -> None:
        bench.got.append(item)
        await done.wait()

    async with bench.listening(handler, tasks=range(1, 2)):
        await bench.clock.settle()
        await bench.queue.clear()
        await bench.clock.advance(40)
        done.set()
        await bench.clock.advance(5)
    assert len(bench.got) == 1


async def test_an_unforeseen_error_while_reading_a_message_puts_it_into_poison(bench: Bench) -> None:
    async def broken(envelope: Envelope) -> Any:
        raise RuntimeError("a fault of ours")

    await bench.queue.put(1)
    await bench.queue.put(2)
    bench.queue.items = broken  # type: ignore[method-assign]
    async with bench.listening(retries=ONE_TRY):
        await bench.clock.advance(1)
    assert bench.got == []
    assert await reasons(bench) == ["the message could not be read: RuntimeError: a fault of ours"] * 2


async def test_an_envelope_that_leaves_no_item_goes_to_poison(bench: Bench) -> None:
    await bench.queue.create()
    text = encode(Envelope(kennel=1, id="x", items=[encode_item(7)], left=[3]))
    await bench.transport.put(text)
    async with bench.listening():
        await bench.clock.advance(1)
    assert await reasons(bench) == ["the envelope holds no item to do"]


async def test_a_delete_that_storage_refuses_for_a_while_is_made_up_for(bench: Bench) -> None:
    store = FaultyStore(bench.transport, clock=bench.clock)
    transports: Any = {**bench.transports, "work": store}
    await bench.queue.put(7)
    bench.queue = memory_queue("work", type=int, clock=bench.clock, transports=transports)
    store.times(60, DROP_ANSWER.__class__("away", committed=False, answer="close"), method="delete")
    async with bench.listening():
        await bench.clock.advance(120)
        assert await bench.queue.depth() == 0
    assert bench.got == [7], "it came again, and was only deleted"


# --- what a queue refuses --------------------------------------------------------------------------------------------


async def test_a_queue_says_what_it_cannot_do(bench: Bench) -> None:
    await bench.queue.create()
    for count in (0, 33):
        with pytest.raises(ConfigurationError, match=f"not {count}"):
            await bench.queue.peek(count)
    with pytest.raises(ConfigurationError, match="use put\\(\\)"):
        await bench.queue.put_text("x" * 65_537)
    with pytest.raises(ConfigurationError, match="is a poison queue itself"):
        _ = bench.queue.poison.poison


async def test_clearing_and_deleting_a_queue_that_is_not_there_is_no_error(bench: Bench) -> None:
    await bench.queue.clear()
    await bench.queue.delete()
    assert not bench.transport.exists
    await bench.queue.put(1)
    await bench.queue.delete()
    assert not bench.transport.exists


async def test_a_put_whose_claim_cannot_be_read_again_put_nothing(bench: Bench) -> None:
    """`put_message` carries messages from queue to queue; the payload is read before anything is written."""

    async def gone(*_: Any) -> Any:
        raise StorageUnreachable("no answer", resource="claims", maybe_done=True)

    await bench.queue.put(1)
    bench.queue.claims.refit = gone  # type: ignore[method-assign]
    (message,) = await bench.transport.get(1, visibility_seconds=30)
    envelope = bench.queue.decode(message.text)
    with pytest.raises(StorageUnreachable) as raised:
        await bench.queue.put_again(envelope, bench.queue.claims)
    assert not raised.value.maybe_done


def test_a_message_in_an_envelope_is_json() -> None:
    assert msgspec.json.decode(encode(Envelope(kennel=1, id="x", items=[encode_item(1)])))["id"] == "x"
