"""Updates, deletions, transactions and outboxes when each of their requests is lost, late, refused, or the last one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coordinator.backoff import Backoff
from coordinator.errors import StorageError, StorageUnreachable
from coordinator.tables.commit import commit
from coordinator.tables.operations import Insert, Replace, Upsert
from coordinator.tables.optimistic import optimistic_update
from coordinator.tables.outbox import Outbox
from coordinator.tables.rows import Key
from coordinator.tables.table import Table
from coordinator.testing.clock import ManualClock
from coordinator.testing.faults import (
    DROP_ANSWER,
    FAILED_COMMITTED,
    HANGS_AFTER,
    RESET_BEFORE,
    FaultyStore,
    answer_delayed,
    throttled,
)
from coordinator.testing.queues import memory_queue
from coordinator.testing.tables import MemoryTableStore
from tests.support.dying import HastyClock, Killed, Mortal
from tests.support.reliability import Cell
from tests.support.reliability import Table as Promises

KEY = Key("nl", "4711")
FAULTS = {
    "request lost": RESET_BEFORE,
    "answer lost": DROP_ANSWER,
    "500, carried out": FAILED_COMMITTED,
    "answer late": answer_delayed(2.0),
    "connection hangs": HANGS_AFTER,
    "503 with Retry-After": throttled(3),
    "429 with Retry-After": throttled(3, status=429),
}


def add_one(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "n": row["n"] + 1}


async def update(table: Table) -> None:
    await optimistic_update(table, KEY, add_one)


async def creation(table: Table) -> None:
    await optimistic_update(table, ("nl", "new"), add_one, create={"n": 0})


async def deletion(table: Table) -> None:
    await optimistic_update(table, KEY, lambda row: None)


async def transaction(table: Table) -> None:
    row = await table.read(KEY)
    await commit(table, Replace(KEY, add_one(row.values), row.etag), Insert(("nl", "mark"), {"n": 1}))


async def outbox(table: Table) -> None:
    clock = table.store.clock
    box: Outbox[str] = Outbox(table, memory_queue("mails", type=str, clock=clock))
    await box.commit("nl", [Upsert(("nl", "order"), {"n": 1})], "mail", marker="m1")


async def sums(table: Table) -> dict[str, int]:
    return {row.key.row: row["n"] async for row in table.scan() if "n" in row.values}


SUBJECTS: dict[str, tuple[Callable[[Table], Awaitable[None]], dict[str, int]]] = {
    "update": (update, {"4711": 1}),
    "creation": (creation, {"4711": 0, "new": 1}),
    "deletion": (deletion, {}),
    "transaction": (transaction, {"4711": 1, "mark": 1}),
    "outbox": (outbox, {"4711": 0, "order": 1}),
}
BEFORE = {"4711": 0}
EACH = [
    Cell(
        fault,
        subject,
        "Each request in turn: it takes effect once, or the error says with `maybe_done` that it may have",
    )
    for fault in FAULTS
    for subject in SUBJECTS
]
CRASH = [
    Cell("process killed", subject, "Before or after each request: all of it is there, or nothing")
    for subject in SUBJECTS
]
CANCELLED = [
    Cell("task cancelled", subject, "At each request: all of it is there, or nothing") for subject in SUBJECTS
]
CONTENTION = [
    Cell(
        "5 % of answers lost",
        "16 writers",
        "240 increments end at 240, or raise with `maybe_done` for those in doubt",
    ),
    Cell(
        "answer lost, row created since",
        "deletion",
        "The new row stays; the error says with `maybe_done` that it was deleted",
    ),
    Cell(
        "answer lost, row rewritten since",
        "update",
        "An error with `maybe_done`; the update is not applied twice",
    ),
]
TABLE = Promises(
    "Updates of tables",
    "One row, rows in one transaction, and rows with messages. Each fault meets each request of the operation in turn.",
    (*EACH, *CRASH, *CANCELLED, *CONTENTION),
    order=40,
)


async def fresh(clock: ManualClock) -> MemoryTableStore:
    store = MemoryTableStore(clock=clock)
    await store.write(Insert(KEY, {"n": 0}))
    return store


@pytest.mark.parametrize("cell", EACH, ids=str)
async def test_each_request_may_fail(cell: Cell) -> None:
    operation, after = SUBJECTS[cell.subject]
    counter = FaultyStore(MemoryTableStore())
    turns = 0
    for turn in counter.for_each_request(FAULTS[cell.fault]):
        clock = HastyClock()
        store = await fresh(clock)
        counter._store, counter._clock = store, clock
        turns += 1
        error: StorageError | None = None
        with turn:
            try:
                await operation(Table(counter))  # type: ignore[arg-type]
            except StorageError as raised:
                error = raised
        found = await sums(Table(store))
        if error is None:
            assert found == after, turn
        else:
            assert error.maybe_done or found == BEFORE, turn
            assert found in (BEFORE, after), turn
        if cell.fault in ("answer lost", "answer late", "503 with Retry-After", "429 with Retry-After"):
            assert error is None, turn
    assert turns > 2


@pytest.mark.parametrize("cell", [*CRASH, *CANCELLED], ids=str)
async def test_a_process_may_end_at_each_request(cell: Cell) -> None:
    operation, after = SUBJECTS[cell.subject]
    seen = []
    for is_after in (False, True):
        for number in range(1, 50):
            clock = HastyClock()
            store = await fresh(clock)
            mortal = Mortal(number, after=is_after)
            end: type[BaseException] = Killed
            if cell in CANCELLED:
                end = asyncio.CancelledError
            try:
                await operation(Table(_ending(mortal, store, end)))
            except end:
                found = await sums(Table(store))
                assert found in (BEFORE, after), (number, is_after)
                seen.append(found)
                continue
            break
    assert BEFORE in seen
    assert after in seen or cell.subject == "never"


def _ending(mortal: Mortal, store: MemoryTableStore, end: type[BaseException]) -> Any:
    class Ending:
        def __getattr__(self, name: str) -> Any:
            found = getattr(mortal.wrap(store), name)
            if not callable(found):
                return found

            async def call(*given: Any, **named: Any) -> Any:
                try:
                    return await found(*given, **named)
                except Killed:
                    raise end from None

            return call

    return Ending()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cell", CONTENTION[:1], ids=str)
async def test_many_writers_with_lost_answers(cell: Cell, seed: int) -> None:
    clock = HastyClock()
    store = await fresh(clock)
    faulty = FaultyStore(store, clock=clock)
    faulty.at_random(0.05, seed=seed, faults=[DROP_ANSWER])
    rng = random.Random(seed)

    class Interleaved:
        """Others come in between at each request."""

        def __getattr__(self, name: str) -> Any:
            return getattr(faulty, name)

        async def read(self, *given: Any) -> Any:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            return await faulty.read(*given)

    table: Any = Table(Interleaved())  # type: ignore[arg-type]
    confirmed = doubtful = 0

    async def writer() -> None:
        nonlocal confirmed, doubtful
        for _ in range(15):
            try:
                await optimistic_update(
                    table,
                    KEY,
                    add_one,
                    backoff=Backoff(base_seconds=0.1, cap_seconds=1.0, deadline_seconds=1e6),
                )
                confirmed += 1
            except StorageUnreachable as error:
                doubtful += error.maybe_done

    await asyncio.gather(*(writer() for _ in range(16)))
    value = (await Table(store).read(KEY))["n"]
    assert confirmed + doubtful == 240
    assert confirmed <= value <= confirmed + doubtful
    assert len(faulty.applied) > 10, f"seed {seed}"


@pytest.mark.parametrize("cell", CONTENTION[1:], ids=str)
async def test_others_write_before_the_look(cell: Cell) -> None:
    clock = HastyClock()
    store = await fresh(clock)
    read, is_lost = store.read, False

    async def look(*given: Any) -> Any:
        nonlocal is_lost
        if is_lost:
            is_lost = False
            if cell.subject == "update":
                await store.write(Upsert(KEY, {"n": 50}))
            else:
                await store.write(Insert(KEY, {"n": 100}))
        found = await read(*given)
        if not store._failures:
            is_lost = True
            store.fail_next(StorageUnreachable("cut", maybe_done=True), done=True)
        return found

    store.read = look  # type: ignore[method-assign]
    change = add_one if cell.subject == "update" else (lambda row: None)
    with pytest.raises(StorageUnreachable, match="cannot be seen") as caught:
        await optimistic_update(Table(store), KEY, change)
    assert caught.value.maybe_done
    assert (await read(KEY))["n"] == (50 if cell.subject == "update" else 100)
