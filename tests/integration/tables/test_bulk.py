"""More writes than a transaction takes, on real storage, with a writer that dies in the middle."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from coordinator import ANY, Delete, Insert, Merge, Storage, Upsert
from coordinator.config import StorageConfig
from coordinator.errors import AlreadyExists, ConfigurationError, NotFound
from coordinator.tables.operations import Operation
from coordinator.tables.table import Table


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    config = StorageConfig(prefix=storage_prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        yield storage


def table_of(storage: Storage) -> Table:
    return storage.table(storage.config.table("customers"))


def many(count: int) -> list[Operation]:
    """Rows of three partitions, each with every kind of value."""
    at, id = datetime(2026, 3, 1, 12, tzinfo=UTC), uuid.UUID(int=7)
    return [
        Upsert(
            (f"p{n % 3}", f"{n:05d}"),
            {"n": n, "wide": 2**40 + n, "at": at, "id": id, "raw": b"\0\1", "ok": True},
        )
        for n in range(count)
    ]


async def rows(table: Table) -> dict[tuple[str, str], dict[str, object]]:
    return {tuple(row.key): row.values async for row in table.scan()}  # type: ignore[misc]


async def test_one_call_writes_more_than_a_transaction_takes_and_deletes_it(storage: Storage) -> None:
    table, bulk = table_of(storage), storage.bulk()
    wanted = many(700)
    assert await bulk.write("import-1", table.name, wanted) == 9  # 234, 233, 233
    assert await rows(table) == {tuple(each.key): each.values for each in wanted}  # type: ignore[union-attr]
    assert [row async for row in storage.table(storage.config.table("bulk")).scan()] == []
    await table.write(Delete(wanted[5].key, ANY))
    gone: list[Operation] = [Delete(each.key, ANY) for each in wanted]
    await bulk.write("import-1-undone", table.name, gone)
    assert await rows(table) == {}


async def test_a_write_of_the_same_key_is_done_once(storage: Storage) -> None:
    table, bulk = table_of(storage), storage.bulk()
    await bulk.write("import-2", table.name, many(300))
    await table.write(Upsert(("p0", "00000"), {"n": -1}))
    await bulk.write("import-2", table.name, many(300))
    assert (await table.read(("p0", "00000")))["n"] == -1
    kept = storage.table(storage.config.table("bulk"))
    assert [row async for row in kept.scan()] == [], "nothing is kept of a write that is done"


async def test_a_used_key_with_other_operations_is_an_error_and_writes_nothing(storage: Storage) -> None:
    table, bulk = table_of(storage), storage.bulk()
    await bulk.write("import-4", table.name, many(300))
    others: list[Operation] = [Upsert(("other", f"{n:05d}"), {"n": n}) for n in range(200)]
    with pytest.raises(AlreadyExists, match="import-4 was begun with other operations; nothing of this one"):
        await bulk.write("import-4", table.name, others)
    with pytest.raises(AlreadyExists, match="other operations"):
        await bulk.write("import-4", storage.config.table("elsewhere"), many(300))
    assert len(await rows(table)) == 300
    kept = storage.table(storage.config.table("bulk"))
    assert [row async for row in kept.scan()] == []


async def test_two_writers_with_one_key_and_different_operations_do_not_mix_them(storage: Storage) -> None:
    table = table_of(storage)
    writes = [[Upsert((name, f"{n:05d}"), {"n": n}) for n in range(250)] for name in ("a", "b")]
    answers = await asyncio.gather(
        *(storage.bulk().write("import-5", table.name, each) for each in writes), return_exceptions=True
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["AlreadyExists", "int"]
    assert len({key[0] for key in await rows(table)}) == 1
    assert len(await rows(table)) == 250


async def test_what_fits_in_a_transaction_is_one_and_leaves_no_saga(storage: Storage) -> None:
    table, bulk = table_of(storage), storage.bulk()
    assert await bulk.write("small", table.name, many(1)) == 1
    assert await bulk.write("nothing", table.name, []) == 0
    with pytest.raises(NotFound):
        await storage.saga("bulk-write").read("small")


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (Insert(("p", "r"), {"n": 1}), "Insert of .* cannot be repeated"),
        (Merge(("p", "r"), {"n": 1}, ANY), "Merge of .* cannot be repeated"),
        (Delete(("p", "r"), "W/1"), "Delete of .* cannot be repeated"),
        (Upsert(("p", "r"), {"n": 2**70}), "does not fit in 64 bits"),
    ],
)
async def test_what_cannot_be_repeated_or_stored_is_refused_before_anything_is_sent(
    storage: Storage, operation: Operation, words: str
) -> None:
    before = storage.meter.total
    with pytest.raises(ConfigurationError, match=words):
        await storage.bulk().write("bad", table_of(storage).name, [*many(200), operation])
    assert storage.meter.total == before


async def test_a_worker_carries_on_for_a_writer_that_died_in_the_middle(storage: Storage) -> None:
    table, dying, other = table_of(storage), storage.bulk(), storage.bulk()
    wanted = many(600)
    writing = asyncio.create_task(dying.write("import-3", table.name, wanted))
    while not await table.top(1):
        await asyncio.sleep(0.005)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    listener = other.listener(visibility_seconds=2.0)
    running = asyncio.create_task(listener.run())
    try:
        progress = await storage.saga("bulk-write").wait("import-3")
    finally:
        await listener.stop(5.0)
        await running
    assert progress.state == "done"
    assert len(await rows(table)) == 600
