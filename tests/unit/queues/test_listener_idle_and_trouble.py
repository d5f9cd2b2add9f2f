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
from coordinator.realtime.bus import Hint
from coordinator.testing.gates import MemoryGateStore
from coordinator.testing.queues import memory_queue
from tests.unit.queues.bench import Bench, ConnectedBus


async def test_an_idle_queue_is_polled_ever_more_slowly_by_one_task(bench: Bench) -> None:
    async with bench.listening(tasks=range(51), idle=IdleBackoff(maximum_seconds=10)) as listener:
        await bench.clock.advance(100)
        before = bench.transport.requests
        await bench.clock.advance(3600)
        assert 355 <= bench.transport.requests - before <= 365
        assert listener.active_tasks == 1


@pytest.mark.parametrize(("shared", "least", "most"), [(True, 700, 725), (False, 7000, 7250)])
async def test_ten_idle_queues_of_a_process_cost_what_one_costs(shared: bool, least: int, most: int) -> None:
    bench = Bench()
    queues = [
        memory_queue(f"work-{number}", type=int, clock=bench.clock, transports=bench.transports)
        for number in range(10)
    ]
    listeners = [queue.listener(lambda item: None, idle=IdleBackoff(shared=shared)) for queue in queues]
    running = [asyncio.create_task(listener.run()) for listener in listeners]
    await bench.clock.advance(120)
    before = [bench.transports[queue.name].requests for queue in queues]
    await bench.clock.advance(3600)
    looks = [
        bench.transports[queue.name].requests - known for queue, known in zip(queues, before, strict=True)
    ]
    assert least <= sum(looks) <= most
    assert max(looks) - min(looks) <= 2, "each gets its turn"
    await queues[7].put(1)
    await bench.clock.settle()
    assert await queues[7].depth() == 0, "a hint is followed at once"
    stopping = [asyncio.create_task(listener.stop(1)) for listener in listeners]
    await bench.clock.advance(10)
    await asyncio.gather(*stopping, *running)


async def test_with_push_an_idle_hour_costs_at_most_12_requests_and_keeps_no_task(bench: Bench) -> None:
    bench.bus = ConnectedBus()
    async with bench.listening(tasks=range(51)) as listener:
        await bench.clock.advance(100)
        before = bench.transport.requests
        await bench.clock.advance(3600)
        assert 1 <= bench.transport.requests - before <= 12
        assert listener.active_tasks == 0


async def test_a_trigger_wakes_an_idle_listener_at_once(bench: Bench) -> None:
    bench.bus = ConnectedBus()
    async with bench.listening(tasks=range(51)):
        await bench.clock.advance(3600)
        await bench.queue.put(1)
        await bench.clock.settle()
        assert bench.got == [1]


async def test_a_trigger_that_comes_during_a_look_in_vain_is_not_lost(bench: Bench) -> None:
    bench.bus = ConnectedBus()
    transport = bench.transport
    original = transport.get

    async def slow_get(count: int, *, visibility_seconds: float) -> list[ReceivedMessage]:
        found = await original(count, visibility_seconds=visibility_seconds)
        if not found and bench.clock.monotonic() > 1500 and not await transport.count():
            await bench.queue.put(5)  # arrives after the service looked and before its answer is here
        return found

    transport.get = slow_get  # type: ignore[method-assign]
    async with bench.listening(tasks=range(51)):
        await bench.clock.advance(600)
        await bench.bus.publish(Hint(topic="queue:work"))
        await bench.clock.settle()
        assert 5 in bench.got


async def test_work_that_nobody_announced_ends_the_trust_in_push(bench: Bench) -> None:
    bench.bus = ConnectedBus()
    async with bench.listening(tasks=range(51)):
        await bench.clock.advance(100)
        await bench.transport.put("1")
        await bench.clock.advance(400)
        assert bench.got == [1]
        await bench.transport.put("2")
        await bench.clock.advance(6)
        assert bench.got == [1, 2]


async def test_tasks_grow_by_the_steps_and_shrink_when_the_queue_is_empty(bench: Bench) -> None:
    release = asyncio.Event()

    async def handler(item: int) -> None:
        await release.wait()

    for number in range(150):
        await bench.queue.put(number)
    async with bench.listening(handler, tasks=range(101)) as listener:
        await bench.clock.advance(5)
        assert listener.active_tasks == 50
        assert listener.decision.reason == "50 because 150 in the queue is below 1000"
        release.set()
        await bench.clock.advance(60)
        assert listener.active_tasks == 1


async def test_both_events_can_be_answered_by_others(bench: Bench) -> None:
    events: list[Any] = []

    def queue_empty(event: QueueEmpty) -> Idle:
        events.append(event)
        return Idle(delay_seconds=100, stop=False)

    async def work_detected(event: WorkDetected) -> int:
        events.append(event)
        return 7

    listener = bench.queue.listener(lambda item: None, tasks=range(51))
    listener.queue_empty, listener.work_detected = queue_empty, work_detected
    running = asyncio.create_task(listener.run())
    await bench.clock.advance(1)
    await bench.queue.put(1)
    await bench.clock.settle()
    assert isinstance(events[0], QueueEmpty)
    assert events[0].idle == 1
    found = next(event for event in events if isinstance(event, WorkDetected))
    assert found.idle == 1
    assert listener.active_tasks == 7
    stopping = asyncio.create_task(listener.stop(1))
    while not stopping.done():
        await bench.clock.advance(1)
        await asyncio.sleep(0.001)
    await running


async def test_slow_handlers_leave_the_rest_of_the_queue_to_others(bench: Bench) -> None:
    release = asyncio.Event()

    async def handler(item: int) -> None:
        await release.wait()

    for number in range(90):
        await bench.queue.put(number)
    async with bench.listening(handler, tasks=range(11)) as listener:
        await bench.clock.advance(60)
        assert listener.status().in_hand <= 12
        release.set()


async def test_a_batch_that_slow_handlers_will_not_come_to_goes_back_to_others(bench: Bench) -> None:
    release = asyncio.Event()

    async def handler(item: int) -> None:
        bench.got.append(item)
        await release.wait()

    for number in range(30):
        await bench.queue.put(number)
    async with bench.listening(handler, tasks=range(51)) as listener:
        assert listener.status().in_hand == 30
        await bench.clock.advance(6)
        assert len(bench.got) == 10
        assert listener.status().in_hand == 10
        others = await bench.transport.get(32, visibility_seconds=60)
        assert len(others) == 20
        assert [bench.queue.decode(message.text).unstarted for message in others] == [1] * 20
        release.set()


# --- trouble --------------------------------------------------------------------------------------------------------


async def test_an_outage_of_20_s_is_waited_out(bench: Bench) -> None:
    await bench.queue.create()
    original = bench.transport.get

    async def away(count: int, *, visibility_seconds: float) -> list[ReceivedMessage]:
        raise StorageUnreachable("gone")

    async with bench.listening() as listener:
        bench.transport.get = away  # type: ignore[method-assign]
        await bench.queue.put(1)
        await bench.clock.advance(20)
        assert listener.status().state == "unreachable"
        bench.transport.get = original  # type: ignore[method-assign]
        await bench.clock.advance(3)
        assert bench.got == [1]
        assert "gone" not in listener.status().reason


async def test_a_credential_refused_from_the_start_ends_the_listener(bench: Bench) -> None:
    async def refused(count: int, *, visibility_seconds: float) -> list[ReceivedMessage]:
        raise AccessDenied("wrong key")

    bench.transport.get = refused  # type: ignore[method-assign]
    with pytest.raises(AccessDenied):
        await bench.queue.listener(lambda item: None).run()


async def test_a_message_done_here_whose_delete_failed_is_not_run_again_here(bench: Bench) -> None:
    original = bench.transport.delete
    broken = True

    async def delete(id: str, receipt: str) -> None:
        if broken:
            raise StorageUnreachable("gone", maybe_done=True)
        await original(id, receipt)

    bench.transport.delete = delete  # type: ignore[method-assign]
    await bench.queue.put(1)
    async with bench.listening(visibility_seconds=10):
        await bench.clock.advance(12)
        broken = False
        await bench.clock.advance(30)
    assert bench.got == [1]
    assert await bench.queue.depth() == 0


async def test_stale_receipts_are_counted_and_lengthen_the_visibility(bench: Bench) -> None:
    async def handler(item: int) -> None:
        for message in (bench.transport._messages or {}).values():
            message.receipt = "somebody else's"

    async with bench.listening(handler, tasks=range(1, 2), visibility_seconds=10) as listener:
        for number in range(6):
            await bench.queue.put(number)
            await bench.clock.advance(1)
        assert listener.status().stale_receipts >= 5
        assert (await listener.query_state()).visibility_seconds == 20


@pytest.mark.parametrize(
    "options", [{"tasks": range(0)}, {"tasks": range(1)}, {"visibility_seconds": 0.5}, {"slots": 0}]
)
def test_a_listener_out_of_bounds_is_refused(bench: Bench, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        bench.queue.listener(lambda item: None, **options)


async def test_a_renewal_whose_answer_was_lost_is_made_good_when_the_message_comes_back(bench: Bench) -> None:
    done = asyncio.Event()
    original = bench.transport.update
    lost = 0

    async def update(id: str, receipt: str, *, visibility_seconds: float, text: str | None = None) -> str:
        nonlocal lost
        renewed = await original(id, receipt, visibility_seconds=visibility_seconds, text=text)
        if not lost:
            lost += 1
            raise StorageUnreachable("the answer was lost", maybe_done=True)
        return renewed

    async def handler(item: int) -> None:
        bench.got.append(item)
        await done.wait()

    bench.transport.update = update  # type: ignore[method-assign]
    await bench.queue.put(1)
    async with bench.listening(handler, visibility_seconds=10):
        await bench.clock.advance(60)
        assert lost == 1
        done.set()
        await bench.clock.advance(30)
        assert bench.got == [1]
        assert await bench.queue.depth() == 0


async def test_nothing_is_taken_before_the_gate_opens_nor_after_it_closed_again(bench: Bench) -> None:
    gate = Gate(MemoryGateStore("start"), identity="me", bus=lambda: bench.bus, clock=bench.clock)
    await bench.queue.create()
    async with bench.listening(gate=gate) as listener:
        await bench.queue.put(1)
        before = bench.transport.requests
        await bench.clock.advance(60)
        assert bench.transport.requests == before
        assert listener.status().state == "waiting"
        await gate.open(by="olga")
        await bench.clock.advance(3)
        assert bench.got == [1]
        await gate.close(by="olga")
        await bench.clock.advance(10)
        await bench.queue.put(2)
        before = bench.transport.requests
        await bench.clock.advance(60)
        assert bench.transport.requests == before
        await gate.open(by="olga")
        await bench.clock.advance(3)
        assert bench.got == [1, 2]


async def test_a_queue_credential_refused_after_the_gate_ends_the_listener(bench: Bench) -> None:
    async def refused(count: int, *, visibility_seconds: float) -> list[ReceivedMessage]:
        raise AccessDenied("wrong key")

    gate = Gate(MemoryGateStore("start"), identity="me", bus=lambda: bench.bus, clock=bench.clock)
    await gate.open(by="olga")
    bench.transport.get = refused  # type: ignore[method-assign]
    with pytest.raises(AccessDenied):
        await bench.queue.listener(lambda item: None, gate=gate).run()
