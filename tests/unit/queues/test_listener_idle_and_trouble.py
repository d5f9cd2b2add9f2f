"""The listener when there is nothing to do, and when something goes wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.errors import AccessDenied, ConfigurationError, StorageUnreachable
from coordinator.gates.gate import Gate
from coordinator.queues.polling import Idle, IdleBackoff, QueueEmpty
from coordinator.queues.protocols import ReceivedMessage
from coordinator.queues.rules import WorkDetected
from coordinator.realtime.bus import Notification
from coordinator.testing.gates import MemoryGateStore
from coordinator.testing.queues import memory_queue
from tests.unit.queues.harness import ConnectedBus, ListenerHarness


async def test_an_idle_queue_is_polled_ever_more_slowly_by_one_task(harness: ListenerHarness) -> None:
    async with harness.listening(tasks=range(51), idle=IdleBackoff(maximum_seconds=10)) as listener:
        await harness.clock.advance(100)
        before = harness.transport.requests
        await harness.clock.advance(3600)
        assert 355 <= harness.transport.requests - before <= 365
        assert listener.active_tasks == 1


@pytest.mark.parametrize(("shared", "least", "most"), [(True, 700, 725), (False, 7000, 7250)])
async def test_ten_idle_queues_of_a_process_cost_what_one_costs(shared: bool, least: int, most: int) -> None:
    harness = ListenerHarness()
    queues = [
        memory_queue(f"work-{number}", type=int, clock=harness.clock, transports=harness.transports)
        for number in range(10)
    ]
    listeners = [queue.listener(lambda item: None, idle=IdleBackoff(shared=shared)) for queue in queues]
    running = [asyncio.create_task(listener.run()) for listener in listeners]
    await harness.clock.advance(120)
    before = [harness.transports[queue.name].requests for queue in queues]
    await harness.clock.advance(3600)
    looks = [
        harness.transports[queue.name].requests - known for queue, known in zip(queues, before, strict=True)
    ]
    assert least <= sum(looks) <= most
    assert max(looks) - min(looks) <= 2, "each gets its turn"
    await queues[7].put(1)
    await harness.clock.settle()
    assert await queues[7].depth() == 0, "a hint is followed at once"
    stopping = [asyncio.create_task(listener.stop(1)) for listener in listeners]
    await harness.clock.advance(10)
    await asyncio.gather(*stopping, *running)


async def test_with_push_an_idle_hour_costs_at_most_12_requests_and_keeps_no_task(
    harness: ListenerHarness,
) -> None:
    harness.bus = ConnectedBus()
    async with harness.listening(tasks=range(51)) as listener:
        await harness.clock.advance(100)
        before = harness.transport.requests
        await harness.clock.advance(3600)
        assert 1 <= harness.transport.requests - before <= 12
        assert listener.active_tasks == 0


async def test_a_trigger_wakes_an_idle_listener_at_once(harness: ListenerHarness) -> None:
    harness.bus = ConnectedBus()
    async with harness.listening(tasks=range(51)):
        await harness.clock.advance(3600)
        await harness.queue.put(1)
        await harness.clock.settle()
        assert harness.got == [1]


async def test_a_trigger_that_comes_during_a_look_in_vain_is_not_lost(harness: ListenerHarness) -> None:
    harness.bus = ConnectedBus()
    transport = harness.transport
    original = transport.get

    async def slow_get(count: int, *, visibility_seconds: float) -> list[ReceivedMessage]:
        found = await original(count, visibility_seconds=visibility_seconds)
        if not found and harness.clock.monotonic() > 1500 and not await transport.count():
            await harness.queue.put(5)  # arrives after the service looked and before its answer is here
        return found

    transport.get = slow_get  # type: ignore[method-assign]
    async with harness.listening(tasks=range(51)):
        await harness.clock.advance(600)
        await harness.bus.publish(Notification(topic="queue:work"))
        await harness.clock.settle()
        assert 5 in harness.got


async def test_work_that_nobody_announced_ends_the_trust_in_push(harness: ListenerHarness) -> None:
    harness.bus = ConnectedBus()
    async with harness.listening(tasks=range(51)):
        await harness.clock.advance(100)
        await harness.transport.put("1")
        await harness.clock.advance(400)
        assert harness.got == [1]
        await harness.transport.put("2")
        await harness.clock.advance(6)
        assert harness.got == [1, 2]


async def test_tasks_grow_by_the_steps_and_shrink_when_the_queue_is_empty(harness: ListenerHarness) -> None:
    release = asyncio.Event()

    async def handler(item: int) -> None:
        await release.wait()

    for number in range(150):
        await harness.queue.put(number)
    async with harness.listening(handler, tasks=range(101)) as listener:
        await harness.clock.advance(5)
        assert listener.active_tasks == 50
        assert listener.decision.reason == "50 tasks: depth 150 (< 1000)"
        release.set()
        await harness.clock.advance(60)
        assert listener.active_tasks == 1


async def test_both_events_can_be_answered_by_others(harness: ListenerHarness) -> None:
    events: list[Any] = []

    def queue_empty(event: QueueEmpty) -> Idle:
        events.append(event)
        return Idle(delay_seconds=100, stop=False)

    async def work_detected(event: WorkDetected) -> int:
        events.append(event)
        return 7

    listener = harness.queue.listener(lambda item: None, tasks=range(51))
    listener.queue_empty, listener.work_detected = queue_empty, work_detected
    running = asyncio.create_task(listener.run())
    await harness.clock.advance(1)
    await harness.queue.put(1)
    await harness.clock.settle()
    assert isinstance(events[0], QueueEmpty)
    assert events[0].idle == 1
    found = next(event for event in events if isinstance(event, WorkDetected))
    assert found.idle == 1
    assert listener.active_tasks == 7
    stopping = asyncio.create_task(listener.stop(1))
    while not stopping.done():
        await harness.clock.advance(1)
        await asyncio.sleep(0.001)
    await running


async def test_slow_handlers_leave_the_rest_of_the_queue_to_others(harness: ListenerHarness) -> None:
    release = asyncio.Event()

    async def handler(item: int) -> None:
        await release.wait()

    for number in range(90):
        await harness.queue.put(number)
    async with harness.listening(handler, tasks=range(11)) as listener:
        await harness.clock.advance(60)
        assert listener.status().in_hand <= 12
        release.set()


async def test_a_batch_that_slow_handlers_will_not_come_to_goes_back_to_others(
    harness: ListenerHarness,
) -> None:
    release = asyncio.Event()

    async def handler(item: int) -> None:
        harness.got.append(item)
        await release.wait()

    for number in range(30):
        await harness.queue.put(number)
    async with harness.listening(handler, tasks=range(51)) as listener:
        assert listener.status().in_hand == 30
        await harness.clock.advance(6)
        assert len(harness.got) == 10
        assert listener.status().in_hand == 10
        others = await harness.transport.get(32, visibility_seconds=60)
        assert len(others) == 20
        assert [harness.queue.decode(message.text).unstarted for message in others] == [1] * 20
        release.set()


# --- trouble --------------------------------------------------------------------------------------------------------


async def test_an_outage_of_20_s_is_waited_out(harness: ListenerHarness) -> None:
    await harness.queue.create()
    original = harness.transport.get

    async def away(count: int, *, visibility_seconds: float) -> list[ReceivedMessage]:
        raise StorageUnreachable("gone")

    async with harness.listening() as listener:
        harness.transport.get = away  # type: ignore[method-assign]
        await harness.queue.put(1)
        await harness.clock.advance(20)
        assert listener.status().state == "unreachable"
        harness.transport.get = original  # type: ignore[method-assign]
        await harness.clock.advance(3)
        assert harness.got == [1]
        assert "gone" not in listener.status().reason


async def test_a_credential_refused_from_the_start_ends_the_listener(harness: ListenerHarness) -> None:
    async def refused(count: int, *, visibility_seconds: float) -> list[ReceivedMessage]:
        raise AccessDenied("wrong key")

    harness.transport.get = refused  # type: ignore[method-assign]
    with pytest.raises(AccessDenied):
        await harness.queue.listener(lambda item: None).run()


async def test_a_message_done_here_whose_delete_failed_is_not_run_again_here(
    harness: ListenerHarness,
) -> None:
    original = harness.transport.delete
    broken = True

    async def delete(id: str, receipt: str) -> None:
        if broken:
            raise StorageUnreachable("gone", maybe_done=True)
        await original(id, receipt)

    harness.transport.delete = delete  # type: ignore[method-assign]
    await harness.queue.put(1)
    async with harness.listening(visibility_seconds=10):
        await harness.clock.advance(12)
        broken = False
        await harness.clock.advance(30)
    assert harness.got == [1]
    assert await harness.queue.depth() == 0


async def test_stale_receipts_are_counted_and_lengthen_the_visibility(harness: ListenerHarness) -> None:
    async def handler(item: int) -> None:
        for message in (harness.transport._messages or {}).values():
            message.receipt = "somebody else's"

    async with harness.listening(handler, tasks=range(1, 2), visibility_seconds=10) as listener:
        for number in range(6):
            await harness.queue.put(number)
            await harness.clock.advance(1)
        assert listener.status().stale_receipts >= 5
        assert (await listener.query_state()).visibility_seconds == 20


async def test_receipts_that_go_stale_together_lengthen_the_visibility_once(harness: ListenerHarness) -> None:
    begun = asyncio.Event()

    async def handler(item: int) -> None:
        await begun.wait()
        for message in (harness.transport._messages or {}).values():
            message.receipt = "somebody else's"

    for number in range(32):
        await harness.queue.put(number)
    async with harness.listening(handler, tasks=range(32, 33), visibility_seconds=10) as listener:
        await harness.clock.advance(2)
        begun.set()
        await harness.clock.advance(2)
        assert listener.status().stale_receipts >= 25
        assert (await listener.query_state()).visibility_seconds == 20


@pytest.mark.parametrize(
    "options", [{"tasks": range(0)}, {"tasks": range(1)}, {"visibility_seconds": 0.5}, {"slots": 0}]
)
def test_a_listener_out_of_bounds_is_refused(harness: ListenerHarness, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        harness.queue.listener(lambda item: None, **options)


async def test_a_renewal_whose_answer_was_lost_is_made_good_when_the_message_comes_back(
    harness: ListenerHarness,
) -> None:
    done = asyncio.Event()
    original = harness.transport.update
    lost = 0

    async def update(id: str, receipt: str, *, visibility_seconds: float, text: str | None = None) -> str:
        nonlocal lost
        renewed = await original(id, receipt, visibility_seconds=visibility_seconds, text=text)
        if not lost:
            lost += 1
            raise StorageUnreachable("the answer was lost", maybe_done=True)
        return renewed

    async def handler(item: int) -> None:
        harness.got.append(item)
        await done.wait()

    harness.transport.update = update  # type: ignore[method-assign]
    await harness.queue.put(1)
    async with harness.listening(handler, visibility_seconds=10):
        await harness.clock.advance(60)
        assert lost == 1
        done.set()
        await harness.clock.advance(30)
        assert harness.got == [1]
        assert await harness.queue.depth() == 0


async def test_nothing_is_taken_before_the_gate_opens_nor_after_it_closed_again(
    harness: ListenerHarness,
) -> None:
    gate = Gate(MemoryGateStore("start"), identity="me", bus=lambda: harness.bus, clock=harness.clock)
    await harness.queue.create()
    async with harness.listening(gate=gate) as listener:
        await harness.queue.put(1)
        before = harness.transport.requests
        await harness.clock.advance(60)
        assert harness.transport.requests == before
        assert listener.status().state == "waiting"
        await gate.open(by="olga")
        await harness.clock.advance(3)
        assert harness.got == [1]
        await gate.close(by="olga")
        await harness.clock.advance(10)
        await harness.queue.put(2)
        before = harness.transport.requests
        await harness.clock.advance(60)
        assert harness.transport.requests == before
        await gate.open(by="olga")
        await harness.clock.advance(3)
        assert harness.got == [1, 2]


async def test_a_queue_credential_refused_after_the_gate_ends_the_listener(harness: ListenerHarness) -> None:
    async def refused(count: int, *, visibility_seconds: float) -> list[ReceivedMessage]:
        raise AccessDenied("wrong key")

    gate = Gate(MemoryGateStore("start"), identity="me", bus=lambda: harness.bus, clock=harness.clock)
    await gate.open(by="olga")
    harness.transport.get = refused  # type: ignore[method-assign]
    with pytest.raises(AccessDenied):
        await harness.queue.listener(lambda item: None, gate=gate).run()
