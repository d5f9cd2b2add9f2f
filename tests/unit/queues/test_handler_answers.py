"""What becomes of an item whose handler answers, or ends, in an unusual way."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from coordinator.errors import ConfigurationError, StorageUnreachable
from coordinator.queues.delivery import Reject, Retry
from coordinator.queues.envelope import Envelope, encode, encode_item
from coordinator.queues.handlers import MessageContext, current_message
from coordinator.queues.settling import RetryPolicy, TryFailed
from coordinator.testing.faults import Fault, FaultyStore
from coordinator.testing.queues import memory_queue
from tests.unit.queues.harness import ListenerHarness

ONE_TRY = RetryPolicy(attempts=1)
AWAY = Fault("away", committed=False, answer="close")


async def until(harness: ListenerHarness, ready: Callable[[], bool]) -> None:
    """Until what a handler's thread does is seen; the clock only ticks."""
    async with asyncio.timeout(20):
        while not ready():
            await harness.clock.advance(0.01)
            await asyncio.sleep(0.001)


async def reasons(harness: ListenerHarness) -> list[str]:
    return sorted(record.reason for record in await harness.poisoned())


@asynccontextmanager
async def counted(context: MessageContext, seen: list[str]) -> AsyncIterator[None]:
    seen.append(f"begin {context.item}")
    yield
    seen.append(f"end {context.item}")


@pytest.mark.parametrize(
    "answer", [Retry("not now", after=1), Reject("no such item")], ids=["retry", "reject"]
)
async def test_a_wrapped_handler_may_return_a_retry_or_a_reject(
    harness: ListenerHarness, answer: Exception
) -> None:
    seen: list[str] = []

    async def handler(item: int) -> Any:
        harness.got.append(item)
        return answer

    await harness.queue.put(7)
    wrap = partial(counted, seen=seen)
    async with harness.listening(handler, middleware=[wrap], retries=RetryPolicy(attempts=2)):
        await harness.clock.advance(3)
    assert harness.got == [7] * (2 if isinstance(answer, Retry) else 1)
    assert seen == ["begin 7"] * len(harness.got), "what comes after a try that failed must not be run"
    assert await reasons(harness) == [str(answer)]


async def test_a_batch_handler_has_no_middleware_and_no_single_message(harness: ListenerHarness) -> None:
    with pytest.raises(ConfigurationError, match="a batch handler has none"):
        harness.queue.listener(lambda items: None, batch=2, middleware=[partial(counted, seen=[])])

    async def handler(items: list[int]) -> None:
        with pytest.raises(LookupError, match="current_batch"):
            current_message()
        harness.got.append(items)

    await harness.queue.put(1, 2)
    async with harness.listening(handler, batch=2, retries=ONE_TRY):
        await harness.clock.advance(1)
    assert harness.got == [[1, 2]] and await harness.poisoned_count() == 0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([None], "it got 2 items and gave 1"),
        ([None, "done"], "a batch handler's outcomes are Done, Retry or Reject, not 'done'"),
    ],
)
async def test_a_batch_handler_that_answers_something_else_fails_and_is_corrected(
    harness: ListenerHarness, answer: list[Any], reason: str
) -> None:
    async def handler(items: list[int]) -> list[Any]:
        return answer

    await harness.queue.put(1, 2)
    async with harness.listening(handler, batch=2, retries=ONE_TRY):
        await harness.clock.advance(1)
    (record,) = await harness.poisoned()
    assert len(record.failures) == 2
    assert all(reason in failure.reason for failure in record.failures)


async def test_a_handler_that_cancels_its_own_task_fails_and_the_listener_goes_on(
    harness: ListenerHarness,
) -> None:
    async def handler(item: int) -> None:
        harness.got.append(item)
        if item == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    await harness.queue.put(1)
    await harness.queue.put(2)
    async with harness.listening(handler, tasks=range(1, 2), retries=ONE_TRY):
        await harness.clock.advance(1)
    assert sorted(harness.got) == [1, 2]
    assert await reasons(harness) == ["the handler raised CancelledError"]


async def test_a_handler_that_exits_after_its_time_out_is_reported_as_late(harness: ListenerHarness) -> None:
    async def handler(item: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            sys.exit(3)

    await harness.queue.put(1)
    async with harness.listening(handler, timeout=5, retries=ONE_TRY):
        await harness.clock.advance(8)
    assert await reasons(harness) == ["it took longer than its time-out of 5 s"]


async def test_a_stop_iteration_out_of_a_thread_is_a_failure_with_its_name(harness: ListenerHarness) -> None:
    def handler(item: int) -> None:
        harness.got.append(item)
        next(iter(()))

    await harness.queue.put(1)
    await harness.queue.poison.create()
    async with harness.listening(handler, retries=ONE_TRY):
        await until(harness, lambda: bool(harness.transports["work-poison"]._messages))
    assert await reasons(harness) == ["the handler raised StopIteration"]


async def test_a_plain_function_that_returns_a_coroutine_is_awaited(harness: ListenerHarness) -> None:
    async def work(item: int) -> Any:
        harness.got.append(item)
        return Reject("looked at")

    await harness.queue.put(4)
    await harness.queue.poison.create()
    async with harness.listening(lambda item: work(item), retries=ONE_TRY):
        await until(harness, lambda: bool(harness.transports["work-poison"]._messages))
    assert harness.got == [4]
    assert await reasons(harness) == ["looked at"]


async def test_a_callback_for_failed_tries_that_fails_is_logged_and_changes_nothing(
    harness: ListenerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(failed: TryFailed) -> None:
        raise ZeroDivisionError("in the callback")

    async def handler(item: int) -> None:
        raise ValueError("no such customer")

    async with harness.listening(handler, retries=ONE_TRY) as listener:
        listener.try_failed = broken
        await harness.queue.put(1)
        await harness.clock.advance(20)
    assert await reasons(harness) == ["no such customer"]
    assert "The try_failed handler of work failed" in caplog.text


# --- messages whose deliveries never reported -----------------------------------------------------------------------


async def taken_by_the_dead(harness: ListenerHarness, times: int, count: int = 1) -> None:
    for _ in range(times):
        left = count
        while left > 0:
            got = await harness.transport.get(min(32, left), visibility_seconds=1)
            assert got
            left -= len(got)
        await harness.clock.advance(2)


async def test_an_item_that_cannot_be_decoded_is_no_suspect(harness: ListenerHarness) -> None:
    await harness.queue.create()
    items = [encode_item("seven"), encode_item(8)]
    await harness.transport.put(encode(Envelope(kennel=1, id="x", items=items)))
    await taken_by_the_dead(harness, 2)
    async with harness.listening(retries=RetryPolicy(attempts=5)):
        await harness.clock.advance(3)
    (record,) = await harness.poisoned()
    assert "Expected `int`, got `str`" in record.failures[0].reason
    assert harness.got == [8]


async def test_more_suspects_than_can_be_watched_are_left_to_others(harness: ListenerHarness) -> None:
    for number in range(40):
        await harness.queue.put(number)
    await taken_by_the_dead(harness, 2, count=40)
    done = asyncio.Event()

    async def handler(item: int) -> None:
        harness.got.append(item)
        await done.wait()

    async with harness.listening(handler, tasks=range(50, 51)) as listener:
        await harness.clock.advance(1)
        assert 1 <= len(listener.leases) <= 33, "the others have to be visible to other processes"
        done.set()
        await harness.clock.advance(300)
        assert sorted(harness.got) == list(range(40)), "each of them once, in the end"


async def test_a_suspect_that_cannot_be_marked_is_not_run(
    harness: ListenerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await harness.queue.put(7)
    await taken_by_the_dead(harness, 2)
    store = FaultyStore(harness.transport, clock=harness.clock)
    store.times(1, AWAY, method="update")
    transports: Any = {**harness.transports, "work": store}
    harness.queue = memory_queue("work", type=int, clock=harness.clock, transports=transports)
    async with harness.listening():
        await harness.clock.advance(5)
        assert harness.got == [], "it ran although nothing would show that it killed this process"
        await harness.clock.advance(60)
    assert harness.got == [7]
    assert "was not run: it could not be marked" in caplog.text


async def test_a_suspect_that_somebody_deletes_is_not_run(harness: ListenerHarness) -> None:
    await harness.queue.put(1)
    await harness.queue.put(2)
    await taken_by_the_dead(harness, 2, count=2)
    done = asyncio.Event()

    async def handler(item: int) -> None:
        harness.got.append(item)
        await done.wait()

    async with harness.listening(handler, tasks=range(1, 2)):
        await harness.clock.settle()
        await harness.queue.clear()
        await harness.clock.advance(40)
        done.set()
        await harness.clock.advance(5)
    assert len(harness.got) == 1


async def test_an_unforeseen_error_while_reading_a_message_puts_it_into_poison(
    harness: ListenerHarness,
) -> None:
    async def broken(envelope: Envelope) -> Any:
        raise RuntimeError("a fault of ours")

    await harness.queue.put(1)
    await harness.queue.put(2)
    harness.queue.items = broken  # type: ignore[method-assign]
    async with harness.listening(retries=ONE_TRY):
        await harness.clock.advance(1)
    assert harness.got == []
    assert await reasons(harness) == ["the message could not be read: RuntimeError: a fault of ours"] * 2


async def test_an_envelope_that_leaves_no_item_goes_to_poison(harness: ListenerHarness) -> None:
    await harness.queue.create()
    text = encode(Envelope(kennel=1, id="x", items=[encode_item(7)], left=[3]))
    await harness.transport.put(text)
    async with harness.listening():
        await harness.clock.advance(1)
    assert await reasons(harness) == ["the envelope holds no pending item"]


async def test_a_delete_that_storage_refuses_for_a_while_is_made_up_for(harness: ListenerHarness) -> None:
    store = FaultyStore(harness.transport, clock=harness.clock)
    transports: Any = {**harness.transports, "work": store}
    await harness.queue.put(7)
    harness.queue = memory_queue("work", type=int, clock=harness.clock, transports=transports)
    store.times(60, AWAY, method="delete")
    async with harness.listening():
        await harness.clock.advance(120)
        assert await harness.queue.depth() == 0
    assert harness.got == [7], "it came again, and was only deleted"


# --- what a queue refuses --------------------------------------------------------------------------------------------


async def test_a_queue_says_what_it_cannot_do(harness: ListenerHarness) -> None:
    await harness.queue.create()
    for count in (0, 33):
        with pytest.raises(ConfigurationError, match=f"got {count}"):
            await harness.queue.peek(count)
    with pytest.raises(ConfigurationError, match="use put\\(\\)"):
        await harness.queue.put_text("x" * 65_537)
    with pytest.raises(ConfigurationError, match="is a poison queue itself"):
        _ = harness.queue.poison.poison


async def test_clearing_and_deleting_a_queue_that_is_not_there_is_no_error(harness: ListenerHarness) -> None:
    await harness.queue.clear()
    await harness.queue.delete()
    assert not harness.transport.exists
    await harness.queue.put(1)
    await harness.queue.delete()
    assert not harness.transport.exists


async def test_a_put_whose_claim_cannot_be_read_again_put_nothing(harness: ListenerHarness) -> None:
    """`put_message` carries messages from queue to queue; the payload is read before anything is written."""

    async def gone(*_: Any) -> Any:
        raise StorageUnreachable("no answer", resource="claims", maybe_done=True)

    await harness.queue.put(1)
    harness.queue.payloads.refit = gone  # type: ignore[method-assign]
    (message,) = await harness.transport.get(1, visibility_seconds=30)
    envelope = harness.queue.decode(message.text)
    with pytest.raises(StorageUnreachable) as raised:
        await harness.queue.put_again(envelope, harness.queue.payloads)
    assert not raised.value.maybe_done


# --- what is known of messages stays small ---------------------------------------------------------------------------


async def test_what_is_remembered_of_foreign_and_undeleted_messages_has_a_bound(
    harness: ListenerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.queues.settling._REMEMBERED", 2)

    async def failing(item: int) -> None:
        raise Retry(after=1000)

    await harness.queue.create()
    for number in range(6):
        await harness.transport.put(str(number))  # without an envelope: nothing can be noted on it
    async with harness.listening(failing) as listener:
        await harness.clock.advance(2)
        assert len(listener.sources[0].settler._foreign) == 2
    store = FaultyStore(harness.transport, clock=harness.clock)
    transports: Any = {**harness.transports, "work": store}
    harness.queue = memory_queue("work", type=int, clock=harness.clock, transports=transports)
    await harness.queue.clear()
    await harness.queue.put(1)
    await harness.queue.put(2)
    await harness.queue.put(3)
    store.times(1000, AWAY, method="delete")
    async with harness.listening() as listener:
        await harness.clock.advance(100)
        assert len(listener.sources[0].settler._done_undeleted) <= 2
        store.heal()


async def test_a_failed_try_of_a_message_that_was_deleted_meanwhile_changes_nothing(
    harness: ListenerHarness,
) -> None:
    fail = asyncio.Event()

    async def handler(item: int) -> None:
        await fail.wait()
        raise ValueError("no")

    await harness.queue.put(1)
    async with harness.listening(handler) as listener:
        await harness.clock.settle()
        await harness.queue.clear()
        fail.set()
        await harness.clock.advance(1)
        assert listener.status().stale_receipts == 1
    assert await harness.queue.depth() == 0
    assert not harness.transports.get("work-poison") or await harness.poisoned_count() == 0


async def test_losses_that_were_never_asked_after_are_known_when_they_are(harness: ListenerHarness) -> None:
    """`current_message()` for the first time after the message was lost."""
    go, learned = asyncio.Event(), list[Any]()

    async def handler(item: int) -> None:
        await go.wait()
        lost = current_message().lost
        learned.extend([lost.held, await lost])

    await harness.queue.put(1)
    async with harness.listening(handler):
        await harness.clock.settle()
        await harness.queue.clear()
        await harness.clock.advance(25)
        go.set()
        await harness.clock.advance(1)
    assert learned == [False, "it was lost"]
