"""What is invisible now is looked for when it will be visible if that is known, and ever more rarely if it is not."""

from __future__ import annotations

import pytest

from coordinator.queues.delivery import Retry
from coordinator.queues.notifications import MOST_MOMENTS
from coordinator.realtime.bus import Notification
from tests.unit.queues.harness import ConnectedBus, ListenerHarness


@pytest.fixture
def harness() -> ListenerHarness:
    harness = ListenerHarness()
    harness.bus = ConnectedBus()
    return harness


async def test_an_hour_of_waiting_for_a_delayed_message_costs_at_most_12_requests_and_one_look_finds_it(
    harness: ListenerHarness,
) -> None:
    async with harness.listening(tasks=range(51)):
        await harness.clock.advance(100)
        await harness.queue.put(1, delay=4000)
        await harness.clock.settle()
        before = harness.transport.requests
        await harness.clock.advance(3600)
        assert harness.transport.requests - before <= 12
        await harness.clock.advance(399)
        assert harness.got == []
        await harness.clock.advance(2)
        assert harness.got == [1]


async def test_each_of_several_delayed_messages_is_handled_when_it_is_due(harness: ListenerHarness) -> None:
    async with harness.listening(tasks=range(51)):
        await harness.clock.advance(100)
        for number, delay in enumerate((900, 300, 600)):
            await harness.queue.put(number, delay=delay)
        for expected in ([1], [1, 2], [1, 2, 0]):
            await harness.clock.advance(301)
            assert harness.got == expected


async def test_a_delayed_message_that_nobody_announced_is_found_by_looks_that_grow_rare(
    harness: ListenerHarness,
) -> None:
    await harness.queue.put(1, delay=4 * 3600)
    async with harness.listening(tasks=range(51)):
        await harness.clock.advance(3600)
        before = harness.transport.requests
        await harness.clock.advance(3600)
        assert harness.transport.requests - before <= 12
        await harness.clock.advance(2 * 3600 - 1)
        assert harness.got == []
        await harness.clock.advance(332)
        assert harness.got == [1]


async def test_the_first_hour_beside_another_workers_long_job_costs_at_most_20_requests(
    harness: ListenerHarness,
) -> None:
    await harness.queue.put(1)
    await harness.transport.get(1, visibility_seconds=7 * 24 * 3600)
    async with harness.listening(tasks=range(51)):
        await harness.clock.advance(60)
        before = harness.transport.requests
        await harness.clock.advance(3600)
        assert harness.transport.requests - before <= 20


async def test_what_a_dead_worker_held_is_taken_within_about_the_time_it_was_hidden(
    harness: ListenerHarness,
) -> None:
    await harness.queue.put(1)
    await harness.transport.get(1, visibility_seconds=30)
    async with harness.listening(tasks=range(51)):
        await harness.clock.advance(60)
        assert harness.got == [1]


async def test_a_message_found_after_it_was_hidden_is_no_reason_to_distrust_push(
    harness: ListenerHarness,
) -> None:
    await harness.queue.put(1, delay=2000)
    async with harness.listening(tasks=range(51)):
        await harness.clock.advance(2400)
        assert harness.got == [1]
        before = harness.transport.requests
        await harness.clock.advance(3600)
        assert harness.transport.requests - before <= 24


async def test_a_message_that_is_tried_again_later_is_taken_when_its_time_has_come(
    harness: ListenerHarness,
) -> None:
    async def handler(item: int) -> None:
        harness.got.append(harness.clock.monotonic())
        if len(harness.got) == 1:
            raise Retry("not yet", after=1000)

    async with harness.listening(handler, tasks=range(51)):
        await harness.queue.put(1)
        await harness.clock.advance(60)
        before = harness.transport.requests
        await harness.clock.advance(900)
        assert harness.transport.requests - before <= 12
        await harness.clock.advance(60)
        first, second = harness.got
        assert 1000 <= second - first <= 1001


async def test_a_thousand_delayed_puts_make_few_hints_and_all_are_handled(harness: ListenerHarness) -> None:
    hints: list[Notification] = []
    async with harness.listening(tasks=range(51)):
        await harness.clock.advance(100)
        harness.bus.subscribe("queue:work", hints.append)
        for number in range(1000):
            await harness.queue.put(number, delay=100 + number % 50)
        await harness.clock.settle()
        await harness.clock.advance(1)
        assert len(hints) <= MOST_MOMENTS + 1
        await harness.clock.advance(500)
        assert sorted(harness.got) == list(range(1000))


async def test_a_put_now_is_announced_beside_a_later_one(harness: ListenerHarness) -> None:
    async with harness.listening(tasks=range(51)):
        await harness.clock.advance(100)
        await harness.queue.put(1, delay=600)
        await harness.queue.put(2)
        await harness.clock.advance(1)
        assert harness.got == [2]


@pytest.mark.parametrize("due", [1.0, 8e9])
async def test_a_moment_that_cannot_be_a_delay_is_taken_for_now(harness: ListenerHarness, due: float) -> None:
    async with harness.listening(tasks=range(51)):
        await harness.clock.advance(100)
        await harness.transport.put("5")
        await harness.bus.publish(Notification(topic="queue:work", due=due))
        await harness.clock.advance(1)
        assert harness.got == [5]
