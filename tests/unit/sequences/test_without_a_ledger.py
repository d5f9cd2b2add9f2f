"""Sequences that keep no ledger, numbers of many small grants, and rows of other owners."""

from __future__ import annotations

import pytest

from coordinator.errors import StorageUnreachable
from coordinator.sequences.allocator import RangeAllocator
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.grants import Grant, Owner, SequenceConfig
from coordinator.sequences.range_buffer import RangeBuffer
from coordinator.testing.clock import ManualClock
from coordinator.testing.sequences import MemoryStore
from tests.unit.sequences.bench import Bench, span

ANN = Owner("ann")


def grant(first: int, last: int) -> Grant:
    return Grant(first, last, ANN, f"n{first}", 0.0)


def without_ledger(store: MemoryStore, name: str = "ann") -> RangeAllocator:
    clock = ManualClock()
    return RangeAllocator(
        "orders",
        store,
        None,
        SequenceConfig(range_size=10),
        owner=lambda: Owner(name),
        clock=clock,
        pause=lambda _: False,
        sleep=lambda _: None,
    )


def test_without_a_ledger_ranges_are_granted_once_and_nothing_can_be_returned() -> None:
    store = MemoryStore()
    ann, bob = without_ledger(store), without_ledger(store, "bob")
    granted = [writer.reserve(10) for _ in range(30) for writer in (ann, bob)]
    assert [span(each) for each in granted] == [(first, first + 9) for first in range(1, 601, 10)]
    ann.used(granted[0])
    assert ann.settle()
    assert ann.give_back([(granted[-2], granted[-2].first)]) == []
    assert span(bob.reserve(10)) == (601, 610), "what was not returned is not granted again"
    assert store.get_data().data == "611"
    metadata = "".join(store.get_data().metadata.values())
    assert len(metadata) < 4000, "only the newest grants stay on the counter"


def test_a_counter_without_a_ledger_that_others_moved_goes_on_from_there() -> None:
    store = MemoryStore()
    ann = without_ledger(store)
    assert span(ann.reserve(10)) == (1, 10)
    store.overwrite("1000", store.get_data().metadata)
    assert span(ann.reserve(10)) == (1000, 1009)


def test_a_generator_without_a_ledger_loses_its_unused_numbers_and_says_which() -> None:
    store = MemoryStore()
    ids = UniqueIdGenerator("orders", store, None, config=SequenceConfig(range_size=10, max_range_size=10))
    assert [ids.next_id() for _ in range(3)] == [1, 2, 3]
    assert ids.close() == []
    again = UniqueIdGenerator("orders", store, None, config=SequenceConfig(range_size=10, max_range_size=10))
    assert again.next_id() > 10
    again.close()


def test_a_block_takes_what_is_left_of_a_later_grant_and_that_one_is_finished() -> None:
    buffer = RangeBuffer()
    buffer.add(grant(1, 4))
    buffer.add(grant(101, 110))
    buffer.add(grant(201, 203))
    block = buffer.take_block(10)
    assert block is not None and (list(block), block.is_contiguous) == (list(range(101, 111)), True)
    assert [each.first for each in buffer.finished] == [101]
    rest = buffer.take_block(7)
    assert rest is not None and list(rest) == [1, 2, 3, 4, 201, 202, 203]
    assert [each.first for each in buffer.finished] == [101, 1, 201]
    assert buffer.left == 0


def test_a_block_after_single_numbers_begins_where_these_ended() -> None:
    buffer = RangeBuffer()
    buffer.add(grant(1, 3))
    buffer.add(grant(11, 13))
    assert buffer.open_next()
    assert [buffer.take() for _ in range(3)] == [1, 2, 3]
    block = buffer.take_block(3)
    assert block is not None and list(block) == [11, 12, 13]
    assert (buffer.issued, buffer.last_issued) == (6, 13)


def test_the_rows_of_one_owner_leave_out_what_the_counter_has_of_others() -> None:
    bench = Bench()
    ann, bob = bench.writer("ann"), bench.writer("bob")
    for writer in (ann, bob, ann, bob):
        writer.reserve(10)
    assert [span(each) for each in bench.book().rows(owner="bob")] == [(11, 20), (31, 40)]
    assert [span(each) for each in bench.book().rows(owner="ann")] == [(1, 10), (21, 30)]
    assert [span(each) for each in bench.book().rows(at_or_after=25)] == [(21, 30), (31, 40)]
    assert list(bench.book().rows(owner="nobody")) == []


def test_a_caller_that_cannot_wait_for_the_buffer_gets_the_error_of_its_own_request() -> None:
    store = MemoryStore()
    ids = UniqueIdGenerator("orders", store, None, config=SequenceConfig(range_size=10, max_range_size=10))
    first = ids.next_id()
    for _ in range(200):
        store.lose_answer(carried_out=False)
    ids.config = SequenceConfig(range_size=10, max_range_size=10, deadline_seconds=0.2)
    with pytest.raises(StorageUnreachable):
        ids._reserve_aside(5)
    assert first == 1
