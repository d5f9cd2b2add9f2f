"""What a listener does about handlers and messages that behave badly, one promise at a time."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import Any

import pytest

from coordinator.errors import ConfigurationError, ReceiptStale
from coordinator.queues.delivery import Delivery, Done, Retry
from coordinator.queues.envelope import Envelope, encode, encode_item
from coordinator.queues.handlers import current_batch, current_message
from coordinator.queues.settling import RetryPolicy, TryFailed
from coordinator.tables.idempotency import once
from coordinator.tables.table import Table
from coordinator.testing.faults import DROP_ANSWER, FaultyStore
from coordinator.testing.queues import memory_queue
from coordinator.testing.tables import MemoryTableStore
from tests.unit.queues.harness import ListenerHarness


async def taken_by_the_dead(harness: ListenerHarness, times: int) -> None:
    """Deliveries whose process died at once."""
    for _ in range(times):
        assert await harness.transport.get(1, visibility_seconds=1)
        await harness.clock.advance(2)


@pytest.mark.parametrize("text", [None, "7"], ids=["ours", "without an envelope"])
async def test_the_dequeue_count_is_looked_at_before_a_handler_runs(
    harness: ListenerHarness, text: str | None
) -> None:
    await harness.queue.create()
    await (harness.transport.put(text) if text else harness.queue.put(7))
    await taken_by_the_dead(harness, 3)
    async with harness.listening(retries=RetryPolicy(attempts=3)):
        await harness.clock.advance(1)
    assert harness.got == []
    assert [record.reason for record in await harness.poisoned()] == ["killed 3 processes"]


async def test_deliveries_given_back_without_a_start_do_not_count_as_deaths(harness: ListenerHarness) -> None:
    await harness.queue.create()
    await harness.transport.put(encode(Envelope(kennel=1, id="x", unstarted=3, items=[encode_item(7)])))
    await taken_by_the_dead(harness, 3)
    before = harness.transport.requests
    async with harness.listening(retries=RetryPolicy(attempts=3)):
        await harness.clock.settle()
        assert harness.got == [7]
        assert harness.transport.requests - before <= 3, "it was taken for a suspect, and marked"


async def test_tries_that_failed_make_no_suspect(harness: ListenerHarness) -> None:
    async def handler(item: int) -> None:
        harness.got.append(item)
        raise ValueError("no")

    await harness.queue.put(1, 2, 3)
    updates: list[str | None] = []
    original = harness.transport.update

    async def update(id: str, receipt: str, *, visibility_seconds: float, text: str | None = None) -> str:
        updates.append(text)
        return await original(id, receipt, visibility_seconds=visibility_seconds, text=text)

    harness.transport.update = update  # type: ignore[method-assign]
    async with harness.listening(handler, retries=RetryPolicy(attempts=3, base_seconds=1, cap_seconds=1)):
        await harness.clock.advance(20)
    assert harness.got == [1, 2, 3] * 3
    assert len(updates) == 2
    assert not any("begun" in (text or "") for text in updates)


async def test_a_message_that_only_waited_beside_a_killer_is_run_before_it_is_tried_again(
    harness: ListenerHarness,
) -> None:
    for number in range(6):
        await harness.queue.put(number)
    await harness.queue.poison.create()
    deaths = 0
    for _ in range(8):
        died = asyncio.Event()

        async def handler(item: int, died: asyncio.Event = died) -> None:
            harness.got.append(item)
            if item == 0:
                died.set()
                await asyncio.Event().wait()

        store = FaultyStore(harness.transport, clock=harness.clock)
        transports: Any = {**harness.transports, "work": store}
        queue = memory_queue("work", type=int, clock=harness.clock, transports=transports)
        listener = queue.listener(handler, tasks=range(1, 2), retries=RetryPolicy(attempts=4))
        running = asyncio.create_task(listener.run())
        await harness.clock.advance(8)
        deaths += died.is_set()
        if died.is_set():
            store.always(DROP_ANSWER.__class__("dead", committed=False, answer="close"))
        stopping = asyncio.create_task(listener.stop(0))
        await harness.clock.advance(40)
        await stopping
        await running
        if not died.is_set():
            break
    assert deaths == 4
    assert [record.reason for record in await harness.poisoned()] == ["killed 4 processes"]
    assert all(1 <= harness.got.count(number) <= 2 for number in range(1, 6)), harness.got


async def test_fifty_of_fifty_items_run_although_storage_was_away_for_40_s(harness: ListenerHarness) -> None:
    store = FaultyStore(harness.transport, clock=harness.clock)
    transports: Any = {**harness.transports, "work": store}
    queue = memory_queue("work", type=int, clock=harness.clock, transports=transports)
    away = DROP_ANSWER.__class__("away", committed=False, answer="close")

    async def handler(item: int) -> None:
        await harness.clock.sleep(8)
        harness.got.append(item)

    await queue.put(*range(50))
    harness.queue = queue
    async with harness.listening(handler):
        await harness.clock.advance(10)
        store.always(away)
        await harness.clock.advance(40)
        store.heal()
        await harness.clock.advance(600)
        assert sorted(set(harness.got)) == list(range(50))
        assert await queue.depth() == 0
    assert len(harness.got) == 50, "the process knows which items it has done"


async def test_an_error_that_cannot_be_encoded_goes_to_poison_all_the_same(harness: ListenerHarness) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even its text")

    async def handler(item: int) -> None:
        raise ValueError("half a pair: \ud800") if item else Broken

    await harness.queue.put(0, 1)
    async with harness.listening(handler, retries=RetryPolicy(attempts=1)):
        await harness.clock.advance(1)
        assert await harness.queue.depth() == 0
    (record,) = await harness.poisoned()
    assert [failure.reason for failure in record.failures] == ["Broken", "half a pair: ?"]


async def test_what_fails_in_a_poison_queue_stays_there(harness: ListenerHarness) -> None:
    harness.queue = memory_queue("work-poison", type=int, clock=harness.clock, transports=harness.transports)
    await harness.queue.put(1)

    async def handler(item: int) -> None:
        harness.got.append(harness.clock.monotonic())
        raise ValueError("no")

    async with harness.listening(handler, retries=RetryPolicy(attempts=2, cap_seconds=100)):
        await harness.clock.advance(250)
    assert len(harness.got) == 4
    assert await harness.queue.depth() == 1


async def test_a_settlement_that_fails_in_an_unforeseen_way_gives_the_message_back(
    harness: ListenerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await harness.queue.put(1)
    async with harness.listening(tasks=range(1, 2)) as listener:
        await harness.clock.settle()

        async def broken(delivery: Delivery) -> None:
            raise RuntimeError("a fault of ours")

        listener.sources[0].settler.settle = broken  # type: ignore[method-assign]
        await harness.queue.put(2)
        await harness.clock.advance(2)
        assert not len(listener.leases)
    assert "could not be settled and is abandoned" in caplog.text


async def test_the_watchdog_gives_back_what_nothing_works_on_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = ListenerHarness()
    await harness.queue.put(1)
    hang = asyncio.Event()

    async def handler(item: int) -> None:
        harness.got.append(item)
        await hang.wait()

    listener = harness.queue.listener(handler)
    running = asyncio.create_task(listener.run())
    await harness.clock.settle()
    (delivery,) = listener.leases
    delivery.holders = 0  # as a fault of this library would
    with pytest.raises(AssertionError, match="1 held messages have nothing running"):
        listener.leases.check()
    await harness.clock.advance(70)
    assert "Abandoned a held message of work" in caplog.text
    assert harness.got == [1, 1]
    hang.set()
    stopping = asyncio.create_task(listener.stop(1))
    await harness.clock.advance(10)
    await stopping
    await running


async def test_clearing_a_queue_with_messages_in_flight_leaves_the_visibility_as_it_is(
    harness: ListenerHarness,
) -> None:
    async def handler(item: int) -> None:
        await harness.clock.sleep(60)

    for number in range(30):
        await harness.queue.put(number)
    async with harness.listening(handler, tasks=range(30, 31)) as listener:
        await harness.clock.advance(5)
        await harness.queue.clear()
        await harness.clock.advance(60)
        assert listener.status().stale_receipts >= 30
        assert listener.leases.visibility_seconds == 30


async def test_a_visibility_that_was_lengthened_comes_down_again(harness: ListenerHarness) -> None:
    async with harness.listening() as listener:
        for _ in range(15):
            await harness.queue.put(1)
            (message,) = await harness.transport.get(1, visibility_seconds=1)
            delivery = Delivery(
                message,
                harness.transport,
                listener.sources[0].settler,
                taken_at=0,
                until=1e9,
                clock=harness.clock,
            )
            listener.leases.hold(delivery)
            listener.leases.went_stale(delivery, ReceiptStale("taken", status=400))
        assert listener.leases.visibility_seconds == 240
        await harness.clock.advance(301)
        assert listener.leases.visibility_seconds == 120
        await harness.clock.advance(600)
        assert listener.leases.visibility_seconds == 30


async def test_a_handler_learns_that_it_no_longer_holds_its_message(harness: ListenerHarness) -> None:
    learned: list[Any] = []

    async def handler(item: int) -> None:
        context = current_message()
        learned.append(context.held)
        learned.append(await context.lost)
        learned.append(context.held)

    await harness.queue.put(1)
    async with harness.listening(handler):
        await harness.clock.settle()
        await harness.queue.clear()
        await harness.clock.advance(20)
    assert learned == [True, "its receipt is no longer valid (no message " + learned[1].split()[-1], False]


async def test_a_thread_learns_that_it_no_longer_holds_its_message(harness: ListenerHarness) -> None:
    learned: list[Any] = []
    begun = threading.Event()

    def handler(item: int) -> None:
        context = current_message()
        learned.append(context.held)
        begun.set()
        learned.append(context.lost.wait(10))
        learned.append(context.held)

    await harness.queue.put(1)
    async with harness.listening(handler, timeout=40, retries=RetryPolicy(attempts=1)):
        while not begun.is_set():
            await asyncio.sleep(0.001)
        await harness.clock.advance(41)
        while len(learned) < 3:
            await asyncio.sleep(0.001)
    assert learned == [True, True, False]


async def test_a_coroutine_that_ignores_its_time_out_keeps_no_message(
    harness: ListenerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    done = asyncio.Event()

    async def stubborn(item: int) -> None:
        harness.got.append(item)
        while not done.is_set():
            try:
                await done.wait()
            except asyncio.CancelledError:
                continue

    await harness.queue.put(1)
    async with harness.listening(stubborn, timeout=20, tasks=range(1, 2)) as listener:
        await harness.clock.advance(45)
        assert not len(listener.leases)
        done.set()
        await harness.clock.advance(1)
        await harness.queue.clear()
    assert "ignores its time-out" in caplog.text


async def test_a_handler_that_runs_for_ten_minutes_without_a_time_out_is_named(
    harness: ListenerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    done = asyncio.Event()

    async def dawdler(item: int) -> None:
        await done.wait()

    await harness.queue.put(1)
    async with harness.listening(dawdler):
        await harness.clock.advance(1900)
        done.set()
        await harness.clock.advance(1)
    said = [entry.getMessage() for entry in caplog.records if getattr(entry, "action", "") == "long"]
    assert [text.split(" has run for ")[1].split(" on ")[0] for text in said] == ["10 min", "20 min"]
    assert "dawdler of work" in said[0]


async def test_a_failed_try_before_the_last_is_logged_and_signalled(
    harness: ListenerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[TryFailed] = []

    async def handler(item: int) -> None:
        raise ValueError("no such customer")

    async with harness.listening(handler, retries=RetryPolicy(attempts=2)) as listener:
        listener.try_failed = told.append
        await harness.queue.put(7)
        await harness.clock.advance(10)
    (line,) = [entry for entry in caplog.records if getattr(entry, "action", "") == "retry"]
    assert line.levelno == logging.WARNING
    assert line.getMessage().startswith(
        "Attempt 1 of 2 of an item of work failed: ValueError: no such customer; next attempt in"
    )
    assert [(failed.attempt, failed.again_seconds is None) for failed in told] == [(1, False), (2, True)]
    assert told[0].id == told[1].id


async def test_a_negative_pause_before_the_next_try_is_the_usual_one(harness: ListenerHarness) -> None:
    async def handler(item: int) -> None:
        harness.got.append(harness.clock.monotonic())
        raise Retry(after=-5)

    await harness.queue.put(1)
    async with harness.listening(handler, retries=RetryPolicy(attempts=3, base_seconds=10)):
        await harness.clock.advance(60)
    first, second, third = harness.got
    assert second - first >= 5
    assert third - second >= 10


@pytest.mark.parametrize("after", [float("nan"), float("inf"), 604_801])
def test_a_pause_that_no_service_can_keep_is_refused(after: float) -> None:
    with pytest.raises(ConfigurationError, match="7 days"):
        Retry(after=after)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1}, {"linger_seconds": -1}])
def test_a_time_out_out_of_bounds_is_refused(harness: ListenerHarness, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        harness.queue.listener(lambda item: None, **options)


# --- once -----------------------------------------------------------------------------------------------------------


async def test_once_runs_a_def_handler_once_although_its_message_comes_again(
    harness: ListenerHarness,
) -> None:
    fail = [True]

    @once(Table(MemoryTableStore("marks")), key=str, clock=harness.clock)
    def pay(item: int) -> None:
        harness.got.append(item)
        if fail:
            fail.clear()
            raise ValueError("not yet")

    await harness.queue.put(7)
    await harness.queue.put(7)
    async with harness.listening(pay, retries=RetryPolicy(base_seconds=1, cap_seconds=1)):
        for _ in range(2000):
            await harness.clock.advance(0.1)
            await asyncio.sleep(0.001)
            if not await harness.queue.depth():
                break
    assert harness.got == [7, 7], "one failed, the other did it, and the third found it done"
    assert await harness.poisoned_count() == 0


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_once_hands_a_batch_handler_only_what_is_not_done(harness: ListenerHarness, kind: str) -> None:
    marks = once(Table(MemoryTableStore("marks")), key=str, clock=harness.clock)

    def answer(items: list[int]) -> list[Any]:
        assert len(current_batch()) >= len(items)
        harness.got.append(items)
        return [Retry("later", after=1) if item == 3 and len(harness.got) == 1 else Done() for item in items]

    if kind == "def":
        handler: Any = marks(answer)
    else:

        @marks
        async def handler(items: list[int]) -> list[Any]:
            return answer(items)

    await harness.queue.put(1, 2, 3, 4)
    await harness.queue.put(1, 2, 3, 5)
    async with harness.listening(handler, batch=4, tasks=range(1, 2)):
        for _ in range(3000):
            await harness.clock.advance(0.1)
            await asyncio.sleep(0.001)
            if not await harness.queue.depth():
                break
    assert harness.got[0] == [1, 2, 3, 4]
    done = [item for items in harness.got for item in items]
    assert {item: done.count(item) for item in done} == {1: 1, 2: 1, 3: 2, 4: 1, 5: 1}
    assert await harness.poisoned_count() == 0


def test_once_refuses_a_generator() -> None:
    with pytest.raises(ConfigurationError, match="is a generator"):

        @once(Table(MemoryTableStore("marks")), key=str)
        def pay(item: int) -> Any:
            yield item


async def test_a_handler_that_ignores_its_cancellation_does_not_hold_up_the_stop(
    harness: ListenerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = asyncio.Event()

    async def stubborn(item: int) -> None:
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await let_go.wait()

    await harness.queue.put(1)
    listener = harness.queue.listener(stubborn)
    running = asyncio.create_task(listener.run())
    await harness.clock.settle()
    stopping = asyncio.create_task(listener.stop(1))
    await harness.clock.advance(12)
    await asyncio.wait_for(asyncio.gather(stopping, running), 5)
    assert "ignores its cancellation" in caplog.text
    await harness.clock.advance(30)
    assert await harness.queue.take(1, visibility_seconds=1), (
        "others get its message when its visibility ends"
    )
    let_go.set()
