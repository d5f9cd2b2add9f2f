"""One suite for every store of sequences: in memory and in Azurite."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from coordinator.config import StorageConfig
from coordinator.errors import (
    ConfigurationError,
    NotFound,
    SequenceCorrupt,
    SequenceError,
    SequenceLowered,
    SequenceMissing,
)
from coordinator.sequences.azure import HEAD, BlobCounterStore, TableLedger
from coordinator.sequences.azure_tables import TableCounterStore
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.grants import (
    FREE,
    GRANTED,
    RETURNED,
    USED,
    ExternalAdvance,
    Grant,
    Owner,
    SequenceConfig,
)
from coordinator.sequences.ledger import LedgerReader
from coordinator.sequences.redis_store import RedisCounterStore
from coordinator.sequences.sql_store import SqlCounterStore
from coordinator.sequences.store import Ledger, OptimisticSyncStore
from coordinator.storage import Storage
from coordinator.testing.sequences import MemoryLedger, MemoryStore

ANN = Owner("ann", "host-a", 11, 1_700_000_000, "1.0")
BOB = Owner("bob", "host-b", 22, 1_700_000_100, "1.1")


class Parts:
    """One sequence in one kind of store."""

    name = "orders"

    def __init__(
        self,
        store: OptimisticSyncStore,
        ledger: Ledger,
        wreck: Callable[[str | None], None],
        forget_head: Callable[[], None],
    ) -> None:
        self.store, self.ledger = store, ledger
        self.wreck, self.forget_head = wreck, forget_head
        """Overwrite the counter's text without metadata, as another program would; None deletes it."""
        self._opened: list[UniqueIdGenerator] = []

    def generator(self, owner: Owner = ANN, **options: object) -> UniqueIdGenerator:
        settings = {"range_size": 10, "max_range_size": 10, "deadline_seconds": 5.0} | options
        config = SequenceConfig(**settings)  # type: ignore[arg-type]
        made = UniqueIdGenerator(self.name, self.store, self.ledger, config=config, owner=lambda: owner)
        self._opened.append(made)
        return made

    def book(self) -> LedgerReader:
        return LedgerReader(self.name, self.store, self.ledger)

    def close(self) -> None:
        for generator in self._opened:
            generator.close()


@contextmanager
def elsewhere(request: pytest.FixtureRequest) -> Iterator[tuple[OptimisticSyncStore, Callable[[], object]]]:
    """A counter outside the storage account, and how to delete it."""
    if request.param == "sqlite":
        path = str(request.getfixturevalue("tmp_path") / "counters.sqlite3")

        def delete_row() -> None:
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("DELETE FROM kennel_counters")

        yield SqlCounterStore.sqlite(Parts.name, path), delete_row
    elif request.param == "postgres":
        url = request.getfixturevalue("postgres_url")

        def drop(what: str) -> None:
            with psycopg.connect(url.replace("postgres://", "postgresql://")) as connection:
                connection.execute(what.encode())

        drop("DROP TABLE IF EXISTS kennel_counters")
        yield SqlCounterStore.postgres(Parts.name, url), lambda: drop("DELETE FROM kennel_counters")
    else:
        prefix = request.getfixturevalue("storage_prefix")
        store = RedisCounterStore(Parts.name, request.getfixturevalue("redis_url"), prefix=prefix)
        yield store, lambda: store._client.delete(prefix + Parts.name)
        store.close()


@pytest.fixture(params=["memory", "azurite", "table", "sqlite", "postgres", "redis"])
def parts(request: pytest.FixtureRequest) -> Iterator[Parts]:
    if request.param == "memory":
        store, ledger = MemoryStore(), MemoryLedger()
        made = Parts(
            store,
            ledger,
            lambda text: store.delete() if text is None else store.overwrite(text),
            lambda: ledger.forget(head=True),
        )
        yield made
        made.close()
        return
    if request.param in ("sqlite", "postgres", "redis"):
        ledger = MemoryLedger()
        with elsewhere(request) as (other, delete):

            def overwrite(text: str | None) -> None:
                if text is None:
                    delete()
                else:
                    etag = other.get_data().etag
                    assert other.try_optimistic_write(text, etag=etag, metadata={})

            made = Parts(other, ledger, overwrite, lambda: ledger.forget(head=True))
            yield made
            made.close()
        return
    storage = Storage.from_connection_string(
        request.getfixturevalue("connection_string"),
        config=StorageConfig(prefix=request.getfixturevalue("storage_prefix")),
    )

    def wreck_entity(text: str | None) -> None:
        table = storage.blocking.tables.get_table_client(storage.config.table("counters"))
        if text is None:
            table.delete_entity(Parts.name, "counter")
        else:
            table.upsert_entity(
                {"PartitionKey": Parts.name, "RowKey": "counter", "data": text, "metadata": "{}"}
            )

    def wreck(text: str | None) -> None:
        blob = storage.blocking.blobs.get_blob_client(storage.config.container("sequences"), Parts.name)
        if text is None:
            blob.delete_blob()
        else:
            blob.upload_blob(text.encode(), overwrite=True)

    def forget_head() -> None:
        table = storage.blocking.tables.get_table_client(storage.config.table("ledger"))
        for row in table.query_entities(f"PartitionKey eq '{Parts.name}'"):
            if row["RowKey"].startswith(HEAD):
                table.delete_entity(row)

    in_table = request.param == "table"
    made = Parts(
        TableCounterStore(storage, Parts.name) if in_table else BlobCounterStore(storage, Parts.name),
        TableLedger(storage, Parts.name),
        wreck_entity if in_table else wreck,
        forget_head,
    )
    yield made
    made.close()
    storage.close()


def grant(first: int, last: int, owner: Owner = ANN, nonce: str = "n", **more: object) -> Grant:
    return Grant(first, last, owner, nonce, 1_700_000_000.5, **more)  # type: ignore[arg-type]


# --- the store ----------------------------------------------------------------------------------------------------


def test_a_counter_that_was_never_written_is_not_found(parts: Parts) -> None:
    with pytest.raises(NotFound):
        parts.store.get_data()


def test_only_the_first_of_two_creations_wins(parts: Parts) -> None:
    assert parts.store.try_optimistic_write("1", etag=None, metadata={"a": "1"})
    assert parts.store.try_optimistic_write("2", etag=None, metadata={}) is None
    assert parts.store.get_data().data == "1"


def test_a_write_on_the_version_read_wins_and_its_etag_is_the_next_version(parts: Parts) -> None:
    parts.store.try_optimistic_write("1", etag=None, metadata={})
    read = parts.store.get_data()
    second = parts.store.try_optimistic_write("2", etag=read.etag, metadata={"kennel_next": "2"})
    assert second is not None
    assert second != read.etag
    assert parts.store.try_optimistic_write("3", etag=second, metadata={})


def test_a_write_on_an_older_version_changes_nothing(parts: Parts) -> None:
    etag = parts.store.try_optimistic_write("1", etag=None, metadata={})
    parts.store.try_optimistic_write("2", etag=etag, metadata={"who": "first"})
    assert parts.store.try_optimistic_write("3", etag=etag, metadata={"who": "second"}) is None
    now = parts.store.get_data()
    assert (now.data, dict(now.metadata)) == ("2", {"who": "first"})


def test_a_write_on_a_deleted_counter_does_not_bring_it_back(parts: Parts) -> None:
    etag = parts.store.try_optimistic_write("1", etag=None, metadata={})
    parts.wreck(None)
    assert parts.store.try_optimistic_write("2", etag=etag, metadata={}) is None
    with pytest.raises(NotFound):
        parts.store.get_data()


# --- the ledger ---------------------------------------------------------------------------------------------------


def test_an_empty_ledger_has_no_rows_no_jumps_and_no_tails(parts: Parts) -> None:
    assert list(parts.ledger.rows()) == []
    assert list(parts.ledger.advances()) == []
    assert parts.ledger.row("00000000000000000010") is None
    assert parts.ledger.take("00000000000000000010-0001", ANN, "n", 1.0) is None
    assert parts.ledger.head() == 0


def test_what_is_recorded_is_read_back_whole_and_in_order_of_number(parts: Parts) -> None:
    rows = [grant(1, 9), grant(10, 99, BOB, "m", step=10, outcome=USED), grant(100, 2**62, ANN, "o")]
    parts.ledger.record(list(reversed(rows)), [ExternalAdvance(5, 7)])
    assert list(parts.ledger.rows()) == rows
    assert list(parts.ledger.advances()) == [ExternalAdvance(5, 7)]
    assert list(parts.ledger.advances(at_or_after=7)) == [ExternalAdvance(5, 7)]
    assert list(parts.ledger.advances(at_or_after=8)) == []
    assert parts.ledger.row(rows[1].key) == rows[1]


def test_rows_are_found_by_number_by_bound_and_by_owner(parts: Parts) -> None:
    rows = [grant(n * 10 + 1, n * 10 + 10, (ANN, BOB)[n % 2], f"n{n}") for n in range(8)]
    parts.ledger.record(rows)
    assert next(parts.ledger.rows(at_or_after=35, limit=1)) == rows[3]
    assert next(parts.ledger.rows(at_or_after=40, limit=1)) == rows[3]
    assert next(parts.ledger.rows(at_or_after=41, limit=1)) == rows[4]
    assert list(parts.ledger.rows(at_or_after=21, below=50)) == rows[2:4]
    assert list(parts.ledger.rows(owner="bob")) == rows[1::2]


def test_recording_again_never_takes_an_outcome_back(parts: Parts) -> None:
    parts.ledger.record([grant(1, 10)])
    parts.ledger.record([grant(1, 10, outcome=USED)])
    parts.ledger.record([grant(1, 10)])
    assert [row.outcome for row in parts.ledger.rows()] == [USED]


def test_a_ledger_takes_more_rows_at_once_than_one_transaction_holds(parts: Parts) -> None:
    parts.ledger.record([grant(n * 10 + 1, n * 10 + 10) for n in range(150)])
    assert sum(1 for _ in parts.ledger.rows()) == 150


def begin(ledger: Ledger) -> None:
    """Enter the first grant."""
    assert ledger.enter([grant(1, 10)], after=ledger.state(at_or_after=1, limit=10))


def test_a_new_grant_is_entered_once_and_only_after_the_head(parts: Parts) -> None:
    begin(parts.ledger)
    assert parts.ledger.head() == 11
    assert parts.ledger.enter([grant(11, 20, nonce="m")], after="n", others=[grant(1, 10, outcome=USED)])
    assert parts.ledger.head() == 21
    assert not parts.ledger.enter([grant(21, 30, nonce="o")], after="n"), "that head is followed already"
    assert not parts.ledger.enter([grant(15, 20, BOB, nonce="o")], after="m"), "there is a row of that key"
    assert list(parts.ledger.rows()) == [grant(1, 10, outcome=USED), grant(11, 20, nonce="m")]
    assert parts.ledger.enter([grant(21, 30, nonce="o")], after="m", advances=[ExternalAdvance(15, 17)])
    assert list(parts.ledger.advances()) == [ExternalAdvance(15, 17)]


def test_an_entry_whose_head_is_gone_is_refused_whole(parts: Parts) -> None:
    begin(parts.ledger)
    parts.forget_head()
    assert not parts.ledger.enter([grant(11, 20, nonce="m")], after="n")
    assert list(parts.ledger.rows()) == [grant(1, 10)]


def test_grants_are_entered_together_after_a_look_unless_one_was_entered_since(parts: Parts) -> None:
    empty = parts.ledger.state(at_or_after=0, limit=10)
    assert (list(empty.rows), empty.next) == ([], 0)
    begin(parts.ledger)
    assert not parts.ledger.enter([grant(11, 20, nonce="m")], after=empty)
    seen = parts.ledger.state(at_or_after=11, limit=10)
    assert (list(seen.rows), seen.next) == ([], 11)
    together = [grant(11, 20, nonce="m"), grant(21, 30, nonce="o")]
    assert parts.ledger.enter(together, after=seen)
    assert not parts.ledger.enter([grant(31, 40, nonce="p")], after=seen)
    assert not parts.ledger.enter([grant(31, 40, nonce="p")], after="n")
    seen = parts.ledger.state(at_or_after=11, limit=10)
    assert (list(seen.rows), seen.next) == (together, 31)
    assert parts.ledger.enter([grant(31, 40, nonce="p")], after="o")
    assert [each.first for each in parts.ledger.state(at_or_after=1, limit=3).rows] == [1, 11, 21]


def test_a_grant_below_the_newest_leaves_the_head_where_it_is(parts: Parts) -> None:
    begin(parts.ledger)
    assert parts.ledger.enter([grant(21, 30, nonce="o")], after="n")
    seen = parts.ledger.state(at_or_after=11, limit=10)
    assert parts.ledger.enter([grant(11, 20, nonce="m")], after=seen, is_newest=False)
    assert not parts.ledger.enter([grant(31, 40, nonce="p")], after=seen)
    assert parts.ledger.head() == 31
    assert parts.ledger.enter([grant(31, 40, nonce="p")], after="o")


def test_returned_numbers_are_granted_once(parts: Parts) -> None:
    parts.ledger.record([grant(1, 10), grant(11, 20, nonce="m")])
    later = parts.ledger.give_back(grant(11, 20, nonce="m"), 10)
    earlier = parts.ledger.give_back(grant(1, 10), 6)
    first, second = parts.ledger.take(earlier, BOB, "b1", 5.0), parts.ledger.take(later, BOB, "b2", 6.0)
    assert first is not None
    assert second is not None
    assert (first.first, first.last, first.owner, first.generation) == (7, 10, BOB, 1)
    assert (second.first, second.last) == (11, 20)
    assert parts.ledger.take(earlier, ANN, "b3", 7.0) is None
    assert parts.ledger.take(earlier, BOB, "b1", 7.0) == first, "the answer to the first try was lost, say"
    rows = list(parts.ledger.rows())
    assert [(row.first, row.covers_to, row.outcome) for row in rows] == [
        (1, 6, RETURNED), (7, 10, GRANTED), (11, 10, RETURNED), (11, 20, GRANTED),
    ]  # fmt: skip


def test_giving_back_twice_is_harmless(parts: Parts) -> None:
    assert parts.ledger.give_back(grant(1, 10), 6) == parts.ledger.give_back(grant(1, 10), 6)
    assert [row.outcome for row in parts.ledger.rows()] == [RETURNED, FREE]


def test_returned_numbers_can_be_returned_again(parts: Parts) -> None:
    tail = parts.ledger.take(parts.ledger.give_back(grant(1, 10), 3), BOB, "b", 5.0)
    assert tail is not None
    again = parts.ledger.take(parts.ledger.give_back(tail, 7), ANN, "a", 6.0)
    assert again is not None
    assert (again.first, again.last, again.generation) == (8, 10, 2)
    holder = parts.book().holder(5)
    assert holder is None or holder.owner == BOB


# --- generators on it ---------------------------------------------------------------------------------------------


def test_numbers_start_at_one_and_follow_each_other(parts: Parts) -> None:
    generator = parts.generator()
    assert [generator.next_id() for _ in range(25)] == list(range(1, 26))


def test_two_generators_never_give_the_same_number_and_all_is_attributed(parts: Parts) -> None:
    numbers: list[int] = []
    generators = [parts.generator(ANN), parts.generator(BOB)]

    def work(generator: UniqueIdGenerator) -> None:
        numbers.extend([generator.next_id() for _ in range(150)])

    threads = [threading.Thread(target=work, args=(generator,)) for generator in generators * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(numbers)) == 600
    report = parts.book().verify()
    assert report.is_ok, report.summary
    for generator in generators:
        generator.close()
    report = parts.book().verify()
    assert (report.is_ok, report.open, report.used) == (True, 0, 600), report


def test_a_closed_generators_tail_is_granted_first(parts: Parts) -> None:
    first = parts.generator(ANN, range_size=100, max_range_size=100)
    assert [first.next_id() for _ in range(3)] == [1, 2, 3]
    assert first.close() == [range(4, 101)]
    second = parts.generator(BOB)
    assert second.next_id() == 4
    assert parts.book().verify().is_ok


def test_the_holder_of_each_number_is_known(parts: Parts) -> None:
    ann, bob = parts.generator(ANN), parts.generator(BOB)
    by_number = {
        generator.next_id(): owner for _ in range(30) for generator, owner in ((ann, "ann"), (bob, "bob"))
    }
    book = parts.book()
    holders = {number: book.holder(number) for number in by_number}
    assert {number: held.owner.id for number, held in holders.items() if held} == by_number


@pytest.mark.parametrize("text", ["", "abc", "12x", "-5", "1.5", "99999999999999999999", "１２"])
def test_text_that_is_no_number_is_an_error_that_quotes_it(parts: Parts, text: str) -> None:
    parts.store.try_optimistic_write("1", etag=None, metadata={})
    parts.wreck(text)
    with pytest.raises(SequenceCorrupt) as caught:
        parts.generator().next_id()
    assert caught.value.found == text
    assert repr(text) in str(caught.value)


def test_a_deleted_counter_never_restarts_numbering(parts: Parts) -> None:
    generator = parts.generator()
    generator.next_id()
    generator.close()
    parts.wreck(None)
    with pytest.raises(SequenceMissing):
        parts.generator().next_id()


def test_a_lowered_counter_is_refused_by_a_new_process(parts: Parts) -> None:
    generator = parts.generator()
    for _ in range(35):
        generator.next_id()
    generator.close()
    parts.wreck("5")
    with pytest.raises(SequenceLowered):
        parts.generator(BOB).next_id()


def test_a_counter_lowered_under_a_running_generator_is_refused(parts: Parts) -> None:
    generator = parts.generator()
    given = [generator.next_id()]
    parts.wreck("1")

    def take_all() -> None:
        while True:
            given.append(generator.next_id())

    with pytest.raises(SequenceLowered):
        take_all()
    assert len(given) == len(set(given))


def test_a_plain_counter_of_another_program_is_shared_and_its_numbers_are_unattributed(parts: Parts) -> None:
    parts.store.try_optimistic_write("41", etag=None, metadata={})
    generator = parts.generator()
    assert generator.next_id() == 41
    report = parts.book().verify()
    assert (report.is_ok, report.unattributed) == (True, 40)
    assert parts.book().is_unattributed(7)


def test_jumps_of_another_program_between_ours_are_unattributed_and_ours_stay_attributed(
    parts: Parts,
) -> None:
    generator = parts.generator()
    given = []
    for _ in range(5):
        given += [generator.next_id() for _ in range(10)]
        etag = None
        while etag is None:  # a refill may be under way
            now = parts.store.get_data()
            etag = parts.store.try_optimistic_write(str(int(now.data) + 100), etag=now.etag, metadata={})
    generator.close()
    report = parts.book().verify()
    assert report.is_ok, report.summary
    assert report.unattributed == 500
    assert len(set(given)) == 50
    assert all(parts.book().holder(number) for number in given)


# --- repair -------------------------------------------------------------------------------------------------------


def test_a_sound_counter_needs_no_repair(parts: Parts) -> None:
    parts.generator().next_id()
    assert parts.book().plan_repair().counter is None


@pytest.mark.parametrize("damage", [None, "rubbish", "5"])
def test_a_damaged_counter_is_repaired_above_all_that_was_granted(parts: Parts, damage: str | None) -> None:
    generator = parts.generator()
    given = [generator.next_id() for _ in range(35)]
    generator.close()
    parts.wreck(damage)
    plan = parts.book().plan_repair()
    assert plan.problem
    assert plan.next_number is not None
    assert plan.next_number > 40
    with pytest.raises((SequenceCorrupt, SequenceLowered, SequenceMissing)):
        parts.generator().next_id()
    parts.book().repair(plan)
    after = parts.generator(BOB)
    given += [after.next_id() for _ in range(35)]
    after.close()
    assert len(set(given)) == 70
    report = parts.book().verify()
    assert report.is_ok, report.summary


def test_a_repair_never_goes_below_what_was_granted(parts: Parts) -> None:
    generator = parts.generator()
    generator.next_id()
    generator.close()
    parts.wreck("1")
    with pytest.raises(ConfigurationError):
        parts.book().plan_repair(next_number=5)
    assert parts.book().plan_repair(next_number=1000).next_number == 1000


def test_a_repair_whose_plan_is_out_of_date_writes_nothing(parts: Parts) -> None:
    generator = parts.generator()
    generator.next_id()
    generator.close()
    parts.wreck("1")
    plan = parts.book().plan_repair()
    parts.wreck("2")
    with pytest.raises(SequenceError):
        parts.book().repair(plan)
    assert parts.store.get_data().data == "2"
