"""`optimistic_update` and `scan` when things go wrong, on a table in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.backoff import Backoff
from coordinator.errors import (
    ConfigurationError,
    NotFound,
    PreconditionFailed,
    StorageBusy,
    StorageUnreachable,
)
from coordinator.tables.operations import ANY, Delete, Insert, Put
from coordinator.tables.optimistic import optimistic_update
from coordinator.tables.rows import Key
from coordinator.tables.table import Table
from coordinator.testing.clock import ManualClock
from coordinator.testing.tables import MemoryTableStore

KEY = Key("nl", "4711")
QUICK = Backoff(base_seconds=0.0001, cap_seconds=0.001, deadline_seconds=5.0)


def add_one(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "n": row["n"] + 1}


@pytest.fixture
def store() -> MemoryTableStore:
    return MemoryTableStore()


async def test_concurrent_updates_are_all_applied(store: MemoryTableStore) -> None:
    table = Table(store)
    updates = await asyncio.gather(
        *(optimistic_update(table, KEY, add_one, create={"n": 0}, backoff=QUICK) for _ in range(20))
    )
    assert (await table.read(KEY))["n"] == 20
    assert sum(update.conflicts for update in updates) > 0
    assert sorted(update.new["n"] for update in updates if update.new) == list(range(1, 21))


@pytest.mark.parametrize("done", [True, False], ids=["written", "not written"])
async def test_an_update_whose_answer_was_lost_takes_effect_once(store: MemoryTableStore, done: bool) -> None:
    table = Table(store)
    await table.write(Insert(KEY, {"n": 5}))
    store.fail_next(StorageUnreachable("cut", maybe_done=True), done=done)
    update = await optimistic_update(table, KEY, add_one, backoff=QUICK)
    assert (await table.read(KEY))["n"] == 6
    assert (update.old and update.old["n"], update.new and update.new["n"]) == (5, 6)


async def test_a_lost_answer_is_recognised_though_others_wrote_after_it() -> None:
    clock = ManualClock()
    store = MemoryTableStore(clock=clock)
    table = Table(store)
    await table.write(Insert(KEY, {"n": 0}))
    store.fail_next(StorageUnreachable("cut", maybe_done=True), done=True)
    mine = asyncio.create_task(optimistic_update(table, KEY, add_one))
    await clock.settle()  # written, its answer lost; now it waits
    for _ in range(5):
        await optimistic_update(table, KEY, add_one)
    assert not mine.done()
    await clock.advance(5.0)
    assert (await mine).new is not None
    assert (await table.read(KEY))["n"] == 6


async def test_a_row_made_with_its_answer_lost_is_made_once(store: MemoryTableStore) -> None:
    store.fail_next(StorageBusy("500", maybe_done=True), done=True)
    update = await optimistic_update(Table(store), KEY, add_one, create={"n": 0}, backoff=QUICK)
    assert (update.old, update.new and update.new["n"]) == (None, 1)


async def test_a_deletion_with_its_answer_lost_is_done(store: MemoryTableStore) -> None:
    table = Table(store)
    await table.write(Insert(KEY, {"n": 5}))
    store.fail_next(StorageUnreachable("cut", maybe_done=True), done=True)
    update = await optimistic_update(table, KEY, lambda row: None, backoff=QUICK)
    assert (update.old and update.old["n"], update.new, store.rows) == (5, None, {})


async def test_a_change_that_changes_nothing_is_not_written(store: MemoryTableStore) -> None:
    table = Table(store)
    await table.write(Insert(KEY, {"n": 5}))
    before = store.requests
    update = await optimistic_update(table, KEY, lambda row: row)
    assert (store.requests - before, update.is_changed) == (1, False)


async def test_a_function_that_changes_its_argument_in_place_is_noticed(store: MemoryTableStore) -> None:
    table = Table(store)
    await table.write(Insert(KEY, {"n": 5}))

    def change(row: dict[str, Any]) -> dict[str, Any]:
        row["n"] = 9
        return row

    update = await optimistic_update(table, KEY, change)
    assert (update.is_changed, (await table.read(KEY))["n"]) == (True, 9)


async def test_a_row_deleted_under_an_update_is_reported(store: MemoryTableStore) -> None:
    table = Table(store)
    await table.write(Insert(KEY, {"n": 5}))

    def change(row: dict[str, Any]) -> dict[str, Any]:
        store.rows.clear()
        return add_one(row)

    with pytest.raises(NotFound, match="no such row"):
        await optimistic_update(table, KEY, change, backoff=QUICK)


async def test_the_deadline_bounds_the_tries(store: MemoryTableStore) -> None:
    table = Table(store)
    await table.write(Insert(KEY, {"n": 0}))

    def change(row: dict[str, Any]) -> dict[str, Any]:
        store._apply(Put(KEY, {"n": row["n"]}))  # somebody is always quicker
        return add_one(row)

    backoff = Backoff(base_seconds=0.001, cap_seconds=0.001, deadline_seconds=0.02)
    with pytest.raises(PreconditionFailed, match="others won all"):
        await optimistic_update(table, KEY, change, backoff=backoff)


async def test_a_value_that_cannot_be_stored_is_refused_at_once(store: MemoryTableStore) -> None:
    with pytest.raises(ConfigurationError, match="cannot be stored"):
        await optimistic_update(Table(store), KEY, lambda row: {"n": [1]}, create={})  # type: ignore[dict-item]
    assert store.rows == {}


async def test_empty_pages_with_a_continuation_end_nothing() -> None:
    store = MemoryTableStore(empty_pages=True)
    table = Table(store)
    await table.transact([Insert(("a", f"{n:02}"), {"n": n}) for n in range(10)])
    assert [row["n"] async for row in table.scan(page_size=4)] == list(range(10))
    assert [len(page) async for page in table.scan(page_size=4).pages()] == [0, 4, 0, 4, 0, 2]


async def test_a_token_is_good_though_the_row_it_names_was_deleted(store: MemoryTableStore) -> None:
    table = Table(store)
    await table.transact([Insert(("a", f"{n:02}"), {"n": n}) for n in range(10)])
    scan = table.scan(page_size=4)
    async for row in scan:
        if row["n"] == 5:
            break
    await table.write(Delete(("a", "05"), ANY))
    assert [row["n"] async for row in table.scan(page_size=4, token=scan.token)] == [6, 7, 8, 9]


@pytest.mark.parametrize("token", ["x", "bm90IGpzb24=", "W10=", "e30="])
async def test_a_token_that_is_none_is_refused(store: MemoryTableStore, token: str) -> None:
    with pytest.raises(ConfigurationError, match="no continuation token"):
        Table(store).scan(token=token)


async def test_a_token_of_another_question_is_refused(store: MemoryTableStore) -> None:
    table = Table(store)
    token = table.scan(partition="a").token
    with pytest.raises(ConfigurationError, match="belongs to another scan"):
        table.scan(partition="b", token=token)
