"""Sagas and the outbox on a table and a queue in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.backoff import Backoff
from coordinator.errors import AlreadyExists, ConfigurationError, StorageUnreachable
from coordinator.queues.outcomes import Retry
from coordinator.queues.queue import Queue
from coordinator.tables.operations import ANY, Insert, Merge
from coordinator.tables.outbox import Outbox
from coordinator.tables.progress import SagaError
from coordinator.tables.saga import Saga, SagaContext, SagaMessage
from coordinator.tables.table import Table
from coordinator.testing.clock import ManualClock
from coordinator.testing.queues import memory_queue
from coordinator.testing.tables import MemoryTableStore

AT_ONCE = Backoff(base_seconds=0.001, cap_seconds=0.001)


class Trip:
    """Books a flight, a hotel and a car; `broken` names what fails, and how often (-1: always)."""

    def __init__(self, clock: ManualClock | None = None, **options: Any) -> None:
        self.clock = clock or ManualClock()
        self.store = MemoryTableStore("sagas", clock=self.clock)
        self.queue: Queue[SagaMessage] = memory_queue("trips", type=SagaMessage, clock=self.clock)
        self.did: list[str] = []
        self.broken: dict[str, int] = {}
        self.saga = self.join(**options)

    def join(self, **options: Any) -> Saga[str]:
        """The saga as another process has it."""
        saga: Saga[str] = Saga("trip", Table(self.store), self.queue, input_type=str, **options)
        for name in ("flight", "hotel", "car"):
            self._declare(saga, name)
        return saga

    def _declare(self, saga: Saga[str], name: str) -> None:
        async def book(context: SagaContext[str]) -> str:
            self._act(name)
            return f"{name} for {context.input}"

        async def cancel(context: SagaContext[str]) -> None:
            self._act(f"no {name}")

        book.__name__ = name
        saga.step(attempts=2, backoff=AT_ONCE)(book).compensate(cancel)

    def _act(self, what: str) -> None:
        self.did.append(what)
        if self.broken.get(what):
            self.broken[what] -= 1
            raise RuntimeError(f"{what} failed")

    async def run(self) -> Any:
        """To the end, as a listener would."""
        while True:
            try:
                return await self.saga.run("t1")
            except Retry:
                continue


async def test_steps_run_in_order_and_their_results_are_kept() -> None:
    trip = Trip()
    assert await trip.saga.start("t1", "olga")
    progress = await trip.run()
    assert (progress.state, trip.did) == ("done", ["flight", "hotel", "car"])
    assert progress.results == {
        "flight": "flight for olga",
        "hotel": "hotel for olga",
        "car": "car for olga",
    }
    assert [event.what for event in progress.history] == ["started", "taken", "done", "done", "done"]
    assert await trip.saga.read("t1") == progress


async def test_a_saga_is_started_once_by_its_key() -> None:
    trip = Trip()
    assert await trip.saga.start("t1", "olga")
    assert not await trip.saga.start("t1", "piet")
    await trip.run()
    assert not await trip.saga.start("t1", "olga")
    assert trip.did == ["flight", "hotel", "car"]


async def test_a_step_that_fails_is_tried_again() -> None:
    trip = Trip()
    trip.broken = {"hotel": 1}
    await trip.saga.start("t1", "olga")
    progress = await trip.run()
    assert (progress.state, trip.did) == ("done", ["flight", "hotel", "hotel", "car"])


async def test_a_step_that_keeps_failing_has_everything_undone_in_reverse() -> None:
    trip = Trip()
    trip.broken = {"hotel": -1}
    await trip.saga.start("t1", "olga")
    progress = await trip.run()
    assert (progress.state, trip.did) == (
        "compensated",
        ["flight", "hotel", "hotel", "no hotel", "no flight"],
    )
    assert "hotel failed" in progress.error


async def test_what_cannot_be_undone_is_stuck_until_an_operator_has_it_tried_again() -> None:
    trip = Trip()
    trip.broken = {"hotel": -1, "no flight": 2}
    await trip.saga.start("t1", "olga")
    assert (await trip.run()).state == "stuck"
    await trip.queue.clear()
    await trip.saga.retry("t1", by="olga")
    assert await trip.queue.depth() == 1
    assert (await trip.run()).state == "compensated"
    with pytest.raises(SagaError, match="not stuck"):
        await trip.saga.retry("t1")


async def test_a_saga_that_takes_too_long_is_undone() -> None:
    trip = Trip(timeout_seconds=60)
    await trip.saga.start("t1", "olga")
    await trip.clock.advance(61)
    progress = await trip.run()
    assert (progress.state, progress.error, trip.did) == ("compensated", "timed out", ["no flight"])


async def test_a_step_that_takes_too_long_has_failed() -> None:
    trip = Trip()
    saga: Saga[str] = Saga("slow", Table(trip.store), trip.queue)

    @saga.step(timeout_seconds=0.01, attempts=1)
    async def hang(context: SagaContext[str]) -> None:
        await asyncio.Event().wait()

    await saga.start("t1", "olga")
    progress = await saga.run("t1")
    assert progress is not None
    assert (progress.state, progress.error) == ("compensated", "took longer than 0.01 s")


async def test_a_runner_that_was_overtaken_stores_nothing() -> None:
    trip = Trip()
    other = trip.join()
    await trip.saga.start("t1", "olga")

    async def overtake(context: SagaContext[str]) -> None:
        trip.did.append(f"epoch {context.epoch}")
        if context.epoch == 1:
            await other.run("t1")

    trip.saga.steps[0].function = overtake
    assert await trip.saga.run("t1") is None
    assert trip.did == ["epoch 1", "flight", "hotel", "car"]
    progress = await trip.saga.read("t1")
    assert (progress.state, progress.epoch) == ("done", 2)


async def test_progress_is_stored_once_though_its_answer_was_lost() -> None:
    trip = Trip()
    await trip.saga.start("t1", "olga")
    for _ in range(4):
        trip.store.fail_next(StorageUnreachable("cut", maybe_done=True), done=True)
    running = asyncio.create_task(trip.saga.run("t1"))
    while not running.done():
        await trip.clock.advance(1.0)
    assert (await running, trip.did) == (await trip.saga.read("t1"), ["flight", "hotel", "car"])


async def test_what_a_starter_left_unsent_is_sent_by_the_next_one_who_looks() -> None:
    trip = Trip()
    key = ("trip", "saga|t1")

    async def die(*items: Any, **options: Any) -> Any:
        raise StorageUnreachable("the starter dies here", maybe_done=False)

    put, trip.queue.put = trip.queue.put, die  # type: ignore[method-assign]
    with pytest.raises(StorageUnreachable):
        await trip.saga.start("t1", "olga")
    trip.queue.put = put  # type: ignore[method-assign]
    assert key in trip.store.rows
    assert await trip.queue.depth() == 0
    assert not await trip.saga.start("t1", "olga")
    assert await trip.queue.depth() == 1
    assert not [row for row in trip.store.rows if "intent" in row.row]


async def test_a_saga_without_steps_or_with_two_of_a_name_is_refused() -> None:
    trip = Trip()
    with pytest.raises(ConfigurationError, match="no steps"):
        await Saga("bare", Table(trip.store), trip.queue).run("t1")
    with pytest.raises(ConfigurationError, match="has a step car already"):
        trip._declare(trip.saga, "car")
    with pytest.raises(ConfigurationError, match="attempts of at least 1"):
        trip.saga.step(attempts=0)(lambda context: None)


@pytest.fixture
def store() -> MemoryTableStore:
    return MemoryTableStore("orders")


async def test_an_outbox_writes_the_rows_and_sends_or_does_neither(store: MemoryTableStore) -> None:
    outbox = Outbox(Table(store), memory_queue("mails", type=str))
    await outbox.commit("nl", [Insert(("nl", "order-1"), {"cents": 5})], "hello", "again")
    with pytest.raises(AlreadyExists):
        await outbox.commit("nl", [Insert(("nl", "order-1"), {"cents": 6})], "bad")
    seen = [item for message in await outbox.queue.peek() for item in message.items]
    assert (seen, [key.row for key in store.rows]) == (["hello", "again"], ["order-1"])


async def test_what_is_marked_is_done_once(store: MemoryTableStore) -> None:
    table = Table(store)
    await table.write(Insert(("nl", "sum"), {"n": 0}))
    outbox = Outbox(table, memory_queue("mails", type=str))
    done = [
        await outbox.commit("nl", [Merge(("nl", "sum"), {"n": 1}, ANY)], "hi", marker="m1") for _ in range(3)
    ]
    assert (done, await outbox.queue.depth()) == ([True, False, False], 1)


async def test_a_marked_change_with_its_answer_lost_is_done_once(store: MemoryTableStore) -> None:
    outbox = Outbox(Table(store), memory_queue("mails", type=str))
    store.fail_next(StorageUnreachable("cut", maybe_done=True), done=True)
    assert await outbox.commit("nl", [], "hi", marker="m1")
    assert await outbox.queue.depth() == 1
