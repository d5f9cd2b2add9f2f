"""What the logs of terms and epochs promise beside the ordinary: odd rows, known epochs, and tables that hold much."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from coordinator import Storage
from coordinator.azure.epochs import TableEpochs
from coordinator.config import StorageConfig
from coordinator.epochs import EpochLog, EpochRecord
from coordinator.leadership.azure import BlobLeaseStore, TableTermLog
from coordinator.leadership.terms import TermRecord
from coordinator.sequences.azure import BlobCounterStore, TableLedger
from coordinator.sequences.grants import FREE, USED, Grant, Owner
from coordinator.testing.leadership import MemoryEpochs

ANN, BOB = Owner("ann"), Owner("bob")


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    config = StorageConfig(prefix=storage_prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        yield storage


@pytest.fixture
def blocking(connection_string: str, storage_prefix: str) -> Iterator[Storage]:
    config = StorageConfig(prefix=storage_prefix)
    storage = Storage.from_connection_string(connection_string, config=config)
    yield storage
    storage.close()


@pytest.fixture(params=["memory", "table", "terms"])
def epochs(request: pytest.FixtureRequest) -> EpochLog:
    if request.param == "memory":
        return MemoryEpochs()
    storage = request.getfixturevalue("storage")
    return TableEpochs(storage, "orders") if request.param == "table" else TableTermLog(storage)


async def test_an_epoch_is_used_once_whoever_asks_and_however_often(epochs: EpochLog) -> None:
    first = EpochRecord("orders", 5, "ann", nonce="a")
    assert await epochs.claim(first) == 0
    assert await epochs.claim(first) == 0, "the answer to the first claim was lost, say"
    assert await epochs.claim(EpochRecord("orders", 5, "bob", nonce="b")) == 5
    assert await epochs.claim(EpochRecord("orders", 3, "bob", nonce="b")) == 5
    assert await epochs.claim(EpochRecord("orders", 6, "bob", nonce="b")) == 0


async def test_a_higher_epoch_of_another_process_is_found(storage: Storage) -> None:
    ours, theirs = TableEpochs(storage, "orders"), TableEpochs(storage, "orders")
    assert await ours.claim(EpochRecord("orders", 1, nonce="a")) == 0
    assert await theirs.claim(EpochRecord("orders", 4, nonce="b")) == 0
    assert await ours.claim(EpochRecord("orders", 2, nonce="c")) == 4
    assert await ours.claim(EpochRecord("orders", 5, nonce="d")) == 0
    table = storage.aio.tables.get_table_client(storage.config.table("epochs"))
    await table.delete_entity("highest", "orders")
    assert await ours.claim(EpochRecord("orders", 6, nonce="e")) == 0, "a row that was deleted is made again"


async def test_a_term_that_makes_no_sense_costs_its_own_row_and_says_why(storage: Storage) -> None:
    log = TableTermLog(storage)
    for epoch in (1, 2, 3):
        await log.began(TermRecord("month-end", epoch, "node-7", 1000.0 + epoch))
    table = storage.aio.tables.get_table_client(storage.config.table("terms"))
    rows = sorted([row["RowKey"] async for row in table.list_entities()], reverse=True)
    for key, change in zip(rows, ({"epoch": -4}, {"since": 1e300}), strict=False):
        await table.update_entity({"PartitionKey": "month-end", "RowKey": key, **change})
    assert [(term.epoch, term.how) for term in await log.newest("month-end", 9)] == [
        (3, ""),
        (0, "unreadable: a moment is out of bounds"),
        (0, "unreadable: its epoch is out of bounds"),
    ]
    assert await log.newest("month-end", 0) == []


async def test_breaking_a_lease_that_nobody_holds_is_harmless(storage: Storage) -> None:
    store = BlobLeaseStore(storage, "month-end")
    await store.acquire("00000000-0000-4000-8000-000000000001", 15)
    await store.break_now()
    await store.break_now()
    assert (await store.read()).lease_state == "broken"


# --- ledgers ---------------------------------------------------------------------------------------------------------


def grant(first: int, last: int, nonce: str = "n", outcome: str = "granted") -> Grant:
    return Grant(first, last, ANN, nonce, 1_700_000_000.5, outcome=outcome)


def test_more_settled_grants_than_a_transaction_takes_are_recorded_all_the_same(blocking: Storage) -> None:
    ledger = TableLedger(blocking, "orders")
    many = [grant(n * 10 + 1, n * 10 + 10, outcome=USED) for n in range(120)]
    empty = ledger.state(at_or_after=0, limit=1)
    assert ledger.enter([grant(1201, 1210, "m")], after=empty, others=many)
    assert sum(1 for _ in ledger.rows()) == 121
    assert len(list(ledger.rows(limit=7))) == 7
    more = [grant(2000 + n * 10 + 1, 2000 + n * 10 + 10, outcome=USED) for n in range(120)]
    key = ledger.give_back(grant(1201, 1210, "m"), 1204, more)
    assert sum(1 for _ in ledger.rows()) == 242
    tail = ledger.row(key)
    assert tail is not None and (tail.first, tail.outcome) == (1205, FREE)


def test_of_two_who_take_returned_numbers_one_gets_them(blocking: Storage) -> None:
    ledger = TableLedger(blocking, "orders")
    ledger.enter([grant(1, 10)], after=ledger.state(at_or_after=0, limit=1))
    key = ledger.give_back(grant(1, 10), 4)
    read = ledger._get

    def and_meanwhile(row: str) -> object:
        found = read(row)
        ledger._get = read  # type: ignore[method-assign]
        assert ledger.take(key, BOB, "b", 5.0) is not None
        return found

    ledger._get = and_meanwhile  # type: ignore[method-assign,assignment]
    assert ledger.take(key, ANN, "a", 5.0) is None
    assert ledger.take("nothing of that key", ANN, "a", 5.0) is None


def test_a_write_on_a_counter_that_is_gone_is_no_write(blocking: Storage) -> None:
    store = BlobCounterStore(blocking, "orders")
    etag = store.try_optimistic_write("1", etag=None, metadata={})
    assert etag is not None
    blocking.blocking.blobs.delete_container(blocking.config.container("sequences"))
    assert store.try_optimistic_write("2", etag=etag, metadata={}) is None
