"""Grants under lost answers, lost races and dead writers: a scripted store, no waiting."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from coordinator.errors import (
    SequenceContended,
    SequenceExhausted,
    SequenceLowered,
    SequenceMissing,
    SequenceOverwritten,
    StorageUnreachable,
)
from coordinator.sequences.allocator import SETTLE_AFTER, RangeAllocator
from coordinator.sequences.grants import GRANTED, RETURNED, USED, Grant, metadata_bytes
from coordinator.sequences.pacing import ContentionBackoff
from tests.unit.sequences.bench import Bench, span


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_lone_writer_reads_once_and_then_only_writes(bench: Bench) -> None:
    ann = bench.writer("ann")
    assert span(ann.reserve(10)) == (1, 10)
    bench.store.get_data = None  # type: ignore[method-assign, assignment]
    bench.ledger.rows = None  # type: ignore[method-assign, assignment]
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


def test_the_upper_bound_is_the_end(bench: Bench) -> None:
    ann = bench.writer("ann", upper_bound=15)
    assert span(ann.reserve(10)) == (1, 10)
    assert span(ann.reserve(10)) == (11, 15)
    with pytest.raises(SequenceExhausted):
        ann.reserve(10)


def test_a_write_that_won_is_found_in_the_ledger_when_others_wrote_it_there(bench: Bench) -> None:
    ann, bob = bench.writer("ann", deadline_seconds=0.1), bench.writer("bob")
    ann.reserve(10)
    original = bench.store.get_data
    bench.store.lose_answer(carried_out=True)

    def meanwhile() -> object:
        bench.store.get_data = original  # type: ignore[method-assign]
        for _ in range(4):
            bob.reserve(10)
        assert original().metadata["kennel_grants"].find("ann") < 0
        return original()

    bench.store.get_data = meanwhile  # type: ignore[method-assign, assignment]
    assert span(ann.reserve(10)) == (11, 20)
    assert bench.book().verify().is_ok


def test_a_later_write_is_found_in_the_ledger_although_another_won_where_the_earlier_one_was_tried(
    bench: Bench,
) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")

    def bob_is_first() -> None:
        for _ in range(3):
            bob.reserve(10)

    def bob_is_first_and_an_answer_is_lost() -> None:
        bob_is_first()
        bench.store.lose_answer(carried_out=True)

    ann.reserve(10)
    bench.store.lose_answer(carried_out=False)
    bench.meanwhile = [bob_is_first_and_an_answer_is_lost, bob_is_first]
    assert span(ann.reserve(10)) == (41, 50)
    assert bench.store.get_data().data == "81"
    assert bench.book().verify().is_ok


def test_a_grant_is_in_the_ledger_before_a_number_of_it_is_issued(bench: Bench) -> None:
    for name in "ann", "bob", "ann":
        granted = bench.writer(name).reserve(10)
        assert bench.ledger.row(granted.key) == granted
    assert bench.ledger.head() == 31


def test_a_grant_that_the_ledger_does_not_take_is_kept_and_entered_by_the_next_call(bench: Bench) -> None:
    ann = bench.writer("ann")
    ann.reserve(10)
    enter = bench.ledger.enter

    def down(*_: object, **__: object) -> str:
        raise StorageUnreachable("down", maybe_done=True)

    bench.ledger.enter = down  # type: ignore[method-assign]
    with pytest.raises(StorageUnreachable):
        ann.reserve(10)
    bench.ledger.enter = enter  # type: ignore[method-assign]
    assert span(ann.reserve(10)) == (11, 20)
    assert bench.store.get_data().data == "21"


def test_an_entry_whose_answer_was_lost_is_recognised(bench: Bench) -> None:
    ann = bench.writer("ann")
    ann.reserve(10)
    enter = bench.ledger.enter

    def lost(*args: object, **more: object) -> str:
        bench.ledger.enter = enter  # type: ignore[method-assign]
        enter(*args, **more)  # type: ignore[arg-type]
        raise StorageUnreachable("no answer", maybe_done=True)

    bench.ledger.enter = lost  # type: ignore[method-assign]
    assert span(ann.reserve(10)) == (11, 20)
    assert span(ann.reserve(10)) == (21, 30)
    assert bench.book().verify().is_ok


def killed_before_its_entry(bench: Bench, writer: RangeAllocator) -> None:
    """The writer wins a write of the counter, and dies."""
    enter = bench.ledger.enter

    def die(grants: list[Grant], **more: Any) -> bool:
        if grants[-1].owner == writer._owner():
            raise KeyboardInterrupt
        return enter(grants, **more)

    bench.ledger.enter = die  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        writer.reserve(10)
    bench.ledger.enter = enter  # type: ignore[method-assign]


def test_beside_others_a_range_takes_a_read_a_write_and_an_entry(bench: Bench) -> None:
    writers = [bench.writer(name) for name in ("ann", "bob", "cleo")]
    for writer in writers * 2:
        writer.reserve(10)
    bench.ledger.state = None  # type: ignore[method-assign, assignment]
    bench.ledger.rows = None  # type: ignore[method-assign, assignment]
    for writer in writers * 3:
        writer.reserve(10)
    assert bench.book().counter().value == 151


def test_an_entry_that_another_overtook_was_made_by_that_one(bench: Bench) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")
    ann.reserve(10)
    bob.reserve(10)
    enter, later = bench.ledger.enter, []

    def late(*args: Any, **more: Any) -> bool:
        bench.ledger.enter = enter  # type: ignore[method-assign]
        later.append(span(bob.reserve(10)))
        assert not enter(*args, **more)
        return False

    bench.ledger.enter = late  # type: ignore[method-assign]
    assert span(ann.reserve(10)) == (21, 30)
    assert later == [(31, 40)]
    assert [(row.owner.id, row.outcome) for row in bench.ledger.rows()] == [
        (name, GRANTED) for name in ("ann", "bob", "ann", "bob")
    ]


@pytest.mark.parametrize("size", [10, 25])
def test_a_counter_from_before_a_grant_that_was_never_entered_repeats_nothing_that_came_after_it(
    bench: Bench, size: int
) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")
    bob.reserve(10)
    ann.reserve(10)
    older = bench.store.get_data()
    killed_before_its_entry(bench, bench.writer("dead"))
    assert span(ann.reserve(10)) == (31, 40)
    bench.store.overwrite(older.data, older.metadata)
    with pytest.raises(SequenceLowered, match="the ledger"):
        bob.reserve(size)
    bench.book().repair(bench.book().plan_repair())
    assert bench.book().verify().is_ok


def test_a_ledger_and_a_counter_put_back_beside_newer_rows_repeat_nothing(bench: Bench) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")
    bob.reserve(10)
    older, heads = bench.store.get_data(), dict(bench.ledger._heads)
    ann.reserve(10)
    bench.store.overwrite(older.data, older.metadata)
    bench.ledger._heads |= heads
    bench.clock._now += 3600  # it was away when all that was done
    with pytest.raises(SequenceLowered, match="the ledger"):
        bob.reserve(25)


def test_a_grant_whose_owner_died_before_he_entered_it_is_entered_by_another(bench: Bench) -> None:
    bob = bench.writer("bob")
    bob.reserve(10)
    killed_before_its_entry(bench, bench.writer("dead"))
    assert bench.book().verify().is_ok, "the counter says whose it is"
    for _ in range(3):
        bob.reserve(10)
    assert [(row.owner.id, row.outcome) for row in bench.ledger.rows()][1] == ("dead", GRANTED)
    assert [grant.owner.id for grant in bench.book().counter().grants] == ["bob"]


def test_grants_that_only_the_counter_knows_never_outgrow_its_metadata(bench: Bench) -> None:
    for number in range(200):
        name = "a-rather-long-worker-name-on-a-rather-long-host-name-" * 2 + str(number)
        killed_before_its_entry(bench, bench.writer(name))
        assert metadata_bytes(bench.store.get_data().metadata) < 8192
    assert bench.book().verify().is_ok
    assert bench.book().verify().grants == 200


def test_the_counter_keeps_only_what_may_not_be_in_the_ledger(bench: Bench) -> None:
    writers = [bench.writer(name) for name in "abcdefgh"]
    for _ in range(5):
        for writer in writers:
            writer.reserve(10)
    assert len(bench.book().counter().grants) <= len(writers) + 1
    assert bench.book().verify().is_ok


def test_used_ranges_are_settled_with_the_next_grant_of_a_lone_writer_and_in_batches_beside_others(
    bench: Bench,
) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")
    ann.used(ann.reserve(10))
    ann.reserve(10)
    assert [row.outcome for row in bench.ledger.rows()] == [USED, GRANTED]
    for _ in range(SETTLE_AFTER + 1):
        bob.reserve(10)
        ann.used(ann.reserve(10))
    assert bench.book().verify().used >= SETTLE_AFTER * 10


def test_returned_numbers_are_granted_first_if_counter_and_ledger_offer_them(bench: Bench) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")
    bob.reserve(10)
    granted = ann.reserve(10)
    assert ann.give_back([(granted, 14)]) == [granted]
    assert span(bob.reserve(10)) == (15, 20)
    assert span(bob.reserve(10)) == (21, 30)
    assert not bench.book().counter().returned_ranges


@pytest.mark.parametrize("carried_out", [True, False])
def test_an_offer_whose_answer_was_lost_is_made_all_the_same(bench: Bench, carried_out: bool) -> None:
    ann = bench.writer("ann")
    granted = ann.reserve(10)
    bench.store.lose_answer(carried_out=carried_out)
    assert ann.give_back([(granted, 4)]) == [granted]
    assert span(bench.writer("bob").reserve(10)) == (5, 10)


def test_numbers_that_were_returned_and_taken_are_not_granted_again_by_an_older_row(bench: Bench) -> None:
    ann = bench.writer("ann")
    granted = ann.reserve(10)
    ann.give_back([(granted, 4)])
    free = bench.ledger.row(f"{granted.key}-0001")
    assert free is not None
    assert span(bench.writer("bob").reserve(10)) == (5, 10)
    bench.ledger._rows[free.key] = free  # restored from a backup
    assert span(bench.writer("cleo").reserve(10)) == (11, 20)


def test_numbers_that_were_returned_and_taken_are_not_granted_again_by_an_older_counter(bench: Bench) -> None:
    ann = bench.writer("ann")
    granted = ann.reserve(10)
    ann.give_back([(granted, 4)])
    backup = bench.store.get_data()
    assert span(bench.writer("bob").reserve(10)) == (5, 10)
    bench.store.overwrite(backup.data, backup.metadata)
    assert span(bench.writer("cleo").reserve(10)) == (11, 20)


# --- a counter that went backwards ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lone", [True, False])
@pytest.mark.parametrize("number", [5, 11, 21, 25])
def test_a_counter_lowered_between_a_grant_and_its_entry_repeats_no_number(
    bench: Bench, number: int, lone: bool
) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")
    given = [ann.reserve(10), ann.reserve(10)]
    if not lone:
        given.append(bob.reserve(10))
        given.append(ann.reserve(10))
    enter = bench.ledger.enter

    def meanwhile(*args: object, **more: object) -> str:
        bench.ledger.enter = enter  # type: ignore[method-assign]
        bench.store.overwrite(str(number), {"kennel_next": str(number)})
        with contextlib.suppress(SequenceLowered):
            given.append(bench.writer("cleo").reserve(7))
        return enter(*args, **more)  # type: ignore[arg-type]

    bench.ledger.enter = meanwhile  # type: ignore[method-assign]
    with contextlib.suppress(SequenceLowered):
        given.append(ann.reserve(10))
    numbers = [number for grant in given for number in grant.numbers]
    assert len(numbers) == len(set(numbers))


def test_an_older_version_of_the_counter_is_refused_although_its_metadata_agrees(bench: Bench) -> None:
    ann = bench.writer("ann")
    ann.reserve(10)
    older = bench.store.get_data()
    ann.reserve(10)
    bench.store.overwrite(older.data, older.metadata)
    for name in "bob", "cleo":
        with pytest.raises(SequenceLowered, match="the ledger"):
            bench.writer(name).reserve(10)
    with pytest.raises(SequenceLowered, match="own grants"):
        ann.reserve(10)
    bench.book().repair(bench.book().plan_repair())
    assert span(ann.reserve(10)) == (21, 30)
    assert bench.book().verify().is_ok


def test_numbers_that_were_refused_to_a_writer_are_settled_so_that_the_ledger_still_tiles(
    bench: Bench,
) -> None:
    ann, bob = bench.writer("ann"), bench.writer("bob")
    bob.reserve(5)
    older = bench.store.get_data()
    ann.reserve(10)
    bench.store.overwrite(older.data, older.metadata)
    with pytest.raises(SequenceLowered):
        bob.reserve(25)
    bench.book().repair(bench.book().plan_repair())
    assert bench.writer("cleo").reserve(5).first == 31
    report = bench.book().verify()
    assert report.is_ok, report.summary
    assert RETURNED in {row.outcome for row in bench.ledger.rows()}


@pytest.mark.parametrize("alive", [True, False])
def test_a_writer_that_ignores_etags_is_found_at_the_next_write_and_named(bench: Bench, alive: bool) -> None:
    ann = bench.writer("ann")
    ann.reserve(10)
    bench.store.overwrite("11")  # it read 1 and took ten numbers, as ann did
    with pytest.raises(SequenceOverwritten, match="without regard to the ETag") as caught:
        (ann if alive else bench.writer("bob")).reserve(10)
    assert "ids repair orders" in str(caught.value)
    bench.book().repair(bench.book().plan_repair())
    assert span(ann.reserve(10)) == (11, 20)


def test_a_deleted_counter_and_ledger_are_still_known_by_the_head(bench: Bench) -> None:
    bench.writer("ann").reserve(10)
    bench.store.delete()
    bench.ledger.forget()
    with pytest.raises(SequenceMissing):
        bench.writer("bob").reserve(10)
    assert bench.book().plan_repair().next_number == 11


def test_a_ledger_whose_rows_are_gone_repeats_no_number(bench: Bench) -> None:
    ann = bench.writer("ann")
    first = span(ann.reserve(10))
    bench.ledger.forget()
    bench.ledger.forget(head=True)
    assert [first, span(ann.reserve(10)), span(bench.writer("bob").reserve(10))] == [
        (1, 10),
        (11, 20),
        (21, 30),
    ]


def test_a_new_process_starts_although_others_write_all_the_time() -> None:
    """Between each of its looks at counter and ledger another has written."""
    bench = Bench()
    other, new = bench.writer("other"), bench.writer("new", max_retries=0)
    other.reserve(10)
    rows, is_busy = bench.ledger.rows, False

    def meanwhile(**where: Any) -> Any:
        nonlocal is_busy
        if not is_busy:
            is_busy = True
            other.reserve(10)
            is_busy = False
        return rows(**where)

    bench.ledger.rows = meanwhile  # type: ignore[method-assign]
    with pytest.raises(SequenceContended):
        new.reserve(10)  # its write has lost, and nothing is wrong
    bench.ledger.rows = rows  # type: ignore[method-assign]
    assert span(new.reserve(10)) == (21, 30)


class Courteous(ContentionBackoff):
    def before_try(self, now: float) -> float:
        return 4.0

    def lost(self, window: float, times: int = 1) -> float:
        return 2.0


def test_the_time_for_which_a_writer_stays_away_for_others_is_not_spent_on_trying() -> None:
    bench = Bench()
    writer = bench.writer("new", deadline_seconds=5.0)
    writer.reserve(10)
    writer._pace = Courteous()
    write, lost = bench.store.try_optimistic_write, 0

    def lose_twice(*what: Any, **more: Any) -> str | None:
        nonlocal lost
        lost += 1
        return None if lost <= 2 else write(*what, **more)

    bench.store.try_optimistic_write = lose_twice  # type: ignore[method-assign]
    assert span(writer.reserve(10)) == (11, 20)
    assert lost == 3
