"""What every store of rows promises, in memory and on Azurite alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import UUID

import pytest

from coordinator import Storage
from coordinator.config import StorageConfig
from coordinator.errors import AlreadyExists, NotFound, PreconditionFailed
from coordinator.tables.operations import ANY, Delete, Insert, Merge, Replace, Upsert
from coordinator.tables.optimistic import optimistic_update
from coordinator.tables.rows import Key, Values
from coordinator.tables.store import Query, Where
from coordinator.tables.table import Table
from coordinator.testing.tables import MemoryTableStore

KEY = Key("nl", "4711")


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    config = StorageConfig(prefix=storage_prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        yield storage


@pytest.fixture(params=["memory", "azurite"])
def table(request: pytest.FixtureRequest) -> Table:
    if request.param == "memory":
        return Table(MemoryTableStore("accounts"))
    storage: Storage = request.getfixturevalue("storage")
    return storage.table(storage.config.table("accounts"))


async def test_a_row_is_read_as_it_was_written(table: Table) -> None:
    values: Values = {
        "name": "Ünal ☂",
        "small": 7,
        "wide": 2**40,
        "share": 0.25,
        "whole": 3.0,
        "paid": True,
        "raw": b"\x00\xff",
        "since": datetime(2026, 3, 1, 12, 30, tzinfo=UTC),
        "id": UUID(int=5),
        "empty": "",
    }
    etag = await table.write(Insert(KEY, values))
    row = await table.read(KEY)
    assert (row.key, row.values, row.etag) == (KEY, values, etag)
    assert {name: type(value) for name, value in row.values.items() if name != "since"} == {
        name: type(value) for name, value in values.items() if name != "since"
    }


async def test_what_is_not_there_is_not_found(table: Table) -> None:
    with pytest.raises(NotFound):
        await table.read(KEY)
    await table.write(Insert(("nl", "1"), {"a": 1}))
    with pytest.raises(NotFound):
        await table.read(KEY)
    with pytest.raises(NotFound):
        await table.write(Replace(KEY, {"a": 1}, ANY))
    with pytest.raises(NotFound):
        await table.write(Merge(KEY, {"a": 1}, ANY))


async def test_a_row_is_inserted_once(table: Table) -> None:
    await table.write(Insert(KEY, {"a": 1}))
    with pytest.raises(AlreadyExists):
        await table.write(Insert(KEY, {"a": 2}))
    assert (await table.read(KEY)).values == {"a": 1}


async def test_a_write_on_an_old_version_is_refused(table: Table) -> None:
    old = await table.write(Insert(KEY, {"a": 1}))
    new = await table.write(Replace(KEY, {"a": 2}, old))
    assert new != old
    for operation in (Replace(KEY, {"a": 3}, old), Merge(KEY, {"a": 3}, old), Delete(KEY, old)):
        with pytest.raises(PreconditionFailed):
            await table.write(operation)
    assert (await table.read(KEY)).values == {"a": 2}


async def test_replace_forgets_the_other_columns_and_merge_keeps_them(table: Table) -> None:
    await table.write(Insert(KEY, {"a": 1, "b": 2}))
    await table.write(Merge(KEY, {"b": 3}, ANY))
    assert (await table.read(KEY)).values == {"a": 1, "b": 3}
    await table.write(Replace(KEY, {"c": 4}, ANY))
    assert (await table.read(KEY)).values == {"c": 4}


async def test_put_writes_whatever_is_there(table: Table) -> None:
    await table.write(Upsert(KEY, {"a": 1}))
    await table.write(Upsert(KEY, {"b": 2}))
    assert (await table.read(KEY)).values == {"b": 2}


async def test_deleting_twice_is_harmless(table: Table) -> None:
    etag = await table.write(Insert(KEY, {"a": 1}))
    await table.write(Delete(KEY, etag))
    await table.write(Delete(KEY, ANY))
    with pytest.raises(NotFound):
        await table.read(KEY)


async def test_only_the_columns_asked_for_are_sent(table: Table) -> None:
    await table.write(Insert(KEY, {"a": 1, "b": 2}))
    assert (await table.read(KEY, select=["b", "none"])).values == {"b": 2}
    assert [row.values async for row in table.scan(select=["a"])] == [{"a": 1}]


async def test_a_transaction_is_carried_out_wholly(table: Table) -> None:
    await table.write(Insert(("nl", "1"), {"a": 1}))
    gone = await table.write(Insert(("nl", "2"), {"a": 1}))
    etags = await table.transact(
        [
            Merge(("nl", "1"), {"b": 1}, ANY),
            Delete(("nl", "2"), gone),
            Insert(("nl", "3"), {"a": 2**40}),
            Upsert(("nl", "4"), {"a": "é"}),
        ]
    )
    rows = {row.key.row: row async for row in table.scan(partition="nl")}
    assert {name: row.values for name, row in rows.items()} == {
        "1": {"a": 1, "b": 1},
        "3": {"a": 2**40},
        "4": {"a": "é"},
    }
    assert [rows["1"].etag, rows["3"].etag, rows["4"].etag] == [etags[0], etags[2], etags[3]]


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Insert(("nl", "1"), {"a": 9}), AlreadyExists),
        (
            Replace(("nl", "1"), {"a": 9}, "W/\"datetime'2001-01-01T00%3A00%3A00.0000000Z'\""),
            PreconditionFailed,
        ),
        (Merge(("nl", "9"), {"a": 9}, ANY), NotFound),
        (Delete(("nl", "9"), ANY), NotFound),
    ],
    ids=["insert", "replace", "merge", "delete"],
)
async def test_a_transaction_with_one_fault_changes_nothing(
    table: Table, fault: Insert, kind: type[Exception]
) -> None:
    await table.write(Insert(("nl", "1"), {"a": 1}))
    with pytest.raises(kind):
        await table.transact([Insert(("nl", "2"), {"a": 1}), fault])
    assert [row.key.row async for row in table.scan()] == ["1"]


async def test_a_hundred_operations_fit_in_a_transaction(table: Table) -> None:
    await table.transact([Insert(("nl", f"{n:03}"), {"n": n}) for n in range(100)])
    assert len(await table.top(200)) == 100


async def test_a_scan_finds_rows_in_key_order_page_by_page(table: Table) -> None:
    for partition in ("b", "a"):
        await table.transact([Insert((partition, f"{n:02}"), {"n": n}) for n in reversed(range(7))])
    expected = [(partition, f"{n:02}") for partition in "ab" for n in range(7)]
    assert [row.key async for row in table.scan(page_size=3)] == expected
    sizes = [len(page) async for page in table.scan(page_size=3).pages()]
    assert sum(sizes) == 14
    assert max(sizes) == 3


async def test_a_scan_is_narrowed_by_partition_range_and_conditions(table: Table) -> None:
    await table.transact([Insert(("a", f"r-{n}"), {"n": n, "odd": bool(n % 2)}) for n in range(6)])
    await table.write(Insert(("a", "s-0"), {"n": 3}))
    await table.write(Insert(("b", "r-3"), {"n": 3, "odd": True}))

    async def found(**options: object) -> list[str]:
        return ["".join(row.key) async for row in table.scan(**options)]  # type: ignore[arg-type]

    assert await found(partition="b") == ["br-3"]
    assert await found(partition="a", prefix="s") == ["as-0"]
    assert await found(partition="a", row_from="r-2", row_before="r-4") == ["ar-2", "ar-3"]
    assert await found(where=[("n", "ge", 3), ("n", "lt", 5)], partition="a") == ["ar-3", "ar-4", "as-0"]
    assert await found(where=[("odd", "eq", True)]) == ["ar-1", "ar-3", "ar-5", "br-3"]
    assert await found(where=[("odd", "ne", True)], partition="a") == ["ar-0", "ar-2", "ar-4"]
    assert await found(where=[("n", "eq", 3)], prefix="r") == ["ar-3", "br-3"]


async def test_quotes_in_a_question_are_no_commands(table: Table) -> None:
    odd = "o'hara' or 1 eq 1 or a eq '"
    await table.write(Insert(("a", "1"), {"name": odd}))
    await table.write(Insert(("a", "2"), {"name": "x"}))
    assert [row.key.row async for row in table.scan(where=[("name", "eq", odd)])] == ["1"]
    await table.write(Insert(("o'hara", "it's"), {"n": 1}))
    assert (await table.read(("o'hara", "it's"))).values == {"n": 1}
    assert [row.key.row async for row in table.scan(partition="o'hara")] == ["it's"]


async def test_rows_are_ordered_by_utf16_code_units(table: Table) -> None:
    await table.transact([Insert(("p", name), {}) for name in ("Ａ1", "😀1", "z", "😀2")])
    wanted = ["z", "😀1", "😀2", "Ａ1"]
    assert [row.key.row async for row in table.scan(page_size=1)] == wanted
    assert [row.key.row async for row in table.scan(partition="p", prefix="😀")] == ["😀1", "😀2"]
    assert [row.key.row async for row in table.scan(row_from="😀2")] == ["😀2", "Ａ1"]
    scan = table.scan(page_size=3)
    async for row in scan:
        if row.key.row == "😀1":
            break
    assert [row.key.row async for row in table.scan(page_size=3, token=scan.token)] == ["😀2", "Ａ1"]


async def test_a_question_compares_with_what_was_asked(table: Table) -> None:
    at = datetime(2026, 3, 1, 12, 30, 0, 250_000, tzinfo=UTC)
    values: Values = {
        "one": 1, "none": 0, "wide": 2**31, "least": -(2**31), "far": -(2**40), "half": 0.5, "whole": 1.0, "yes": True,
        "raw": b"\x00\xff", "at": at, "id": UUID(int=5), "name": "o'hara  and  'co'", "empty": "", "star": "😀",
    }  # fmt: skip
    await table.write(Insert(KEY, values))
    for name, value in values.items():
        found = [row.key async for row in table.scan(where=[(name, "eq", value)])]
        assert found == [KEY], name
        assert [row async for row in table.scan(where=[(name, "ne", value)])] == [], name


async def test_top_takes_the_first_rows_only(table: Table) -> None:
    await table.transact([Insert(("a", f"{n:02}"), {"n": n}) for n in range(9)])
    assert [row["n"] for row in await table.top(4, partition="a")] == [0, 1, 2, 3]
    assert [row["n"] for row in await table.top(20)] == list(range(9))


async def test_a_scan_goes_on_after_a_restart_from_the_row_it_had_reached(table: Table) -> None:
    await table.transact([Insert(("a", f"{n:02}"), {"n": n}) for n in range(20)])
    seen: list[int] = []
    token = ""
    while True:
        scan = Table(table.store).scan(page_size=6, token=token)  # nothing but the token is kept
        taken = 0
        async for row in scan:
            seen.append(row["n"])
            taken += 1
            if taken == 4:
                break
        token = scan.token
        if not token:
            break
    assert seen == list(range(20))


async def test_nothing_is_scanned_in_a_table_that_is_not_there(table: Table) -> None:
    assert await table.top(5) == []
    assert (await table.store.page(Query(where=(Where("a", "eq", 1),)), None)).rows == []


async def test_an_update_returns_old_and_new(table: Table) -> None:
    await table.write(Insert(KEY, {"cents": 100, "name": "x"}))
    update = await optimistic_update(table, KEY, lambda row: {**row, "cents": row["cents"] + 5})
    assert update.old is not None
    assert update.new is not None
    assert (update.old.values, update.new.values) == (
        {"cents": 100, "name": "x"},
        {"cents": 105, "name": "x"},
    )
    assert (await table.read(KEY)) == update.new


async def test_an_update_may_make_and_delete_the_row(table: Table) -> None:
    made = await optimistic_update(table, KEY, lambda row: {"n": row["n"] + 1}, create={"n": 0})
    assert (made.old, made.new and made.new.values) == (None, {"n": 1})
    gone = await optimistic_update(table, KEY, lambda row: None)
    assert (gone.old and gone.old.values, gone.new) == ({"n": 1}, None)
    with pytest.raises(NotFound):
        await optimistic_update(table, KEY, lambda row: row)


async def test_an_unchecked_update_writes_over_others(table: Table) -> None:
    await table.write(Insert(KEY, {"n": 1}))
    update = await optimistic_update(table, KEY, lambda row: {"n": 7}, unchecked=True)
    assert (await table.read(KEY)) == update.new


async def test_a_row_read_in_part_still_says_its_version(table: Table) -> None:
    etag = await table.write(Insert(KEY, {"a": 1}, ("n1", "n2")))
    row = await table.read(KEY, select=())
    assert (row.etag, row.nonces, row.values) == (etag, ("n1", "n2"), {})
    assert [row.etag async for row in table.scan(select=["a"])] == [etag]
