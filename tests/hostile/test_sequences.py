"""What an administrator, a backup or another program does to a sequence's blob and rows: no number twice, or an error."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from azure.data.tables import UpdateMode

from coordinator.config import StorageConfig
from coordinator.errors import KennelError, SequenceError, SequenceLowered
from coordinator.sequences.azure import HEAD
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.ledger import LedgerReader, open_book
from coordinator.storage import Storage
from coordinator.testing.faults import DROP_ANSWER, RESET_AFTER, FaultProxy, delayed
from tests.support.reliability import Cell, Table

NAME = "orders"
GOES_ON = "Numbering goes on; no number is issued twice"
REFUSED = "No number is issued twice: an error says what was found, and that `ids repair` shows the cure"
RANGE = 10


class Fleet:
    """One sequence, and processes that take its numbers (each with a storage of its own)."""

    def __init__(self, connect: Callable[[], Storage]) -> None:
        self._connect = connect
        self.admin = connect()
        self.numbers: list[int] = []
        self.errors: list[KennelError] = []
        self._storages = [self.admin]
        self.backup: tuple[bytes, dict[str, str], list[Any]] = (b"", {}, [])

    def process(self, range_size: int = RANGE) -> UniqueIdGenerator:
        storage = self._connect()
        self._storages.append(storage)
        return storage.sequence(NAME, range_size=range_size, max_range_size=range_size, deadline_seconds=5.0)

    def take(self, process: UniqueIdGenerator, count: int) -> None:
        """As many numbers as come until an error."""
        try:
            for _ in range(count):
                self.numbers.append(process.next_id())
        except KennelError as error:
            self.errors.append(error)

    def take_past_stock(self, process: UniqueIdGenerator) -> None:
        """Until numbers must come that the process does not hold yet: on a slow machine it holds more of them."""
        self.take(process, process.runway().numbers + 4 * RANGE)

    def book(self) -> LedgerReader:
        return open_book(self.admin, NAME)

    @property
    def blob(self) -> Any:
        return self.admin.blocking.blobs.get_blob_client(self.admin.config.container("sequences"), NAME)

    @property
    def table(self) -> Any:
        return self.admin.blocking.tables.get_table_client(self.admin.config.table("ledger"))

    def rows(self) -> list[Any]:
        return [dict(row) for row in self.table.query_entities(f"PartitionKey eq '{NAME}'")]

    def back_up(self) -> None:
        answer = self.blob.download_blob()
        self.backup = (answer.readall(), dict(answer.properties.metadata), self.rows())

    def close(self) -> None:
        for storage in self._storages:
            storage.close()


def lower(fleet: Fleet) -> None:
    fleet.blob.upload_blob(b"5", overwrite=True)


def restore(fleet: Fleet) -> None:
    text, metadata, _ = fleet.backup
    fleet.blob.upload_blob(text, overwrite=True, metadata=metadata)


def wipe_metadata(fleet: Fleet) -> None:
    fleet.blob.set_blob_metadata({})


def overwrite_with_garbage(fleet: Fleet) -> None:
    fleet.blob.upload_blob(b"<html>Service unavailable</html>", overwrite=True)


def garble_metadata(fleet: Fleet) -> None:
    fleet.blob.set_blob_metadata({"kennel_next": "soon", "kennel_grants": "[[]]"})


def delete_rows(fleet: Fleet) -> None:
    for row in fleet.rows():
        if not row["RowKey"].startswith(HEAD):
            fleet.table.delete_entity(NAME, row["RowKey"])


def restore_rows(fleet: Fleet) -> None:
    before = {row["RowKey"]: row for row in fleet.backup[2]}
    for row in fleet.rows():
        if row["RowKey"] not in before:
            fleet.table.delete_entity(NAME, row["RowKey"])
    for row in before.values():
        fleet.table.upsert_entity(row, mode=UpdateMode.REPLACE)


def restore_beside_newer_rows(fleet: Fleet) -> None:
    restore(fleet)
    for row in fleet.backup[2]:
        fleet.table.upsert_entity(row, mode=UpdateMode.REPLACE)


def delete_heads(fleet: Fleet) -> None:
    for row in fleet.rows():
        if row["RowKey"].startswith(HEAD):
            fleet.table.delete_entity(NAME, row["RowKey"])


def lower_heads(fleet: Fleet) -> None:
    for row in fleet.rows():
        if row["RowKey"].startswith(HEAD):
            fleet.table.upsert_entity({**row, "next": 1}, mode=UpdateMode.REPLACE)


def delete_table(fleet: Fleet) -> None:
    fleet.admin.blocking.tables.delete_table(fleet.admin.config.table("ledger"))


FAULTS: dict[str, Callable[[Fleet], None]] = {
    "The counter is deleted": lambda fleet: fleet.blob.delete_blob(),
    "The counter is lowered": lower,
    "The counter is restored from a backup": restore,
    "The counter's metadata is removed": wipe_metadata,
    "The counter's metadata is garbage": garble_metadata,
    "The counter is overwritten with garbage": overwrite_with_garbage,
    "The counter and older rows of its ledger are restored beside newer rows": restore_beside_newer_rows,
    "The ledger's rows are deleted": delete_rows,
    "The ledger's rows are restored from a backup": restore_rows,
    "The ledger's heads, of its birth and of the newest grant, are deleted": delete_heads,
    "The ledger's heads are lowered": lower_heads,
    "The ledger's table is deleted": delete_table,
}


# --- when it happens --------------------------------------------------------------------------------------------------


def running_process(fleet: Fleet, first: UniqueIdGenerator, fault: Callable[[Fleet], None]) -> None:
    fault(fleet)
    fleet.take_past_stock(first)


def new_process(fleet: Fleet, first: UniqueIdGenerator, fault: Callable[[Fleet], None]) -> None:
    fault(fleet)
    for _ in range(2):
        fleet.take(fleet.process(), 2 * RANGE)


def bulk_call(fleet: Fleet, first: UniqueIdGenerator, fault: Callable[[Fleet], None]) -> None:
    fault(fleet)
    for process in (first, fleet.process()):
        try:
            fleet.numbers.extend(process.next_ids(process.runway().numbers + 50 * RANGE))
        except KennelError as error:
            fleet.errors.append(error)


def between_counter_and_ledger(
    fleet: Fleet, first: UniqueIdGenerator, fault: Callable[[Fleet], None]
) -> None:
    """The first process has won its write of the counter, and another comes before its row is in the ledger."""
    ledger: Any = first._ledger
    enter = ledger.enter

    def meanwhile(*args: Any, **more: Any) -> Any:
        ledger.enter = enter
        fault(fleet)
        fleet.take(fleet.process(), 2 * RANGE)
        return enter(*args, **more)

    ledger.enter = meanwhile
    fleet.take_past_stock(first)


def between_read_and_write(fleet: Fleet, first: UniqueIdGenerator, fault: Callable[[Fleet], None]) -> None:
    store: Any = first._store
    write = store.try_optimistic_write

    def meanwhile(*args: Any, **more: Any) -> Any:
        store.try_optimistic_write = write
        fault(fleet)
        return write(*args, **more)

    store.try_optimistic_write = meanwhile
    fleet.take_past_stock(first)
    fleet.take(fleet.process(), RANGE)


def return_of_numbers(fleet: Fleet, first: UniqueIdGenerator, fault: Callable[[Fleet], None]) -> None:
    fault(fleet)
    first.close()
    for _ in range(2):
        fleet.take(fleet.process(), 2 * RANGE)


def after_repair(fleet: Fleet, first: UniqueIdGenerator, fault: Callable[[Fleet], None]) -> None:
    with first.io:  # between two of its refills: one whose row came after the plan would need another repair
        fault(fleet)
        book = fleet.book()
        book.repair(book.plan_repair())
    for process in (fleet.process(), first):
        fleet.take_past_stock(process)
        book.repair(book.plan_repair())


MOMENTS: dict[str, Callable[[Fleet, UniqueIdGenerator, Callable[[Fleet], None]], None]] = {
    "while a process runs": running_process,
    "before a process starts": new_process,
    "before `next_ids`": bulk_call,
    "between the read of the counter and its write": between_read_and_write,
    "between the write of the counter and the ledger's": between_counter_and_ledger,
    "before unused numbers are returned": return_of_numbers,
    "before `ids repair`": after_repair,
}


@pytest.fixture
def fleet(connection_string: str, storage_prefix: str) -> Iterator[Fleet]:
    config = StorageConfig(prefix=storage_prefix)
    made = Fleet(lambda: Storage.from_connection_string(connection_string, config=config))
    yield made
    made.close()


def expected(fault: str, moment: str) -> str:
    """What a user gets."""
    if moment == "before `ids repair`" or fault.startswith("The ledger"):
        return GOES_ON
    if (
        fault == "The counter's metadata is removed"
        and moment == "between the write of the counter and the ledger's"
    ):
        return GOES_ON  # nothing that was issued is missing then
    return REFUSED


TABLE_INTRO = (
    "An administrator or another program changes a sequence in the storage account. After each row the numbers of all "
    "processes are compared: none was issued twice."
)
TABLE = Table(
    "Sequences under a hostile administrator",
    TABLE_INTRO,
    tuple(Cell(fault, moment, expected(fault, moment)) for fault in FAULTS for moment in MOMENTS),
    order=20,
)


@pytest.mark.parametrize("cell", TABLE.cells, ids=str)
def test_no_number_twice_or_an_error_that_names_thing_and_cure(fleet: Fleet, cell: Cell) -> None:
    first = fleet.process()
    fleet.take(first, 3)
    first.next_ids(2 * RANGE)
    fleet.back_up()
    fleet.numbers.clear()
    fleet.take(first, 3 * RANGE)
    MOMENTS[cell.subject](fleet, first, FAULTS[cell.fault])
    first.close()
    assert len(fleet.numbers) == len(set(fleet.numbers)), "a number was issued twice"
    if cell.outcome == GOES_ON:
        assert not fleet.errors
    else:
        assert fleet.errors
    for error in fleet.errors:
        assert isinstance(error, SequenceError)
        assert NAME in str(error)
        assert f"ids repair {NAME}" in str(error)


def repair(fleet: Fleet) -> None:
    """As an operator does: repair, verify, and repair again if a process wrote a range into the ledger after the plan."""
    book = fleet.book()
    for _ in range(3):
        book.repair(book.plan_repair())
        try:
            assert book.verify().is_ok
            return
        except SequenceLowered:
            pass
    assert book.verify().is_ok


@pytest.mark.parametrize("count", [250, 200_000])
@pytest.mark.parametrize(
    "fault", [lambda fleet: fleet.blob.delete_blob(), lower, restore], ids=["deleted", "lowered", "restored"]
)
@pytest.mark.parametrize(
    "who",
    [
        "a running process",
        "a fresh process",
        "a running process after a repair",
        "a fresh process after a repair",
    ],
)
def test_few_and_many_numbers_are_never_repeated(
    fleet: Fleet, fault: Callable[[Fleet], None], who: str, count: int
) -> None:
    # Many grants of a range each, as a program takes them, and some in one block.
    size = count // 25
    first = fleet.process(size)
    for half in range(2):
        fleet.numbers.extend(first.next_ids(count // 10))
        fleet.take(first, count // 2 - count // 10)
        if not half:
            fleet.back_up()
    assert len(fleet.numbers) == count
    fault(fleet)
    process = first if "running" in who else fleet.process(size)
    if "repair" in who:
        repair(fleet)
    fleet.take(process, count)
    try:
        fleet.numbers.extend(process.next_ids(count))
    except SequenceError as error:
        fleet.errors.append(error)
    assert len(fleet.numbers) == len(set(fleet.numbers))
    assert all(isinstance(error, SequenceError) for error in fleet.errors)
    assert bool(fleet.errors) == ("repair" not in who)


@pytest.mark.parametrize("seed", range(3))
def test_threads_that_share_a_generator_get_each_number_once_and_none_is_stuck_although_answers_are_slow(
    connection_string: str, storage_prefix: str, seed: int
) -> None:
    rng = random.Random(seed)
    with FaultProxy(connection_string) as proxy:
        proxy.at_random(0.15, seed=seed, faults=[delayed(0.1), delayed(0.3), DROP_ANSWER, RESET_AFTER])
        storage = Storage.from_connection_string(
            proxy.connection_string, config=StorageConfig(prefix=storage_prefix)
        )
        shared = storage.sequence(NAME, range_size=20, max_range_size=20)
        sizes = [[rng.choice([1, 1, 1, 7, 50]) for _ in range(15)] for _ in range(6)]

        def take(wanted: list[int]) -> list[int]:
            taken: list[int] = []
            for size in wanted:
                taken += [shared.next_id()] if size == 1 else shared.next_ids(size)
            return taken

        with ThreadPoolExecutor(6) as pool:
            numbers = [number for part in pool.map(take, sizes, timeout=60) for number in part]
        proxy.heal()
        shared.close()
        assert len(numbers) == len(set(numbers)) == sum(map(sum, sizes))
        assert open_book(storage, NAME).verify().is_ok
        storage.close()
