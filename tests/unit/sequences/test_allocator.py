"""Grants under lost answers, lost races and dead writers: a scripted store, no waiting."""

from __future__ import annotations

import pytest

from coordinator.errors import (
    SequenceContended,
    SequenceExhausted,
    SequenceLowered,
    SequenceMissing,
    StorageUnreachable,
)
from coordinator.sequences.allocator import METADATA_LIMIT, RANGES_A_WRITE, SETTLE_AFTER
from coordinator.sequences.grants import GRANTED, USED, metadata_bytes
from tests.unit.sequences.bench import Bench, span


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_lone_writer_reads_once_and_then_only_writes(bench: Bench) -> None:
    ann = bench.writer("ann")
    assert span(ann.reserve(10)) == (1, 10)
    bench.store.get_data = None  # type: ignore[method-assign, assignment]
    assert [span(ann.reserve(10)) for _ in range(3)] == [(11, 20), (21, 30), (31, 40)]


def test_a_write_on_a_value_that_another_changed_is_tried_again_on_the_new_value(bench: Bench) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")
    assert span(ann.reserve(10)) == (1, 10)
    assert span(bob.reserve(10)) == (11, 20)
    assert span(ann.reserve(10)) == (21, 30)
    assert ann.conflicts == 1


def test_a_write_whose_answer_was_lost_is_recognised_and_not_repeated(bench: Bench) -> None:
    ann = bench.writer("ann")
    ann.reserve(10)
    bench.store.lose_answer(carried_out=True)
    assert span(ann.reserve(10)) == (11, 20)
    assert bench.store.get_data().data == "21"


def test_a_write_that_was_not_carried_out_is_repeated(bench: Bench) -> None:
    ann = bench.writer("ann")
    ann.reserve(10)
    bench.store.lose_answer(carried_out=False)
    assert span(ann.reserve(10)) == (11, 20)
    assert bench.store.get_data().data == "21"


def test_numbers_of_an_unconfirmed_write_are_never_issued(bench: Bench) -> None:
    ann, bob = bench.writer("ann", deadline_seconds=0.1), bench.writer("bob")
    ann.reserve(10)
    for _ in range(20):
        bench.store.lose_answer(carried_out=False)
    with pytest.raises(StorageUnreachable):
        ann.reserve(10)
    bench.store._failures.clear()
    assert span(bob.reserve(10)) == (11, 20)
    assert span(ann.reserve(10)) == (21, 30)


def test_a_write_that_won_after_its_writer_gave_up_is_its_next_grant(bench: Bench) -> None:
    ann, bob = bench.writer("ann", deadline_seconds=0.1), bench.writer("bob")
    ann.reserve(10)
    bench.store.lose_answer(carried_out=True)
    bench.clock._now += 1
    original = bench.store.get_data

    def unreachable() -> None:
        raise StorageUnreachable("down")

    bench.store.get_data = unreachable  # type: ignore[method-assign, assignment]
    with pytest.raises(StorageUnreachable):
        ann.reserve(10)
    bench.store.get_data = original  # type: ignore[method-assign]
    assert span(bob.reserve(10)) == (21, 30)
    assert span(ann.reserve(10)) == (11, 20)


def test_a_write_that_won_is_found_in_the_ledger_when_others_moved_it_there(bench: Bench) -> None:
    ann, bob = bench.writer("ann", deadline_seconds=0.1), bench.writer("bob")
    ann.reserve(10)
    original = bench.store.get_data
    bench.store.lose_answer(carried_out=True)

    def meanwhile() -> object:
        bench.store.get_data = original  # type: ignore[method-assign]
        for _ in range(150):
            bob.used(bob.reserve(10))
            bob.tidy()
        assert original().metadata["kennel_grants"].find("ann") < 0
        return original()

    bench.store.get_data = meanwhile  # type: ignore[method-assign, assignment]
    assert span(ann.reserve(10)) == (11, 20)


def test_a_later_write_is_found_in_the_ledger_although_another_won_where_the_earlier_one_was_tried(
    bench: Bench,
) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")

    def bob_is_first() -> None:
        bob.reserve(10)
        bob.tidy(all_of_it=True)
        bob.reserve(10)

    ann.reserve(10)
    bench.store.lose_answer(carried_out=False)
    bench.meanwhile = [lambda: (bob_is_first(), bench.store.lose_answer(carried_out=True)), bob_is_first]
    assert span(ann.reserve(10)) == (31, 40)
    assert bench.store.get_data().data == "61"
    assert bench.book().verify().is_ok


def test_too_many_lost_races_end_in_an_error_with_figures(bench: Bench) -> None:
    ann, bob = bench.writer("ann", max_retries=3), bench.writer("bob", max_retries=1000)
    ann.reserve(10)
    original = bench.store.try_optimistic_write

    def always_late(data: str, *, etag: str | None, metadata: dict[str, str]) -> str | None:
        bench.store.try_optimistic_write = original  # type: ignore[method-assign]
        bob.reserve(10)
        bench.store.try_optimistic_write = always_late  # type: ignore[method-assign, assignment]
        return original(data, etag=etag, metadata=metadata)

    bench.store.try_optimistic_write = always_late  # type: ignore[method-assign, assignment]
    with pytest.raises(SequenceContended) as caught:
        ann.reserve(10)
    assert caught.value.tries == 4
    assert caught.value.elapsed_seconds > 0
    assert "orders" in str(caught.value)


def test_several_ranges_wanted_at_once_are_granted_by_one_write_and_each_has_its_row(bench: Bench) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")
    ann.reserve(10)
    writes = []
    original = bench.store.try_optimistic_write
    bench.store.try_optimistic_write = lambda *a, **k: writes.append(1) or original(*a, **k)  # type: ignore[method-assign, func-returns-value]
    taken = ann.reserve_ranges(10, 5)
    assert len(writes) == 1
    assert [span(grant) for grant in taken] == [(11, 20), (21, 30), (31, 40), (41, 50), (51, 60)]
    assert len({grant.nonce for grant in taken}) == 5
    assert len(ann.reserve_ranges(10, 1000)) == RANGES_A_WRITE
    assert span(bob.reserve(10)) == (181, 190)
    ann.tidy(all_of_it=True)
    assert [span(row) for row in bench.ledger.rows()][:6] == [(1, 10), *map(span, taken)]
    assert bench.book().verify().is_ok


def test_several_ranges_end_at_the_upper_bound(bench: Bench) -> None:
    ann = bench.writer("ann", upper_bound=25)
    assert [span(grant) for grant in ann.reserve_ranges(10, 5)] == [(1, 10), (11, 20), (21, 25)]


@pytest.mark.parametrize("moved", [False, True], ids=["on the counter", "in the ledger"])
def test_several_ranges_whose_answer_was_lost_are_all_found_again(bench: Bench, moved: bool) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")
    ann.reserve(10)
    original = bench.store.get_data

    def bob_comes_first() -> object:
        bench.store.get_data = original  # type: ignore[method-assign]
        if moved:
            bob.reserve(10)
            bob.tidy(all_of_it=True)
            bob.reserve(10)
        return original()

    bench.store.lose_answer(carried_out=True)
    bench.store.get_data = bob_comes_first  # type: ignore[method-assign, assignment]
    assert [span(grant) for grant in ann.reserve_ranges(10, 3)] == [(11, 20), (21, 30), (31, 40)]
    assert bench.book().verify().is_ok


def test_that_a_range_is_used_is_noted_with_the_next_write_and_reaches_the_ledger_by_whoever_moves_it(
    bench: Bench,
) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")
    ann.used(ann.reserve(10))
    ann.reserve(10)
    assert [grant.outcome for grant in bench.book().counter().grants] == [USED, GRANTED]
    del ann
    bob.reserve(10)
    bob.tidy(all_of_it=True)
    assert [row.outcome for row in bench.ledger.rows()] == [USED, GRANTED, GRANTED]


def test_a_note_made_after_another_has_moved_the_range_still_reaches_the_ledger(bench: Bench) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")
    first = ann.reserve(10)
    bob.reserve(10)
    bob.tidy(all_of_it=True)  # the ledger has the first range now, as granted; the counter still shows it
    ann.used(first)
    ann.reserve(10)
    bob.reserve(10)
    bob.tidy(all_of_it=True)
    bob.reserve(10)
    assert next(iter(bench.ledger.rows())).outcome == USED


def test_a_note_that_a_foreign_writer_wiped_is_told_to_the_ledger_by_its_owner(bench: Bench) -> None:
    ann = bench.writer("ann")
    ann.used(ann.reserve(10))
    ann.reserve(10)
    data = bench.store.get_data()
    bench.store.try_optimistic_write(str(int(data.data) + 5), etag=data.etag, metadata={})
    ann.reserve(10)
    ann.tidy()
    report = bench.book().verify()
    assert (report.is_ok, report.used, report.unattributed) == (True, 10, 5)


def test_grants_are_moved_before_they_leave_the_blob_even_if_their_owners_are_dead(bench: Bench) -> None:
    spans = []
    for number in range(300):
        writer = bench.writer(f"w{number % 20}")
        spans.append(span(writer.reserve(10)))
        writer.tidy()
    assert [span(row) for row in bench.book().rows()] == spans
    assert metadata_bytes(bench.book().counter().metadata()) < METADATA_LIMIT


def test_metadata_never_outgrows_the_service(bench: Bench) -> None:
    for number in range(300):
        bench.writer("a-rather-long-worker-name-on-a-rather-long-host-name-" * 2 + str(number)).reserve(10)
        metadata = bench.store.get_data().metadata
        assert sum(len(key) + len(value) for key, value in metadata.items()) < 8192
    assert bench.book().verify().is_ok


@pytest.mark.parametrize("deadline", [0.2, 30.0])
def test_a_writer_that_died_on_duty_is_not_waited_for_longer_than_there_is_time(
    bench: Bench, deadline: float
) -> None:
    dead = bench.writer("dead")
    dead.reserve(10)
    while metadata_bytes(bench.book().counter().metadata()) < METADATA_LIMIT - 60:
        dead.reserve(10)
    assert bench.book().counter().mover
    assert bench.writer("ann-on-a-host-with-a-name", deadline_seconds=deadline).reserve(10)
    assert next(bench.ledger.rows()).owner.id == "dead"
    assert bench.book().verify().is_ok


def test_finished_ranges_are_settled_in_batches(bench: Bench) -> None:
    ann = bench.writer("ann")
    for _ in range(SETTLE_AFTER + 1):
        ann.used(ann.reserve(10))
        ann.tidy()
    assert bench.book().verify().used >= SETTLE_AFTER * 10


def test_a_counter_that_vanished_under_a_writer_is_an_error(bench: Bench) -> None:
    ann = bench.writer("ann")
    ann.reserve(10)
    bench.store.delete()
    with pytest.raises(SequenceMissing):
        ann.reserve(10)


def test_a_counter_that_was_lowered_under_a_writer_is_an_error(bench: Bench) -> None:
    ann = bench.writer("ann")
    ann.reserve(10)
    bench.store.overwrite("5")
    with pytest.raises(SequenceLowered):
        ann.reserve(10)


def test_a_grant_made_while_a_newcomer_looks_is_no_lowered_counter(bench: Bench) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")
    ann.reserve(10)
    original = bench.ledger.rows

    def meanwhile(**options: object) -> object:
        bench.ledger.rows = original  # type: ignore[method-assign]
        bob.used(bob.reserve(10))
        bob.tidy(all_of_it=True)
        return original(**options)  # type: ignore[arg-type]

    bob._checked = True
    bench.ledger.rows = meanwhile  # type: ignore[method-assign, assignment]
    assert span(bench.writer("cleo").reserve(10)) == (21, 30)


def test_the_upper_bound_is_the_end(bench: Bench) -> None:
    ann = bench.writer("ann", upper_bound=15)
    assert span(ann.reserve(10)) == (1, 10)
    assert span(ann.reserve(10)) == (11, 15)
    with pytest.raises(SequenceExhausted):
        ann.reserve(10)


def test_returned_numbers_are_found_by_whoever_writes_next_and_the_hint_goes_with_the_last(
    bench: Bench,
) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")
    bob.reserve(10)
    grant = ann.reserve(10)
    ann.give_back([(grant, 14)])
    assert span(bob.reserve(10)) == (15, 20)
    assert span(bob.reserve(10)) == (21, 30)
    assert not bench.book().counter().tails
