"""`optimistic_update` and `scan` when things go wrong, on a table in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
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
from coordinator.tables.operations import ANY, Delete, Insert, Upsert
from coordinator.tables.optimistic import KEPT_NONCES, Update, optimistic_update
from coordinator.tables.rows import Key, Row
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


@pytest.mark.parametrize(
    ("old", "new"), [(True, 1.0), (1, True), (0, False), (1, 1.0), (0.0, -0.0)], ids=repr
)
async def test_a_value_that_only_compares_equal_is_written(
    store: MemoryTableStore, old: float, new: float
) -> None:
    table = Table(store)
    await table.write(Insert(KEY, {"n": old}))
    update = await optimistic_update(table, KEY, lambda row: {"n": new})
    stored = (await table.read(KEY))["n"]
    assert update.new
    assert repr(stored) == repr(update.new["n"]) == repr(new)


class Interrupted(MemoryTableStore):
    """Runs `meanwhile` once, after a write whose answer was lost and before the look at what became of it."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def read(self, key: Key, select: tuple[str, ...] | None = None) -> Row:
        if not self._failures and self.meanwhile is not None and self.requests >= self.lost_after:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return await super().read(key, select)

    lost_after = 0

    def lose(self, *, done: bool) -> None:
        self.fail_next(StorageUnreachable("cut", maybe_done=True), done=done)
        self.lost_after = self.requests + 2


async def lost(store: Interrupted, others: int, *, done: bool) -> Update:
    """An update whose answer is lost, while so many others write."""
    table = Table(store)
    await optimistic_update(table, KEY, add_one, create={"n": 0})

    async def meanwhile() -> None:
        for _ in range(others):
            await optimistic_update(table, KEY, add_one, backoff=QUICK)

    store.lose(done=done)
    store.meanwhile = meanwhile
    return await optimistic_update(table, KEY, add_one, backoff=QUICK)


@pytest.mark.parametrize("done", [True, False], ids=["written", "not written"])
@pytest.mark.parametrize("others", [0, 1, 5, 8, KEPT_NONCES - 1])
async def test_a_lost_answer_is_recognised_though_others_wrote_after_it(others: int, done: bool) -> None:
    store = Interrupted()
    update = await lost(store, others, done=done)
    assert update.new is not None
    assert (await Table(store).read(KEY))["n"] == 2 + others


@pytest.mark.parametrize("done", [True, False], ids=["written", "not written"])
async def test_what_became_of_an_update_is_never_guessed_when_too_many_wrote_after_it(done: bool) -> None:
    store = Interrupted()
    with pytest.raises(StorageUnreachable, match="cannot be seen") as caught:
        await lost(store, KEPT_NONCES + 1, done=done)
    assert caught.value.maybe_done
    assert (await Table(store).read(KEY))["n"] == 1 + KEPT_NONCES + 1 + done


async def test_a_lost_answer_is_looked_for_at_once() -> None:
    """A writer that sleeps first gives others the time to write over what proves its own write."""
    clock = ManualClock()
    store = MemoryTableStore(clock=clock)
    await Table(store).write(Insert(KEY, {"n": 0}))
    store.fail_next(StorageUnreachable("cut", maybe_done=True), done=True)
    mine = asyncio.create_task(optimistic_update(Table(store), KEY, add_one))
    await clock.settle()  # no time passes
    assert mine.done()
    assert (await mine).new is not None


@pytest.mark.parametrize("done", [True, False], ids=["deleted", "not deleted"])
async def test_a_delete_whose_answer_was_lost_spares_the_row_that_was_created_since(done: bool) -> None:
    store = Interrupted()
    table = Table(store)
    await table.write(Insert(KEY, {"n": 5}))

    async def meanwhile() -> None:
        if not done:
            await table.write(Delete(KEY, ANY))
        await table.write(Insert(KEY, {"n": 100}))

    store.lose(done=done)
    store.meanwhile = meanwhile
    with pytest.raises(StorageUnreachable, match="cannot be seen") as caught:
        await optimistic_update(table, KEY, lambda row: None, backoff=QUICK)
    assert caught.value.maybe_done
    assert (await table.read(KEY))["n"] == 100


async def test_a_row_that_may_have_been_created_and_deleted_again_is_not_created_twice() -> None:
    store = Interrupted()
    table = Table(store)
    store.lose(done=True)
    store.meanwhile = lambda: table.write(Delete(KEY, ANY))
    with pytest.raises(StorageUnreachable, match="cannot be seen") as caught:
        await optimistic_update(table, KEY, add_one, create={"n": 0}, backoff=QUICK)
    assert (caught.value.maybe_done, store.rows) == (True, {})


async def test_an_error_of_the_look_says_that_the_write_may_have_been_done() -> None:
    class Away(MemoryTableStore):
        async def read(self, key: Key, select: tuple[str, ...] | None = None) -> Row:
            if self.requests > 2:
                raise StorageBusy("503")
            return await super().read(key, select)

    store = Away()
    await Table(store).write(Insert(KEY, {"n": 0}))
    store.fail_next(StorageUnreachable("cut", maybe_done=True), done=True)
    backoff = Backoff(base_seconds=0.001, cap_seconds=0.001, deadline_seconds=0.02)
    with pytest.raises(StorageBusy) as caught:
        await optimistic_update(Table(store), KEY, add_one, backoff=backoff)
    assert caught.value.maybe_done


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

    with pytest.raises(NotFound, match="row not found"):
        await optimistic_update(table, KEY, change, backoff=QUICK)


async def test_the_deadline_bounds_the_tries(store: MemoryTableStore) -> None:
    table = Table(store)
    await table.write(Insert(KEY, {"n": 0}))

    def change(row: dict[str, Any]) -> dict[str, Any]:
        store._apply(Upsert(KEY, {"n": row["n"]}))  # somebody is always quicker
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
    with pytest.raises(ConfigurationError, match="not a continuation token"):
        Table(store).scan(token=token)


async def test_a_token_of_another_question_is_refused(store: MemoryTableStore) -> None:
    table = Table(store)
    token = table.scan(partition="a").token
    with pytest.raises(ConfigurationError, match="belongs to another scan"):
        table.scan(partition="b", token=token)


ODD = ["", "a", "\ud7ff", "😀1", "😀2", "\ue000", "Ａ1", "\uffff", "z"]


async def test_rows_are_found_in_the_order_of_the_service_whatever_their_keys(
    store: MemoryTableStore,
) -> None:
    """By UTF-16 code units 😀 comes before Ａ; Python compares code points, and skipped the rows after 😀."""
    table = Table(store)
    for name in ODD:
        await table.write(Insert(("p", "k" + name), {}))
    wanted = sorted(("k" + name for name in ODD), key=lambda text: text.encode("utf-16-be", "surrogatepass"))
    assert [row.key.row async for row in table.scan(page_size=2)] == wanted
    assert [
        row.key.row for page in [page async for page in table.scan(page_size=2).pages()] for row in page
    ] == wanted
    seen, token = [], ""
    for _ in wanted:
        scan = table.scan(page_size=4, token=token)
        async for row in scan:
            seen.append(row.key.row)
            break
        token = scan.token
    assert seen == wanted


@pytest.mark.parametrize("prefix", ["a", "\ud7ff", "😀", "\U0010ffff", "\uffff", "\ue000", "x\uffff"])
async def test_a_prefix_finds_what_begins_with_it_and_nothing_else(
    store: MemoryTableStore, prefix: str
) -> None:
    table = Table(store)
    for name in [*ODD, prefix, prefix + "a", prefix + "\uffff", prefix + "😀", "x", "y", "\U0010ffff9"]:
        await table.write(Upsert(("p", name), {}))
    found = {row.key.row async for row in table.scan(prefix=prefix)}
    assert found == {key.row for key in store.rows if key.row.startswith(prefix)}


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (("n eq 1 or 1", "eq", 1), "column name"),
        (("a b", "eq", 1), "column name"),
        (("", "eq", 1), "column name"),
        (("n", "eq 1 or 1 eq", 1), "no comparison"),
        (("n", "EQ", 1), "no comparison"),
        (("n", "eq", None), "cannot be stored"),
        (("n", "eq", [1]), "cannot be stored"),
        (("n", "eq", float("nan")), "finite"),
        (("n", "eq", 2**63), "64 bits"),
        (("n", "eq", "\ud800"), "half of a surrogate pair"),
    ],
)
async def test_a_question_is_checked_before_it_is_sent(
    store: MemoryTableStore, condition: tuple[str, str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Table(store).scan(where=[condition])
    with pytest.raises(ConfigurationError, match="column name"):
        Table(store).scan(select=["a,b"])
    with pytest.raises(ConfigurationError, match="column name"):
        await Table(store).read(KEY, select=["a b"])
    assert store.requests == 0
