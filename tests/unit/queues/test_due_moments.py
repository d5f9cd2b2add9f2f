"""What is invisible now is looked for when it will be visible if that is known, and ever more rarely if it is not."""

from __future__ import annotations

import pytest

from coordinator.queues.delivery import Retry
from coordinator.queues.notifications import MOST_MOMENTS
from coordinator.realtime.bus import Hint
from tests.unit.queues.bench import Bench, ConnectedBus


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.bus = ConnectedBus()
    return bench


async def test_an_hour_of_waiting_for_a_delayed_message_costs_at_most_12_requests_and_one_look_finds_it(
    bench: Bench,
) -> None:
    async with bench.listening(tasks=range(51)):
        await bench.clock.advance(100)
        await bench.queue.put(1, delay=4000)
        await bench.clock.settle()
        before = bench.transport.requests
        await bench.clock.advance(3600)
        assert bench.transport.requests - before <= 12
        await bench.clock.advance(399)
        assert bench.got == []
        await bench.clock.advance(2)
        assert bench.got == [1]


async def test_each_of_several_delayed_messages_is_handled_when_it_is_due(bench: Bench) -> None:
    async with bench.listening(tasks=range(51)):
        await bench.clock.advance(100)
        for number, delay in enumerate((900, 300, 600)):
            await bench.queue.put(number, delay=delay)
        for expected in ([1], [1, 2], [1, 2, 0]):
            await bench.clock.advance(301)
            assert bench.got == expected


async def test_a_delayed_message_that_nobody_announced_is_found_by_looks_that_grow_rare(bench: Bench) -> None:
    await bench.queue.put(1, delay=4 * 3600)
    async with bench.listening(tasks=range(51)):
        await bench.clock.advance(3600)
        before = bench.transport.requests
        await bench.clock.advance(3600)
        assert bench.transport.requests - before <= 12
        await bench.clock.advance(2 * 3600 - 1)
        assert bench.got == []
        await bench.clock.advance(332)
        assert bench.got == [1]


async def test_the_first_hour_beside_another_workers_long_job_costs_at_most_20_requests(bench: Bench) -> None:
    await bench.queue.put(1)
    await bench.transport.get(1, visibility_seconds=7 * 24 * 3600)
    async with bench.listening(tasks=range(51)):
        await bench.clock.advance(60)
        before = bench.transport.requests
        await bench.clock.advance(3600)
        assert bench.transport.requests - before <= 20


async def test_what_a_dead_worker_held_is_taken_within_about_the_time_it_was_hidden(bench: Bench) -> None:
    await bench.queue.put(1)
    await bench.transport.get(1, visibility_seconds=30)
    async with bench.listening(tasks=range(51)):
        await bench.clock.advance(60)
        assert bench.got == [1]


async def test_a_message_found_after_it_was_hidden_is_no_reason_to_distrust_push(bench: Bench) -> None:
    await bench.queue.put(1, delay=2000)
    async with bench.listening(tasks=range(51)):
        await bench.clock.advance(2400)
        assert bench.got == [1]
        before = bench.transport.requests
        await bench.clock.advance(3600)
        assert bench.transport.requests - before <= 24


async def test_a_message_that_is_tried_again_later_is_taken_when_its_time_has_come(bench: Bench) -> None:
    async def handler(item: int) -> None:
        bench.got.append(bench.clock.monotonic())
        if len(bench.got) == 1:
            raise Retry("not yet", after=1000)

    async with bench.listening(handler, tasks=range(51)):
        await bench.queue.put(1)
        await bench.clock.advance(60)
        before = bench.transport.requests
        await bench.clock.advance(900)
        assert bench.transport.requests - before <= 12
        await bench.clock.advance(60)
        first, second = bench.got
        assert 1000 <= second - first <= 1001


async def test_a_thousand_delayed_puts_make_few_hints_and_all_are_handled(bench: Bench) -> None:
    hints: list[Hint] = []
    async with bench.listening(tasks=range(51)):
        await bench.clock.advance(100)
        bench.bus.subscribe("queue:work", hints.append)
        for number in range(1000):
            await bench.queue.put(number, delay=100 + number % 50)
        await bench.clock.settle()
        await bench.clock.advance(1)
        assert len(hints) <= MOST_MOMENTS + 1
        await bench.clock.advance(500)
        assert sorted(bench.got) == list(range(1000))


async def test_a_put_now_is_announced_beside_a_later_one(bench: Bench) -> None:
    async with bench.listening(tasks=range(51)):
        await bench.clock.advance(100)
        await bench.queue.put(1, delay=600)
        await bench.queue.put(2)
        await bench.clock.advance(1)
        assert bench.got == [2]


@pytest.mark.parametrize("due", [1.0, 8e9])
async def test_a_moment_that_cannot_be_a_delay_is_taken_for_now(bench: Bench, due: float) -> None:
    async with bench.listening(tasks=range(51)):
        await bench.clock.advance(100)
        await bench.transport.put("5")
        await bench.bus.publish(Hint(topic="queue:work", due=due))
        await bench.clock.advance(1)
        assert bench.got == [5]
