"""Writes of a leader whose term is over are refused where they land."""

from __future__ import annotations

import asyncio
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator

import psycopg
import pytest

from coordinator import Storage
from coordinator.clock import SYSTEM_CLOCK
from coordinator.config import StorageConfig
from coordinator.errors import ConfigurationError, LeadershipLost, StorageError
from coordinator.leadership.fencing import FENCE_TABLE, LeasedBlob, fence_sql, transact_fenced, write_fenced
from coordinator.leadership.term import Term


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    async with Storage.from_connection_string(
        connection_string, config=StorageConfig(prefix=storage_prefix)
    ) as storage:
        await storage.aio.blobs.create_container(storage.config.container("books"))
        await storage.aio.tables.create_table(storage.config.table("books"))
        yield storage


def term(epoch: int, *, seconds: float = 60.0) -> Term:
    now = time.monotonic()
    return Term(
        "month-end",
        holder=f"node-{epoch}",
        epoch=epoch,
        lease_id=str(uuid.uuid4()),
        since=time.time(),
        asked_at=now,
        deadline=now + seconds,
        clock=SYSTEM_CLOCK,
    )


async def content(storage: Storage) -> bytes:
    blob = storage.aio.blobs.get_blob_client(storage.config.container("books"), "total")
    return bytes(await (await blob.download_blob()).readall())


@pytest.mark.parametrize("how", ["tag", "lease"])
async def test_an_earlier_term_cannot_write_a_blob_after_a_later_one(storage: Storage, how: str) -> None:
    container = storage.config.container("books")
    old, new = term(9), term(10)  # as text without padding, "9" comes after "10"
    blobs = {9: LeasedBlob(storage, container, "total"), 10: LeasedBlob(storage, container, "total")}

    async def write(term: Term, data: bytes) -> None:
        if how == "tag":
            await write_fenced(storage, term, container, "total", data)
        else:
            await blobs[term.epoch].write(term, data)

    await write(old, b"old 1")
    await write(old, b"old 2")
    assert await content(storage) == b"old 2"
    await write(new, b"new 1")
    for _ in range(2):
        with pytest.raises(LeadershipLost, match="a later term than 9"):
            await write(old, b"old 3")
    await write(new, b"new 2")
    assert await content(storage) == b"new 2"


async def test_a_late_first_write_of_an_earlier_term_is_refused(storage: Storage) -> None:
    container = storage.config.container("books")
    await LeasedBlob(storage, container, "total").write(term(2), b"new")
    with pytest.raises(LeadershipLost):
        await LeasedBlob(storage, container, "total").write(term(1), b"old")
    assert await content(storage) == b"new"


async def test_claims_at_the_same_time_end_with_the_latest_term(storage: Storage) -> None:
    container = storage.config.container("books")
    for round_ in range(5):
        results: list[tuple[float, int]] = []

        async def write(term: Term, results: list[tuple[float, int]] = results) -> None:
            try:
                await LeasedBlob(storage, container, "total").write(term, str(term.epoch).encode())
                results.append((time.monotonic(), term.epoch))
            except LeadershipLost:
                return

        await asyncio.gather(*(write(term(10 * round_ + number)) for number in range(1, 6)))
        epochs = [epoch for _, epoch in sorted(results)]
        assert epochs == sorted(epochs)
        assert await content(storage) == str(epochs[-1]).encode()


async def test_a_blob_that_nobody_fenced_is_not_overwritten(storage: Storage) -> None:
    container = storage.config.container("books")
    await storage.aio.blobs.get_container_client(container).upload_blob("total", b"theirs")
    with pytest.raises(LeadershipLost):
        await write_fenced(storage, term(3), container, "total", b"ours")


async def test_a_term_that_is_over_sends_nothing(storage: Storage) -> None:
    before = storage.meter.total
    over = term(1, seconds=-1)
    with pytest.raises(LeadershipLost, match="could not be renewed"):
        await write_fenced(storage, over, storage.config.container("books"), "total", b"late")
    with pytest.raises(LeadershipLost):
        await LeasedBlob(storage, storage.config.container("books"), "total").write(over, b"late")
    with pytest.raises(LeadershipLost):
        await transact_fenced(storage, over, storage.config.table("books"), "p", [("upsert", {})])
    assert storage.meter.total == before


async def test_an_earlier_term_cannot_write_to_a_table_partition_after_a_later_one(storage: Storage) -> None:
    table = storage.config.table("books")

    def row(key: str, value: str) -> tuple[str, dict[str, str]]:
        return ("upsert", {"PartitionKey": "2026-11", "RowKey": key, "value": value})

    old, new = term(1), term(2)
    await transact_fenced(storage, old, table, "2026-11", [row("a", "old"), row("b", "old")])
    await transact_fenced(storage, old, table, "2026-11", [row("a", "old again")])
    await transact_fenced(storage, new, table, "2026-11", [row("a", "new")])
    with pytest.raises(LeadershipLost):
        await transact_fenced(storage, old, table, "2026-11", [row("a", "late"), row("c", "late")])
    client = storage.aio.tables.get_table_client(table)
    rows = {entity["RowKey"]: entity.get("value") async for entity in client.list_entities()}
    assert rows == {"a": "new", "b": "old", "kennel-epoch": None}


async def test_transactions_of_one_term_at_the_same_time_all_succeed(storage: Storage) -> None:
    table, leader = storage.config.table("books"), term(1)
    await asyncio.gather(
        *(
            transact_fenced(
                storage, leader, table, "p", [("upsert", {"PartitionKey": "p", "RowKey": str(n), "n": n})]
            )
            for n in range(4)
        )
    )
    client = storage.aio.tables.get_table_client(table)
    assert len([entity async for entity in client.list_entities()]) == 5


async def test_a_failing_operation_of_the_caller_is_told_as_such(storage: Storage) -> None:
    table, leader = storage.config.table("books"), term(1)
    row = {"PartitionKey": "p", "RowKey": "a"}
    await transact_fenced(storage, leader, table, "p", [("create", row)])
    with pytest.raises(StorageError):
        await transact_fenced(storage, leader, table, "p", [("create", row)])


@pytest.mark.parametrize("number", [0, 100])
async def test_too_many_operations_are_refused_before_they_are_sent(storage: Storage, number: int) -> None:
    with pytest.raises(ConfigurationError, match="1 to 99 operations"):
        await transact_fenced(storage, term(1), storage.config.table("books"), "p", [("upsert", {})] * number)


async def test_an_earlier_term_cannot_commit_to_sqlite_after_a_later_one() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute(FENCE_TABLE)
    connection.execute("CREATE TABLE books (total INTEGER)")
    for leader, total in ((term(1), 1), (term(1), 2), (term(2), 3)):
        with connection:
            fence_sql(connection.cursor(), leader)
            connection.execute("INSERT INTO books VALUES (?)", (total,))
    connection.execute("INSERT INTO books VALUES (4)")
    with pytest.raises(LeadershipLost):
        fence_sql(connection.cursor(), term(1))
    connection.rollback()
    assert connection.execute("SELECT total FROM books").fetchall() == [(1,), (2,), (3,)]
    connection.close()


async def test_an_earlier_term_cannot_commit_to_postgresql_after_a_later_one(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute(FENCE_TABLE)
        connection.commit()
        for leader in (term(1), term(2)):
            with connection.transaction():
                fence_sql(connection.cursor(), leader, placeholder="%s")
        with pytest.raises(LeadershipLost), connection.transaction():
            fence_sql(connection.cursor(), term(1), placeholder="%s")
