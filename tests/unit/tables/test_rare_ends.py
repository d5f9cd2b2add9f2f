"""Updates, commits and sagas whose rows others change or delete, or whose storage stays away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.backoff import Backoff
from coordinator.errors import AccessDenied, ConfigurationError, NotFound, StorageBusy, StorageUnreachable
from coordinator.tables.commit import commit
from coordinator.tables.operations import ANY, Delete, Insert, Merge, Put, Replace
from coordinator.tables.optimistic import InDoubt, optimistic_update, verdict
from coordinator.tables.rows import Key, Row
from coordinator.tables.saga import OPEN, ROW, Saga, SagaContext
from coordinator.tables.stepping import said
from coordinator.tables.table import Table
from coordinator.testing.clock import ManualClock
from coordinator.testing.tables import MemoryTableStore
from tests.support.dying import HastyClock
from tests.unit.tables.test_sagas import Trip, begun

KEY = Key("nl", "4711")
LOST = StorageUnreachable("cut", maybe_done=True)


def add_one(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "n": row["n"] + 1}


async def a_row(store: MemoryTableStore, n: int = 5) -> Table:
    table = Table(store)
    await table.write(Insert(KEY, {"n": n}))
    return table


# --- updates ---------------------------------------------------------------------------------------------------------


async def test_answers_that_are_lost_again_and_again_are_looked_for_at_a_slower_pace() -> None:
    clock = HastyClock()
    store = MemoryTableStore(clock=clock)
    table = await a_row(store)
    began = clock.monotonic()
    for _ in range(3):
        store.fail_next(LOST, done=False)
    update = await optimistic_update(table, KEY, add_one)
    assert update.new is not None and update.new["n"] == 6
    assert (await table.read(KEY))["n"] == 6
    assert clock.monotonic() > began, "after the second lost answer there is a pause"


async def test_answers_that_stay_lost_end_at_the_deadline_and_say_that_it_may_be_done() -> None:
    clock = HastyClock()
    store = MemoryTableStore(clock=clock)
    table = await a_row(store)
    for _ in range(1000):
        store.fail_next(LOST, done=False)
    backoff = Backoff(base_seconds=1.0, cap_seconds=1.0, deadline_seconds=10.0)
    began = clock.monotonic()
    with pytest.raises(StorageUnreachable) as caught:
        await optimistic_update(table, KEY, add_one, backoff=backoff)
    assert caught.value.maybe_done
    assert clock.monotonic() - began <= 10


async def test_a_refusal_of_the_look_says_that_the_write_may_have_been_done() -> None:
    class Forbidding(MemoryTableStore):
        async def read(self, key: Key, select: tuple[str, ...] | None = None) -> Row:
            if self.requests > 2:
                raise AccessDenied("the key was rotated", status=403)
            return await super().read(key, select)

    store = Forbidding()
    table = await a_row(store)
    store.fail_next(LOST, done=True)
    with pytest.raises(AccessDenied) as caught:
        await optimistic_update(table, KEY, add_one)
    assert caught.value.maybe_done


async def test_a_row_that_is_not_there_need_not_be_deleted() -> None:
    store = MemoryTableStore()
    update = await optimistic_update(Table(store), KEY, lambda row: None, create={"n": 0})
    assert (update.old, update.new, update.is_changed, store.rows) == (None, None, False, {})


def test_a_row_that_was_created_by_another_proves_nothing_of_ours() -> None:
    another = Row(KEY, {"n": 1}, "e1", ("other",))
    assert verdict(InDoubt(None, False, False), "mine", another) == "unknown"
    assert verdict(InDoubt(None, False, False), "mine", Row(KEY, {}, "e1", ("mine",))) == "done"


async def test_a_refused_repetition_of_a_lost_write_is_looked_at_once_more() -> None:
    """The first try arrives late, right before the second: which is refused by our own doing."""

    class Late(MemoryTableStore):
        late: Any = None

        async def write(self, operation: Any) -> str:
            if isinstance(operation, Replace) and self.late is None:
                self.late = operation
                raise LOST
            if self.late is not None and self.late is not operation:
                late, self.late = self.late, operation
                await super().write(late)
            return await super().write(operation)

    store = Late()
    table = await a_row(store)
    update = await optimistic_update(table, KEY, add_one)
    assert (await table.read(KEY))["n"] == 6
    assert update.new is not None and update.new["n"] == 6


# --- commits ---------------------------------------------------------------------------------------------------------


async def test_a_commit_that_arrived_late_is_found_to_be_ours_when_its_repetition_is_refused() -> None:
    class Late(MemoryTableStore):
        held: Any = None

        async def transact(self, operations: Any) -> list[str]:
            if self.held is None:
                self.held = operations
                raise LOST
            if self.held:
                held, self.held = self.held, ()
                await super().transact(held)
            return await super().transact(operations)

    store = Late(clock=HastyClock())
    inserts = [Insert(Key("nl", str(number)), {"n": number}) for number in range(2)]
    etags = await commit(Table(store), *inserts)
    assert etags == [store.rows[Key("nl", str(number))].etag for number in range(2)]
    assert len(store.rows) == 2


async def test_a_commit_ends_at_its_deadline_and_says_whether_it_may_be_done() -> None:
    clock = HastyClock()
    for error, maybe_done in ((LOST, True), (StorageBusy("429", status=429), False)):
        store = MemoryTableStore(clock=clock)
        for _ in range(1000):
            store.fail_next(error, done=False)
        with pytest.raises(type(error)) as caught:
            await commit(Table(store), Insert(KEY, {"n": 1}))
        assert caught.value.maybe_done is maybe_done  # type: ignore[attr-defined]


async def test_a_commit_whose_look_is_refused_may_be_done() -> None:
    class Forbidding(MemoryTableStore):
        async def read(self, key: Key, select: tuple[str, ...] | None = None) -> Row:
            raise AccessDenied("the key was rotated", status=403)

    store = Forbidding()
    store.fail_next(LOST, done=True)
    with pytest.raises(AccessDenied) as caught:
        await commit(Table(store), Put(KEY, {"n": 1}))
    assert caught.value.maybe_done


# --- sagas -----------------------------------------------------------------------------------------------------------


async def test_a_declared_step_can_be_called_like_the_function_it_was() -> None:
    saga = Trip().saga

    @saga.step
    async def fly(context: SagaContext[str]) -> str:
        return f"flies for {context}"

    @saga.step
    def drive(context: SagaContext[str]) -> str:
        return f"drives for {context}"

    @saga.step
    def sail(context: SagaContext[str]) -> Any:
        return fly.function(context)

    context: Any = "olga"
    assert [await step(context) for step in (fly, drive, sail)] == [
        "flies for olga",
        "drives for olga",
        "flies for olga",
    ]


def test_a_saga_with_a_time_below_zero_is_refused() -> None:
    trip = Trip()
    with pytest.raises(ConfigurationError, match="must not be negative"):
        Saga("trip", Table(trip.store), trip.queue, input_type=str, timeout_seconds=-1)


async def test_a_message_of_a_saga_that_is_gone_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    trip = Trip()
    await trip.saga.carry_on("gone", guard="m1")
    assert "its row is gone; the message is dropped" in caplog.text
    await trip.saga.start("t1", "olga")
    await trip.run()
    before = trip.did.copy()
    await trip.saga.carry_on("t1", guard="m2")
    assert trip.did == before, "one that has ended is not run again"


async def test_a_saga_can_be_awaited() -> None:
    trip = Trip()
    await trip.saga.start("t1", "olga")
    waiting = asyncio.create_task(trip.saga.wait("t1", poll_seconds=5))
    await trip.clock.advance(1)
    await trip.run()
    assert not waiting.done()
    await trip.clock.advance(5)
    assert (await waiting).state == "done"


async def test_a_sweep_removes_what_the_index_has_of_sagas_that_are_gone_or_ended() -> None:
    trip = Trip()
    table = Table(trip.store)
    for key in ("gone", "ended", "stuck", "t1"):
        await trip.saga.start(key, "olga")
    await table.write(Delete(("trip", ROW + "gone"), ANY))
    of_index = await table.read(("trip", OPEN + "ended"))
    await trip.saga.run("ended")
    await table.write(Put(of_index.key, dict(of_index.values)))
    await table.write(Merge(("trip", OPEN + "stuck"), {"state": "stuck"}, ANY))
    await trip.clock.advance(600)
    await begun(trip)  # t1: the index knows when its state changed, and its row that a step ended just now
    await trip.queue.clear()
    assert await trip.saga.sweep() == 0
    left = {key.row for key in trip.store.rows if key.row.startswith(OPEN)}
    assert left == {OPEN + "stuck", OPEN + "t1"}
    assert await trip.queue.depth() == 0


async def test_a_version_leaves_the_sagas_of_another_to_it() -> None:
    trip = Trip(version="1")
    await trip.saga.start("t1", "olga")
    await trip.queue.clear()
    await trip.clock.advance(600)
    assert await trip.join(version="2").sweep() == 0
    assert await trip.saga.sweep() == 1


async def test_of_two_processes_that_sweep_at_once_one_does() -> None:
    trip = Trip()
    other = trip.join()
    await trip.saga.start("t1", "olga")
    await trip.queue.clear()
    await trip.clock.advance(600)
    counts = await asyncio.gather(trip.saga.sweep(), other.sweep())
    assert sorted(counts) == [0, 1]
    assert await trip.queue.depth() == 1


async def test_a_saga_goes_on_though_its_row_of_the_index_was_deleted() -> None:
    trip = Trip()
    await begun(trip)
    await Table(trip.store).write(Delete(("trip", OPEN + "t1"), ANY))
    await trip.clock.advance(600)
    await trip.saga.carry_on("t1", guard="m2")
    assert (await trip.saga.read("t1")).state == "done"


async def test_a_queue_with_a_backlog_is_given_an_hour_before_a_saga_is_revived() -> None:
    trip = Trip()
    await begun(trip)
    await trip.queue.clear()
    await trip.saga.start("t2", "nina")  # its message waits
    await trip.clock.advance(600)
    assert await trip.saga.sweep() == 0
    await trip.clock.advance(3600)
    assert await trip.saga.sweep() >= 1


async def test_reading_a_saga_that_never_was_is_an_error() -> None:
    with pytest.raises(NotFound):
        await Trip().saga.read("t1")


def test_an_error_without_a_text_is_described_all_the_same() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even its text")

    assert said(Broken()) == "Broken: (its text cannot be read)"
    assert said(ValueError("half a pair: \ud800")) == "ValueError: half a pair: \\ud800"


async def test_a_def_step_may_return_a_coroutine() -> None:
    trip = Trip(ManualClock())

    async def later() -> str:
        return "booked"

    def flight(context: SagaContext[str]) -> Any:
        return later()

    trip.saga.steps[0].function = flight
    await trip.saga.start("t1", "olga")
    progress = await trip.run()
    assert progress.state == "done"
    assert "booked" in str(progress.results)
