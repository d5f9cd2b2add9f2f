"""Rules of queues that decide one case each: who has a message, what goes back, what a listener asks next."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from coordinator.errors import (
    ConfigurationError,
    MessageUndecodable,
    ReceiptStale,
    StorageBusy,
    StorageUnreachable,
)
from coordinator.queues import envelope as wire
from coordinator.queues import otel
from coordinator.queues.concurrency import ConcurrencyController
from coordinator.queues.delivery import DONE, Delivery, WorkItem
from coordinator.queues.envelope import Claim
from coordinator.queues.leases import End, LeaseManager
from coordinator.queues.notifications import wait_any
from coordinator.queues.polling import IdleBackoff, Source
from coordinator.queues.quarantine import Quarantine
from coordinator.queues.requeue import move
from coordinator.queues.rules import QueueLoad, Steps, TargetLatency, decide
from coordinator.queues.settling import RetryPolicy, Settler
from coordinator.queues.watchdog import BLOCKED_SECONDS, Stalls
from coordinator.realtime.bus import LocalBus
from coordinator.testing.clock import ManualClock
from coordinator.testing.queues import MemoryQueueTransport, MemoryRules, memory_queue
from tests.unit.queues.harness import ListenerHarness


class Held:
    """One queue, whose messages a test takes and settles by hand."""

    def __init__(self, *, visibility: float = 30.0) -> None:
        self.clock = ManualClock()
        self.transports: dict[str, MemoryQueueTransport] = {}
        self.queue = memory_queue("work", clock=self.clock, transports=self.transports)
        self.leases = LeaseManager(visibility_seconds=visibility, clock=self.clock, rng=random.Random(1))
        self.settler = Settler(self.queue, self.leases, RetryPolicy(), random.Random(1))
        self.visibility = visibility

    async def take(self) -> Delivery:
        """The next message, held, with a work item for each of its items."""
        (message,) = await self.queue.transport.get(1, visibility_seconds=int(self.leases.visibility_seconds))
        now = self.clock.monotonic()
        delivery = Delivery(
            message,
            self.queue.transport,
            self.settler,
            taken_at=now,
            until=now + self.leases.visibility_seconds,
            clock=self.clock,
        )
        delivery.envelope, items = await self.queue.open(message.text)
        delivery.work_items = [WorkItem(delivery, index, item) for index, item in items]
        self.leases.hold(delivery)
        return delivery

    async def attempts(self) -> list[int]:
        """The dequeue count of each message that is there."""
        return [message.dequeue_count for message in await self.queue.transport.peek(32)]


@pytest.fixture
def held() -> Held:
    return Held()


# --- a message and who has it ---------------------------------------------------------------------------------------


async def test_an_item_that_is_dropped_or_restored_twice_is_counted_once(held: Held) -> None:
    await held.queue.put(1)
    delivery = await held.take()
    (item,) = delivery.work_items
    assert delivery.holders == 2
    item.restore()
    assert delivery.holders == 2, "it was not dropped"
    item.drop()
    item.drop()
    assert (delivery.holders, item.dropped) == (1, True)
    item.restore()
    item.restore()
    assert (delivery.holders, item.dropped) == (2, False)


async def test_any_number_of_tasks_may_wait_for_the_loss_of_a_message(held: Held) -> None:
    await held.queue.put(1)
    delivery = await held.take()

    async def wait() -> str:
        return await delivery.loss

    waiting = [asyncio.ensure_future(wait()) for _ in range(3)]
    await held.clock.settle()
    assert not any(task.done() for task in waiting)
    delivery.lose("another has it")
    assert await asyncio.gather(*waiting) == ["another has it"] * 3
    assert await wait() == "another has it"


async def test_what_is_no_longer_held_is_neither_shown_again_nor_given_back(held: Held) -> None:
    await held.queue.put(1)
    delivery = await held.take()
    held.leases.lose(delivery, "another has it")
    await held.settler.abandon(delivery)
    delivery.settle(0, ValueError("no such order"))
    await held.settler.settle(delivery)
    assert held.settler.counts.abandoned == 0 and held.settler.counts.failed == 1
    assert await held.queue.poison.depth() == 0
    assert await held.attempts() == [], "it stays invisible for whoever has it"
    await held.clock.advance(31)
    assert await held.attempts() == [1]
    held.leases.check()


async def test_a_message_that_is_lost_while_its_answer_waits_its_turn_is_left_alone(held: Held) -> None:
    await held.queue.put(1)
    delivery = await held.take()
    async with delivery.lock:  # a renewal is on its way
        giving = asyncio.ensure_future(held.settler.abandon(delivery))
        await held.clock.settle()
        held.leases.lose(delivery, "another has it")
    await giving
    assert await held.attempts() == []
    assert held.leases.ended[End.LOST] == 1 and held.leases.ended[End.ABANDONED] == 0


async def test_a_message_that_is_done_but_was_lost_meanwhile_is_remembered_and_only_deleted_next_time(
    held: Held,
) -> None:
    await held.queue.put(1)
    delivery = await held.take()
    delivery.settle(0, DONE)
    async with delivery.lock:
        settling = asyncio.ensure_future(held.settler.settle(delivery))
        await held.clock.settle()
        held.leases.lose(delivery, "another has it")
    await settling
    assert held.leases.stale == 0, "it was counted when it was lost"
    await held.clock.advance(31)
    again = await held.take()
    assert held.settler.is_done_already(again)
    await held.settler.delete(again)
    assert held.settler.counts.repeats_avoided == 1
    assert await held.queue.depth() == 0


async def test_not_found_after_a_delete_whose_answer_was_lost_means_deleted(held: Held) -> None:
    await held.queue.put(1)
    delivery = await held.take()
    delivery.settle(0, DONE)
    transport, delete = held.queue.transport, held.queue.transport.delete
    answers = [StorageUnreachable("cut", maybe_done=True)]

    async def lossy(id: str, receipt: str) -> None:
        await delete(id, receipt)
        if answers:
            raise answers.pop()

    transport.delete = lossy  # type: ignore[method-assign]
    settling = asyncio.ensure_future(held.settler.settle(delivery))
    await held.clock.advance(10)
    await settling
    assert held.leases.ended[End.SETTLED] == 1 and held.leases.stale == 0
    assert await held.queue.depth() == 0


async def test_a_message_that_another_took_while_storage_was_busy_is_not_counted_as_deleted(
    held: Held,
) -> None:
    await held.queue.put(1)
    delivery = await held.take()
    delivery.settle(0, DONE)
    answers: list[Exception] = [StorageBusy("slow down", status=503), ReceiptStale("taken", status=400)]

    async def refused(id: str, receipt: str) -> None:
        raise answers.pop(0)

    held.queue.transport.delete = refused  # type: ignore[method-assign]
    settling = asyncio.ensure_future(held.settler.settle(delivery))
    await held.clock.advance(10)
    await settling
    assert not answers and held.leases.stale == 1
    assert held.leases.ended[End.SETTLED] == 0 and held.leases.ended[End.LOST] == 1
    assert held.settler.is_done_already(delivery), "if it comes again, it is only deleted"


async def test_the_visibility_is_lengthened_by_late_acknowledgements_up_to_a_limit(held: Held) -> None:
    seconds = [held.leases.visibility_seconds]
    for number in range(400):
        await held.queue.put(number)
        delivery = await held.take()
        held.leases.went_stale(delivery, ReceiptStale("taken", status=400))
        if held.leases.visibility_seconds != seconds[-1]:
            seconds.append(held.leases.visibility_seconds)
    assert len(seconds) > 2 and all(
        after == min(2 * before, seconds[-1]) for before, after in itertools.pairwise(seconds)
    )
    assert held.leases.visibility_seconds == seconds[-1] == max(seconds)
    assert len(held.leases) == 0
    held.leases.check()


# --- the quarantine -------------------------------------------------------------------------------------------------


async def test_a_suspect_message_that_is_lost_before_its_turn_is_not_run(held: Held) -> None:
    added: list[WorkItem] = []
    quarantine = Quarantine(held.leases, clock=held.clock, add=added.append)
    await held.queue.put(1)
    await held.queue.put(2)
    first, second = await held.take(), await held.take()
    quarantine.admit(first)
    quarantine.admit(second)
    held.leases.lose(second, "another has it")
    await held.clock.settle()
    assert added == first.work_items
    await held.clock.advance(20)
    assert added == first.work_items and all(item.dropped for item in second.work_items)
    assert len(quarantine) == 0
    quarantine.close()


async def test_a_suspect_message_whose_items_are_all_done_or_running_waits_for_nothing(held: Held) -> None:
    added: list[WorkItem] = []
    quarantine = Quarantine(held.leases, clock=held.clock, add=added.append)
    await held.queue.put(1, 2)
    delivery = await held.take()
    delivery.settle(0, DONE)
    delivery.work_items[1].running = True
    quarantine.admit(delivery)
    assert len(quarantine) == 0
    await held.clock.advance(10)
    assert added == []


async def test_what_may_have_killed_a_process_runs_alone_for_its_first_minute(held: Held) -> None:
    added: list[WorkItem] = []
    quarantine = Quarantine(held.leases, clock=held.clock, add=added.append)
    for number in range(2):
        await held.queue.put(number)
    first, second = await held.take(), await held.take()
    for delivery in (first, second):
        delivery.envelope = msgspec.structs.replace(delivery.envelope, kills={0: 1})
        quarantine.admit(delivery)
    await held.clock.advance(50)
    assert len(added) == 1
    await held.clock.advance(20)
    assert len(added) == 2, "one that hangs does not hold up the others for ever"
    quarantine.close()


# --- rules, triggers and looks --------------------------------------------------------------------------------------


def test_tasks_that_are_not_needed_end_down_to_what_is_in_flight() -> None:
    idle = decide(
        TargetLatency(60), QueueLoad(0, in_flight=0, tasks=9, service_seconds=1), allowed=range(101)
    )
    assert (idle.tasks, "in flight" in idle.reason) == (0, False)
    busy = decide(
        TargetLatency(60), QueueLoad(600, in_flight=4, tasks=20, service_seconds=1), allowed=range(101)
    )
    assert busy.tasks == 10, "more are wanted than are in flight"


async def test_a_rule_that_is_stored_again_unchanged_keeps_the_pause_after_the_last_step() -> None:
    clock, rules = ManualClock(), MemoryRules()
    rule = TargetLatency(1, up_seconds=100, assumed_service_seconds=1)
    controller = ConcurrencyController("work", range(101), rule, store=rules, clock=clock)
    before = (controller._up_at, controller._down_at) = (clock.monotonic(), clock.monotonic())
    await rules.write("work", rule, by="olga")
    await clock.advance(100)
    await controller.follow(LocalBus())
    assert controller.stored and controller.rule == rule
    assert (controller._up_at, controller._down_at) == before
    await rules.write("work", Steps(), by="olga")
    await clock.advance(100)
    await controller.follow(LocalBus())
    assert controller.rule == Steps() and controller._up_at < 0, "a changed rule counts at once"


async def test_a_queue_that_a_hint_announced_during_its_look_does_not_fall_asleep(held: Held) -> None:
    source = Source(held.queue, 1, held.settler)
    source.looking(held.clock.monotonic())
    source.triggered()
    source.sleep(held.clock.monotonic(), IdleBackoff())
    assert not source.asleep and source.due < held.clock.monotonic()
    source.looking(held.clock.monotonic())
    source.sleep(held.clock.monotonic(), IdleBackoff())
    assert source.asleep


async def test_what_fails_while_an_event_is_waited_for_is_raised() -> None:
    async def broken() -> None:
        raise StorageUnreachable("no network")

    with pytest.raises(StorageUnreachable, match="no network"):
        await wait_any(asyncio.Event(), broken())
    event = asyncio.Event()
    event.set()
    await wait_any(event, asyncio.Event().wait())


async def test_a_blocked_loop_that_runs_no_handler_is_named_by_its_queue_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stalls, "_run", lambda self: None)
    now = [0.0]
    stalls = Stalls(lambda: now[0])

    def handler(item: Any) -> None: ...

    unwatch = stalls.watch("orders", handler)
    stalls.step()
    assert not caplog.records
    now[0] = BLOCKED_SECONDS + 1
    for _ in range(3):
        stalls.step()
    assert len(caplog.records) == 1 and "orders" in caplog.text
    unwatch()


# --- messages -------------------------------------------------------------------------------------------------------


async def test_putting_nothing_puts_nothing(held: Held) -> None:
    assert await held.queue.put() == []
    assert held.transports.get("work") is None or held.transports["work"].requests == 0


async def test_moving_an_empty_queue_moves_nothing_and_wakes_nobody() -> None:
    harness, other = ListenerHarness(), ListenerHarness()
    await harness.queue.create()
    heard: list[str] = []
    other.bus.subscribe("queue:work", lambda hint: heard.append(hint.topic))
    moving = asyncio.ensure_future(move(harness.queue, other.queue))
    while not moving.done():
        await harness.clock.advance(0.5)
    assert await moving == 0 and heard == []


@pytest.mark.parametrize("size", [0, 2**40])
async def test_a_payload_that_would_unpack_to_more_than_is_allowed_is_not_even_read(
    held: Held, size: int
) -> None:
    claim = Claim("a" * 32, 2**40 if not size else 10)
    with pytest.raises(MessageUndecodable, match="the payload unpacks to 1099511627776 bytes; at most"):
        await held.queue.payloads.content(claim, size=size)


def test_an_item_with_an_unknown_object_beside_a_null_is_refused_by_its_type() -> None:
    with pytest.raises(ConfigurationError, match="an item of type dict cannot be put in a queue"):
        wire.encode_item({"a": None, "b": object()})
    assert bytes(wire.encode_item({"a": None, "b": msgspec.Raw(b"[1]")})) == b'{"a":null,"b":[1]}'


def test_a_message_carries_the_state_of_its_trace() -> None:
    context = SpanContext(
        1, 2, is_remote=False, trace_flags=TraceFlags(1), trace_state=TraceState([("shop", "7")])
    )
    with trace.use_span(NonRecordingSpan(context)):
        assert otel.carrier() == {
            "traceparent": f"00-{1:032x}-{2:016x}-01",
            "tracestate": "shop=7",
        }
    assert otel.carrier() == {}
