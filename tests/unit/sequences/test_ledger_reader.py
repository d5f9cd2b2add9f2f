"""Reading a ledger: who has a number, a page of it, a moment in it, and what does not fit."""

from __future__ import annotations

import pytest

from coordinator.errors import SequenceLowered, SequenceMissing
from coordinator.sequences.grants import ExternalAdvance, Grant, Owner
from coordinator.sequences.ledger import LedgerReader
from coordinator.sequences.range_buffer import Block
from coordinator.sequences.readable import MistypedNumber, NumberFormat
from coordinator.sequences.verify import verify
from coordinator.testing.sequences import MemoryLedger, MemoryStore, memory_generator

ANN = Owner("ann")


def grant(first: int, last: int, at: float = 0.0, owner: Owner = ANN) -> Grant:
    return Grant(first, last, owner, f"n{first}", at)


def book(
    *grants: Grant, advances: tuple[ExternalAdvance, ...] = (), counter: str | None = None
) -> LedgerReader:
    store, ledger = MemoryStore(), MemoryLedger()
    ledger.record(grants, advances)
    if counter is not None:
        store.overwrite(counter)
    return LedgerReader("orders", store, ledger)


def test_the_first_number_since_a_moment_is_found_by_halving() -> None:
    reader = book(*(grant(n * 10 + 1, n * 10 + 10, at=100.0 + n) for n in range(50)), counter="501")
    assert reader.granted_since(0.0) == 0
    assert 111 <= reader.granted_since(112.0) <= 121
    for moment in (100.5, 117.0, 148.9):
        first = reader.granted_since(moment)
        row = next(row for row in reader.rows() if row.last >= first)
        assert row.granted_at >= moment
        assert all(other.granted_at < moment for other in reader.rows() if other.last < first)
    assert reader.granted_since(1e9) == 501, "nothing was granted since: the next number"


def test_a_ledger_without_a_counter_can_be_read_and_is_not_called_whole() -> None:
    reader = book(grant(1, 10), grant(21, 30))
    holder = reader.holder(5)
    assert holder is not None and (holder.first, holder.last) == (1, 10)
    assert reader.holder(15) is None, "the next grant begins above it"
    with pytest.raises(SequenceMissing, match="numbers below 11 or more were granted"):
        reader.verify()
    with pytest.raises(SequenceMissing, match="mistyped name"):
        book().verify()


def test_a_counter_below_its_ledger_is_named() -> None:
    with pytest.raises(SequenceLowered):
        book(grant(1, 10), grant(11, 20), counter="5").verify()


def test_a_page_of_a_thin_ledger_is_filled_from_further_back() -> None:
    few = [grant(n * 100_000 + 1, n * 100_000 + 10, owner=Owner("ann" if n % 2 else "bob")) for n in range(9)]
    reader = book(*few, counter="2000000")
    page = reader.page(owner="bob", limit=2)
    assert [each.first for each in page.grants] == [800_001, 600_001]
    assert page.before is not None
    rest = reader.page(owner="bob", limit=9, before=page.before)
    assert [each.first for each in rest.grants] == [400_001, 200_001, 1]
    assert rest.before is None
    assert [each.owner.id for each in reader.rows(owner="ann")] == ["ann"] * 4


def test_numbers_of_nobody_are_told_from_those_of_another_program() -> None:
    reader = book(grant(1, 10), grant(21, 30), advances=(ExternalAdvance(11, 20),), counter="31")
    assert reader.is_unattributed(15) and not reader.is_unattributed(5)


def test_a_counter_that_another_program_moved_since_is_no_gap() -> None:
    store, ledger = MemoryStore(), MemoryLedger()
    with memory_generator(store=store, ledger=ledger, range_size=10, max_range_size=10) as orders:
        orders.next_id()
    snapshot = store.get_data()
    store.overwrite("500", snapshot.metadata)
    report = LedgerReader("orders", store, ledger).verify()
    assert report.is_ok and report.unattributed > 400


def test_a_report_of_many_faults_lists_some_and_counts_all() -> None:
    grants = [grant(n * 10 + 1, n * 10 + 5) for n in range(200)]
    report = verify("orders", grants, [], start=1, next_number=2001)
    assert report.missing == 1000 and len(report.gaps) < 200
    assert "1000 numbers in no grant" in report.summary
    twice = [
        each for n in range(200) for each in (grant(n * 10 + 1, n * 10 + 10), grant(n * 10 + 1, n * 10 + 10))
    ]
    report = verify("orders", twice, [], start=1, next_number=2001)
    assert report.doubled == 2000 and len(report.overlaps) < 200
    assert "2000 numbers in two grants" in report.summary and "in no grant" not in report.summary
    odd = [Grant(1, 10, ANN, "n", 0.0, outcome="unheard of")]
    report = verify("orders", odd, [], start=1, next_number=11)
    assert (report.used, report.returned, report.open) == (0, 0, 0)


def test_a_block_has_no_number_beyond_its_end() -> None:
    block = Block((range(1, 4), range(10, 12)))
    assert [block[place] for place in (0, 3, -1)] == [1, 10, 11]
    assert list(block[1:4]) == [2, 3, 10]
    for place in (5, -6):
        with pytest.raises(IndexError, match="block of 5 numbers"):
            _ = block[place]


def test_a_number_that_no_person_can_have_typed_is_refused() -> None:
    readable = NumberFormat(check="damm")
    with pytest.raises(ValueError, match="only numbers from 0"):
        readable.format(-1)
    with pytest.raises(MistypedNumber, match="only a check digit"):
        readable.parse("0")
    assert readable.parse(readable.format(7)) == 7


def test_a_generator_that_returns_no_tails_keeps_them() -> None:
    store, ledger = MemoryStore(), MemoryLedger()
    options = {"range_size": 10, "max_range_size": 10}
    with memory_generator(store=store, ledger=ledger, return_tails=False, **options) as orders:
        first = orders.next_id()
    with memory_generator(store=store, ledger=ledger, **options) as orders:
        assert orders.next_id() >= first + 10
        assert not orders.is_closed
    assert orders.is_closed
