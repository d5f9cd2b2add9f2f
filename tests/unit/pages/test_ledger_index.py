"""The index of the ledger says what the ledger says, and no more than it knows."""

from __future__ import annotations

import random
import time
import tracemalloc

import pytest
from channels.db import database_sync_to_async
from django.core.management import CommandError, call_command
from django.db import connection

from coordinator.clock import SYSTEM_CLOCK
from coordinator.realtime.protocol import SequenceStatus, WorkerState
from coordinator.sequences.allocator import RangeAllocator
from coordinator.sequences.azure import CounterInfo
from coordinator.sequences.grants import (
    FREE,
    GRANTED,
    RETURNED,
    USED,
    Counter,
    ExternalAdvance,
    Grant,
    Owner,
    SequenceConfig,
    unused_end_of,
)
from coordinator.sequences.ledger import LedgerReader
from coordinator.storage import Storage
from coordinator.testing.clock import ManualClock
from coordinator.testing.sequences import MemoryLedger, MemoryStore
from dashboard.live import ledger, ledger_index
from dashboard.live.ledger_index import LedgerIndex, read_span
from dashboard.live.presence import Presence
from dashboard.models import LedgerBook, LedgerRow
from dashboard.sequences.views import ledger_parts
from tests.unit.dashboard.making import hello

pytestmark = pytest.mark.django_db
ANN, BOB = Owner("ann", "here", 11, 5, "1.0"), Owner("bob", "there", 12)


def grant(first: int, last: int, owner: Owner = ANN, *, outcome: str = USED, at: float = 1.0) -> Grant:
    return Grant(first, last, owner, f"n{first}", at, outcome=outcome)


def copy(rows: MemoryLedger, counter: Counter, *, size: int = 999, source: str = "here") -> LedgerBook:
    """One whole look, as the sampler takes it."""
    book = ledger_index.book_of("orders", source, counter)
    start, is_last = ledger_index.beginning(book), False
    start_of_tail = start
    while not is_last and start < counter.value:
        span = read_span(rows, counter, start, rows=size)
        ledger_index.write_span(book.pk, span)
        start, is_last = span.end + 1, span.is_last
    old = ledger_index.next_to_sweep(book, start_of_tail)
    if old is not None:
        span = read_span(rows, counter, old, rows=size)
        ledger_index.write_span(book.pk, span)
        book.swept = span.end + 1
    LedgerBook.objects.filter(pk=book.pk).update(counter=counter.value, swept=book.swept, read_at=time.time())
    return LedgerBook.objects.get(pk=book.pk)


def kept() -> list[tuple[int, int, str, str]]:
    rows = LedgerRow.objects.order_by("last", "turn").select_related("owner")
    return [(row.first, row.last, row.owner.name if row.owner else "", row.state) for row in rows]


def page(**options: object) -> ledger.LedgerPage:
    account = ledger.account_of(Presence("here", clock=SYSTEM_CLOCK), "orders")
    return ledger.page(account, now=time.time(), **options)  # type: ignore[arg-type]


def answer(number: int) -> str:
    found = page(number=number).answer
    assert found is not None
    return found.kind


def test_grants_of_blob_and_table_are_copied_and_holes_are_named() -> None:
    rows = MemoryLedger()
    rows.record([grant(1, 10), grant(31, 40, BOB)], [ExternalAdvance(11, 20)])
    counter = Counter(
        61, '"1"', (grant(51, 60, BOB, outcome=GRANTED),), (ExternalAdvance(41, 50),), noted=61, start=1
    )
    copy(rows, counter)
    assert kept() == [
        (1, 10, "ann", USED),
        (11, 20, "", "unattributed"),
        (21, 30, "", "missing"),
        (31, 40, "bob", USED),
        (41, 50, "", "unattributed"),
        (51, 60, "bob", GRANTED),
    ]
    assert [answer(n) for n in (0, 5, 15, 25, 60, 61)] == [
        "before", "used", "unattributed", "missing", "granted", "future",
    ]  # fmt: skip


def test_a_counter_that_others_made_is_unattributed_throughout() -> None:
    copy(MemoryLedger(), Counter(5001, '"1"'))
    assert kept() == [(1, 5000, "", "unattributed")]


def test_what_was_not_settled_is_read_again_and_what_was_late_is_put_in_its_place() -> None:
    rows = MemoryLedger()
    rows.record([grant(1, 10, outcome=GRANTED), grant(21, 30)])
    counter = Counter(31, '"1"', noted=31, start=1)
    copy(rows, counter)
    assert answer(15) == "missing"
    rows.record([grant(1, 10), grant(11, 20, BOB)])
    copy(rows, counter)
    assert [row[2:] for row in kept()] == [("ann", USED), ("bob", USED), ("ann", USED)]


def test_old_unsettled_rows_are_read_again_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_index, "NEWEST_ROWS", 5)
    rows = MemoryLedger()
    unsettled = (2, 9, 15)
    rows.record(
        [grant(10 * n + 1, 10 * n + 10, outcome=GRANTED if n in unsettled else USED) for n in range(40)]
    )
    counter = Counter(401, '"1"', noted=401, start=1)
    copy(rows, counter, size=4)
    rows.record([grant(10 * n + 1, 10 * n + 10) for n in unsettled])
    for _ in unsettled:
        copy(rows, counter, size=4)
    assert {row[3] for row in kept()} == {USED}


def test_returned_ends_stay_with_their_range_and_the_last_turn_answers() -> None:
    rows = MemoryLedger()
    rows.record([grant(1, 100), grant(101, 200, outcome=GRANTED)])
    taken = rows.take(rows.give_back(grant(101, 200), 130), BOB, "b", 9.0)
    assert taken is not None
    rows.give_back(taken, 140)
    counter = Counter(201, '"1"', noted=201, start=1)
    copy(rows, counter, size=2)
    assert [row[3] for row in kept()] == [USED, RETURNED, RETURNED, FREE]
    assert [answer(n) for n in (120, 135, 150)] == ["returned", "returned", "free"]
    assert [view.owner for view in page(number=135).rows] == ["bob", "ann"]
    first = page(limit=1)
    assert [(view.first, view.state) for view in first.rows] == [
        (141, "free"),
        (131, "returned"),
        (101, "returned"),
    ]
    assert [view.first for view in page(limit=1, before=first.next).rows] == [1]


def test_what_is_not_read_yet_is_called_unread_and_not_missing() -> None:
    rows = MemoryLedger()
    rows.record([grant(10 * n + 1, 10 * n + 10) for n in range(10)])
    counter = Counter(101, '"1"', noted=101, start=1)
    book = ledger_index.book_of("orders", "here", counter)
    span = read_span(rows, counter, 1, rows=3)
    ledger_index.write_span(book.pk, span)
    LedgerBook.objects.update(counter=101)
    assert (span.end, span.is_last) == (30, False)
    assert [answer(30), answer(31), answer(101)] == ["used", "unread", "future"]
    assert page().is_behind
    assert page().hour is None


def test_an_index_can_be_forgotten_and_is_made_anew(capsys: pytest.CaptureFixture[str]) -> None:
    rows = MemoryLedger()
    rows.record([grant(1, 10), grant(11, 20)])
    counter = Counter(21, '"1"', noted=21, start=1)
    copy(rows, counter)
    before = kept()
    with pytest.raises(CommandError, match="no index of a sequence 'other'"):
        call_command("ledger_index", rebuild="other")
    call_command("ledger_index", rebuild="orders")
    assert capsys.readouterr().out == "orders: 0 rows, read up to 0 of 20\n"
    ledger_index.write_span(LedgerBook.objects.get().pk, read_span(rows, counter, 11))  # of a look under way
    assert [answer(5), answer(15)] == ["unread", "unread"]
    copy(rows, counter)
    assert kept() == before


def test_the_page_tells_how_fast_numbers_were_granted() -> None:
    now, rows = time.time(), MemoryLedger()
    ages = (90_000, 80_000, 4_000, 3_000, 10)
    rows.record([grant(10 * n + 1, 10 * n + 10, at=now - age) for n, age in enumerate(ages)])
    copy(rows, Counter(51, '"1"', noted=51, start=1))
    assert (page().hour, page().day) == (20, 40)


def test_a_lowered_counter_or_another_account_begins_the_index_anew() -> None:
    rows = MemoryLedger()
    rows.record([grant(1, 10), grant(11, 20)])
    copy(rows, Counter(21, '"1"', noted=21, start=1))
    other = MemoryLedger()
    other.record([grant(1, 10, BOB)])
    copy(other, Counter(11, '"1"', noted=11, start=1))
    assert kept() == [(1, 10, "bob", USED)]
    copy(rows, Counter(21, '"1"', noted=21, start=1), source="elsewhere")
    assert [row[2] for row in kept()] == ["ann", "ann"]


@pytest.mark.django_db(transaction=True)
async def test_an_index_that_has_reached_a_counter_below_its_start_waits_for_the_next_look() -> None:
    class Counters:
        value = 0

        async def read(self) -> list[CounterInfo]:
            return [CounterInfo("orders", self.value, Counter(self.value, '"1"'))]

    counters = Counters()
    async with Storage.from_connection_string("UseDevelopmentStorage=true") as storage:
        index = LedgerIndex(storage)
        index._counters = counters  # type: ignore[assignment]
        assert [await index.step() for _ in range(3)] == [False, False, False]
        counters.value = 1
        assert await index.step() is False


@pytest.mark.parametrize("seed", range(2))
def test_after_any_history_the_index_says_of_each_number_what_the_ledger_says(seed: int) -> None:
    rng, store, rows = random.Random(seed), MemoryStore(), MemoryLedger()
    owners = [Owner(f"o{n}", "h", n + 1) for n in range(4)]
    makers = [RangeAllocator("orders", store, rows, SequenceConfig(), owner=lambda o=o: o) for o in owners]  # type: ignore[misc]
    held: list[tuple[RangeAllocator, Grant]] = []
    for _ in range(50):
        maker = rng.choice(makers)
        match rng.randrange(5):
            case 0 | 1:
                held.append((maker, maker.reserve(rng.randrange(1, 20))))
            case 2 if held:
                maker, one = held.pop(rng.randrange(len(held)))
                maker.used(one)
                maker.settle()
            case 3 if held:
                maker, one = held.pop(rng.randrange(len(held)))
                if one.first < one.last:
                    maker.give_back([(one, rng.randrange(one.first, one.last))])
            case _:
                copy(rows, LedgerReader("orders", store, rows).counter(), size=3) if held else None
    book = LedgerReader("orders", store, rows)
    for _ in range(20):  # enough looks for every span that may have changed
        copy(rows, book.counter(), size=3)
    ends = {end for one in book.rows() for end in (one.first, one.covers_to)}
    for number in sorted(ends)[::3]:
        told, found = book.holder(number), page(number=number).answer
        assert told is not None
        assert found is not None
        assert found.grant is not None
        assert (found.grant.first, found.grant.last, found.grant.owner) == (
            told.first,
            told.last,
            told.owner.id,
        )
        assert found.kind == told.outcome


def fill(count: int) -> None:
    """That many rows of a thousand numbers each, by the database itself."""
    book, _ = LedgerBook.objects.get_or_create(name="orders")
    LedgerRow.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < %s - 1) "
            "INSERT INTO dashboard_ledgerrow (book_id, first, last, turn, step, granted_at, state) "
            "SELECT %s, i * 1000 + 1, i * 1000 + 1000, 0, 1, 1.0, 'used' FROM n",
            [count, book.pk],
        )
    LedgerBook.objects.update(next=count * 1000 + 1, counter=count * 1000 + 1)


async def peak(count: int) -> int:
    """Bytes at the most while the file of that many rows is made and thrown away."""
    await database_sync_to_async(fill)(count)
    lines = 0
    tracemalloc.start()
    try:
        async for part in ledger_parts("orders"):
            lines += part.count("\n")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        assert lines == count + 1


@pytest.mark.django_db(transaction=True)
async def test_the_file_of_a_ledger_takes_no_more_memory_for_five_times_the_rows() -> None:
    await peak(3_000)  # what is made once
    small = await peak(3_000)
    assert await peak(15_000) < 1.3 * small


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
async def test_nor_for_200_000_rows_than_for_10_000() -> None:
    small = await peak(10_000)
    assert await peak(200_000) < 1.1 * small


# --- what became of the newest ranges --------------------------------------------------------------------------------


def recent(grants: tuple[Grant, ...], presence: Presence) -> list[tuple[int, int, str, int | None]]:
    owners = {"orders": ledger.owners_of(presence, "orders")}
    views = ledger.settle({"orders": grants[::-1]}, owners)["orders"]
    return [(view.first, view.last, view.state, view.last_issued) for view in views]


def with_a_worker(name: str = "somebody-else", clock: ManualClock | None = None) -> Presence:
    presence = Presence("here", clock=clock or SYSTEM_CLOCK)
    presence.joined(hello(name))
    return presence


def test_a_range_that_was_returned_is_not_lost_though_the_counter_does_not_say_so() -> None:
    """As after every scale-in: the newest grants of the counter name their owner, who is gone."""
    taken = grant(1, 1000, ANN, outcome=GRANTED)
    rows = MemoryLedger()
    rows.record([taken.settled(RETURNED, 400), unused_end_of(taken, 400)])
    copy(rows, Counter(1001, '"1"', (taken,), noted=1001, start=1))
    assert recent((taken,), with_a_worker()) == [(401, 1000, "free", None), (1, 1000, "returned", 400)]


def test_a_range_whose_owner_crashed_is_lost_once_the_ledger_was_read_after_the_crash() -> None:
    clock = ManualClock(start=time.time() + 100)
    presence = with_a_worker(clock=clock)
    presence.joined(hello("ann", instance="i-ann", pid=11, state=WorkerState(mode="stopping")))
    presence.left("i-ann")
    taken = grant(1, 1000, ANN, outcome=GRANTED)
    rows = MemoryLedger()
    rows.record([taken])
    book = copy(rows, Counter(1001, '"1"', (taken,), noted=1001, start=1))
    assert recent((taken,), presence) == [(1, 1000, "granted", None)], "the ledger is older than the end"
    LedgerBook.objects.filter(pk=book.pk).update(read_at=clock.time() + 1)
    assert recent((taken,), presence) == [(1, 1000, "lost", None)]


def test_before_the_ledger_was_read_no_range_is_called_lost() -> None:
    taken = grant(1, 1000, ANN, outcome=GRANTED)
    assert recent((taken,), with_a_worker()) == [(1, 1000, "granted", None)]


def test_a_living_owner_that_returned_its_range_did_not_use_it_up() -> None:
    taken = grant(1, 1000, ANN, outcome=GRANTED)
    presence = with_a_worker()
    status = SequenceStatus("orders", first=2001, last=3000, last_issued=2010)
    presence.joined(hello("ann", pid=11, state=WorkerState(sequences=(status,))))
    assert recent((taken,), presence) == [(1, 1000, "used", None)]
    rows = MemoryLedger()
    rows.record([taken.settled(RETURNED, 400), unused_end_of(taken, 400)])
    copy(rows, Counter(1001, '"1"', (taken,), noted=1001, start=1))
    assert [row[2] for row in recent((taken,), presence)] == ["free", "returned"]


def test_ranges_of_two_sequences_are_not_confused() -> None:
    taken = grant(1, 1000, ANN, outcome=GRANTED)
    rows = MemoryLedger()
    rows.record([taken.settled(RETURNED, 400), unused_end_of(taken, 400)])
    copy(rows, Counter(1001, '"1"', (taken,), noted=1001, start=1))
    owners = {name: ledger.owners_of(with_a_worker(), name) for name in ("orders", "others")}
    found = ledger.settle({"orders": [taken], "others": [taken]}, owners)
    assert [view.state for view in found["others"]] == ["granted"]


def test_the_owners_of_many_sequences_are_those_of_each() -> None:
    clock = ManualClock(start=time.time())
    presence = with_a_worker(clock=clock)
    states = (SequenceStatus("orders", first=1, last=10), SequenceStatus("orders", first=11, last=20))
    presence.joined(hello("ann", pid=11, state=WorkerState(sequences=states)))
    names = ("orders", "others")
    each = ledger.owners_of_each(presence, names)
    assert each == {name: ledger.owners_of(presence, name) for name in names}
    assert each["orders"].alive["ann", 11].first == 1
    assert [status.last for status in each["others"].alive.values()] == [0, 0]


def test_without_its_index_no_range_is_called_lost() -> None:
    taken = grant(1, 1000, ANN, outcome=GRANTED)
    owners = {"orders": ledger.owners_of(with_a_worker(), "orders")}
    found = ledger.unsettled({"orders": [taken]}, owners)["orders"]
    assert [(view.first, view.last, view.state) for view in found] == [(1, 1000, "granted")]
