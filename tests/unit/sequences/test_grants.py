"""What a counter blob says, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.errors import (
    ConfigurationError,
    SequenceCorrupt,
    SequenceError,
    SequenceExhausted,
    SequenceLowered,
    SequenceOverwritten,
)
from coordinator.sequences.grants import (
    FREE,
    GRANTED,
    HIGHEST,
    RETURNED,
    USED,
    Counter,
    ExternalAdvance,
    Grant,
    Owner,
    SequenceConfig,
    lowered_error,
    metadata_bytes,
    note_advance,
    overwritten_error,
    read_counter,
    row_key,
    unused_end_of,
)

ANN = Owner("ann", "höst", 11, 1_700_000_000, "1.0")


def grant(first: int, last: int, **more: object) -> Grant:
    return Grant(first, last, ANN, f"n{first}", 1_700_000_000.125, **more)  # type: ignore[arg-type]


def test_a_counter_reads_back_what_it_wrote() -> None:
    counter = Counter(
        21,
        "e",
        (grant(1, 10), grant(11, 20, step=2)),
        (ExternalAdvance(3, 4),),
        21,
        1,
        ("00000000000000000010-0001",),
        11,
        0.25,
        {"x": "y"},
    )
    assert read_counter("orders", counter.text(), "e", counter.metadata()) == counter


def test_what_release_0_1_wrote_is_understood() -> None:
    metadata = {
        "kennel_next": "121",
        "kennel_grants": '[[1,[10,20,30],1,"ab",0,1.5,1],[31,[40],1,"ab.3",0,1.5],[41,120,1,"cd",0,2.5]]',
        "kennel_owners": '[["ann","host",11,1700000000,"1.0"]]',
        "kennel_start": "1",
        "kennel_tails": "1",
        "kennel_mover": "cd",
        "kennel_since": "1",
    }
    counter = read_counter("orders", "121", "e", metadata)
    assert [(one.first, one.last, one.nonce, one.outcome) for one in counter.grants] == [
        (1, 10, "ab", USED),
        (11, 20, "ab.1", USED),
        (21, 30, "ab.2", USED),
        (31, 40, "ab.3", GRANTED),
        (41, 120, "cd", GRANTED),
    ]
    assert (counter.returned_ranges, counter.others) == ((), {})
    assert read_counter("orders", "121", "e", counter.metadata()) == counter


def test_the_text_is_the_number_and_nothing_else() -> None:
    assert Counter(1234, None).text() == "1234"


def test_metadata_is_ascii_whatever_a_host_is_called() -> None:
    assert all(value.isascii() for value in Counter(11, None, (grant(1, 10),)).metadata().values())


def test_sixty_four_grants_of_thirty_two_owners_fit_the_services_metadata() -> None:
    owners = [
        Owner(f"billing-worker-host-{n}-12345", f"host-{n}", 12345, 1_700_000_000, "1.0.0") for n in range(32)
    ]
    grants = [
        Grant(n * 1000 + 10**9, n * 1000 + 10**9 + 999, owners[n % 32], "0" * 16, 1_700_000_000.123)
        for n in range(64)
    ]
    assert metadata_bytes(Counter(10**9 + 64_000, None, tuple(grants)).metadata()) < 7000


@pytest.mark.parametrize("text", ["41", " 41\n", "\ufeff41", "041"])
def test_a_number_is_read_whatever_surrounds_it(text: str) -> None:
    assert read_counter("orders", text, "e", {}).value == 41


@pytest.mark.parametrize(
    "text", ["", " ", "4 1", "4_1", "+41", "-41", "0x41", "٤١", "4.0", str(HIGHEST + 1), "9" * 30]
)
def test_text_that_is_no_number_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(SequenceCorrupt) as caught:
        read_counter("orders", text, "e", {})
    assert caught.value.found == text


def test_metadata_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(SequenceCorrupt, match="metadata"):
        read_counter("orders", "41", "e", {"kennel_grants": "[[1,2]]"})


def test_a_number_below_its_own_metadata_is_refused() -> None:
    metadata = Counter(21, "e", (grant(11, 20),)).metadata()
    with pytest.raises(SequenceLowered):
        read_counter("orders", "20", "e", metadata)


def test_a_number_above_its_metadata_is_noted_as_a_jump() -> None:
    counter = read_counter("orders", "121", "e", Counter(21, "e", (grant(11, 20),)).metadata())
    assert note_advance(counter, known_next=1).advances == (ExternalAdvance(21, 120),)


def test_a_number_without_metadata_is_a_jump_from_what_is_known() -> None:
    assert note_advance(read_counter("orders", "121", "e", {}), known_next=51).advances == (
        ExternalAdvance(51, 120),
    )
    assert note_advance(read_counter("orders", "51", "e", {}), known_next=51).advances == ()


def test_a_bound_cuts_the_last_range_and_then_exhausts() -> None:
    asked = {"count": 10, "step": 1, "upper_bound": 25, "owner": ANN, "nonce": "n", "at": 0.0}
    last = Counter(21, "e").granting("orders", **asked)  # type: ignore[arg-type]
    assert list(last.numbers) == [21, 22, 23, 24, 25]
    with pytest.raises(SequenceExhausted):
        Counter(26, "e").granting("orders", **asked)  # type: ignore[arg-type]


def test_steps_leave_gaps_between_numbers_but_none_between_grants() -> None:
    first = Counter(5, None).granting("s", count=3, step=10, upper_bound=1000, owner=ANN, nonce="n", at=0.0)
    assert list(first.numbers) == [5, 15, 25]
    assert Counter(5, None).after(first).value == 35


def test_a_returned_grant_answers_only_for_what_was_issued() -> None:
    assert grant(1, 10).settled(RETURNED, 6).covers_to == 6


def test_keys_sort_by_number_then_by_turn() -> None:
    assert (row_key(9), row_key(9, 2)) == ("00000000000000000009", "00000000000000000009-0002")
    keys = [row_key(9), row_key(1000), row_key(1000, 1), row_key(1000, 12), row_key(1001)]
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    "wrong",
    [
        {"range_size": 0},
        {"range_size": 10, "min_range_size": 11},
        {"range_size": 10, "max_range_size": 9},
        {"step": 0},
        {"start": -1},
        {"start": 10, "upper_bound": 9},
        {"upper_bound": HIGHEST + 1},
        {"max_retries": -1},
        {"deadline_seconds": 0.0},
        {"range_seconds": 0.0},
    ],
)
def test_settings_out_of_bounds_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        SequenceConfig(**wrong)  # type: ignore[arg-type]


# --- a grant ------------------------------------------------------------------------------------------------------------


def test_a_grant_from_the_counter_is_the_first_turn_and_in_use() -> None:
    assert grant(1, 10) == Grant(1, 10, ANN, "n1", 1_700_000_000.125, 1, 0, GRANTED, None)
    assert (grant(1, 10).key, grant(1, 10, generation=3).key) == (
        "00000000000000000010",
        "00000000000000000010-0003",
    )
    assert list(grant(5, 24, step=10).numbers) == [5, 15]
    assert list(grant(5, 25, step=10).numbers) == [5, 15, 25]


@pytest.mark.parametrize(
    ("outcome", "issued_through", "covers_to"),
    [(GRANTED, None, 10), (USED, None, 10), (FREE, 6, 10), (RETURNED, None, 10), (RETURNED, 6, 6), (RETURNED, 0, 0)],
)  # fmt: skip
def test_a_grant_answers_for_its_numbers_up_to_what_was_returned(
    outcome: str, issued_through: int | None, covers_to: int
) -> None:
    settled = grant(1, 10).settled(outcome, issued_through)
    assert settled == grant(1, 10, outcome=outcome, issued_through=issued_through)
    assert settled.covers_to == covers_to


def test_what_is_returned_is_free_behind_its_grant() -> None:
    assert unused_end_of(grant(1, 40, step=2, generation=3), 17) == Grant(
        18, 40, ANN, "", 1_700_000_000.125, 2, 4, FREE
    )


# --- a counter ----------------------------------------------------------------------------------------------------------


def test_a_grant_is_found_by_its_nonce() -> None:
    counter = Counter(31, None, (grant(1, 10), grant(11, 20), grant(21, 30)))
    assert [counter.find(nonce) for nonce in ("n1", "n11", "n21", "n2", "")] == [*counter.grants, None, None]


@pytest.mark.parametrize(
    ("value", "count", "step", "upper_bound", "last"),
    [
        (1, 10, 1, 1000, 10),
        (1, 10, 1, 10, 10),
        (1, 10, 1, 9, 9),
        (10, 10, 1, 10, 10),
        (5, 3, 10, 1000, 34),
        (5, 3, 10, 25, 34),
        (5, 3, 10, 24, 24),
        (5, 3, 10, 5, 14),
    ],
)
def test_the_next_grant_begins_at_the_counter_and_ends_at_the_bound(
    value: int, count: int, step: int, upper_bound: int, last: int
) -> None:
    granted = Counter(value, None).granting(
        "orders", count=count, step=step, upper_bound=upper_bound, owner=ANN, nonce="n7", at=2.5
    )
    assert granted == Grant(value, last, ANN, "n7", 2.5, step)


@pytest.mark.parametrize(("value", "step"), [(26, 1), (26, 10), (1000, 10)])
def test_past_the_bound_not_one_number_is_granted(value: int, step: int) -> None:
    with pytest.raises(SequenceExhausted) as caught:
        Counter(value, None).granting(
            "orders", count=1, step=step, upper_bound=25, owner=ANN, nonce="n", at=0.0
        )
    words = f"sequence orders: the next number would be {value}, its upper bound is 25"
    assert (str(caught.value), caught.value.sequence) == (words, "orders")


def test_a_written_grant_moves_the_counter_and_nothing_else() -> None:
    before = Counter(11, "e", (grant(1, 10),), (ExternalAdvance(3, 4),), 11, 1, ("t",), 5, 0.25, {"x": "y"})
    assert before.after(grant(11, 20)) == Counter(
        21,
        "e",
        (grant(1, 10), grant(11, 20)),
        (ExternalAdvance(3, 4),),
        21,
        1,
        ("t",),
        5,
        0.25,
        {"x": "y"},
        "n11",
    )


def test_the_newest_grant_is_known_while_the_counter_is_as_its_writer_left_it() -> None:
    written = Counter(11, "e", (grant(1, 10),), (), 11).after(grant(11, 20))
    read = read_counter("orders", written.text(), "e", written.metadata())
    assert (written.newest, read.newest) == ("n11", "n11")
    moved = read_counter("orders", "30", "e", written.metadata())
    assert moved.newest == "", "another program was there"
    assert replace(written, grants=(grant(1, 10), grant(12, 20))).newest == ""
    assert replace(written, grants=()).newest == ""
    odd = {**written.metadata(), "kennel_head": "n')/x"}
    assert read_counter("orders", "21", "e", odd).newest == ""


BOB = Owner("bob")


@pytest.mark.parametrize(
    ("counter", "metadata"),
    [
        (Counter(1, None), {"kennel_next": "1", "kennel_grants": "[]", "kennel_owners": "[]"}),
        (
            Counter(
                41,
                None,
                (
                    Grant(1, 10, BOB, "a", 1.23456),
                    Grant(11, 20, ANN, "b", 2.0, outcome=USED),
                    Grant(21, 40, BOB, "c", 3.0, 2, outcome=RETURNED),
                ),
            ),
            {
                "kennel_next": "41",
                "kennel_grants": '[[1,10,1,"a",0,1.235],[11,20,1,"b",1,2.0,1],[21,40,2,"c",0,3.0]]',
                "kennel_owners": '[["bob","",0,0,""],["ann","h\\u00f6st",11,1700000000,"1.0"]]',
            },
        ),
        (
            Counter(1, None, advances=(ExternalAdvance(3, 4), ExternalAdvance(7, 9)), start=0, returned_ranges=("a", "b"), since=0, window=0.12345, others={"x": "y"}),
            {
                "x": "y",
                "kennel_next": "1",
                "kennel_grants": "[]",
                "kennel_owners": "[]",
                "kennel_start": "0",
                "kennel_jumps": "[[3,4],[7,9]]",
                "kennel_tails": "a,b",
                "kennel_since": "0",
                "kennel_window": "0.123",
            },
        ),
    ],
)  # fmt: skip
def test_metadata_is_compact_and_leaves_out_what_is_not_there(
    counter: Counter, metadata: dict[str, str]
) -> None:
    assert counter.metadata() == metadata
    assert metadata_bytes(metadata) == sum(len(f"{key}{value}") for key, value in metadata.items())


def test_others_cannot_speak_for_the_counter() -> None:
    assert Counter(7, None, others={"kennel_next": "3"}).metadata()["kennel_next"] == "7"


def test_metadata_is_read_however_its_keys_are_written() -> None:
    written = Counter(
        21, "e", (grant(11, 20),), (ExternalAdvance(3, 4),), 21, 1, ("00000000000000000010-0001",), 11, 0.5
    )
    metadata = {key.title(): value for key, value in written.metadata().items()}
    assert read_counter("orders", "21", "e", {**metadata, "Colour": "red"}) == Counter(
        21, "e", written.grants, written.advances, 21, 1, written.returned_ranges, 11, 0.5, {"Colour": "red"}
    )


def test_a_counter_without_metadata_knows_only_its_number() -> None:
    assert read_counter("orders", "41", None, {}) == Counter(41, None)


def test_since_means_nothing_without_the_next_number() -> None:
    assert read_counter("orders", "41", None, {"kennel_since": "7"}) == Counter(41, None)


def test_tails_that_are_no_keys_are_not_offered() -> None:
    keys = "00000000000000000010-0001,1,00000000000000000010,,00000000000000000010-12345,x"
    counter = read_counter("orders", "41", None, {"kennel_tails": keys})
    assert counter.returned_ranges == ("00000000000000000010-0001", "00000000000000000010-12345")


@pytest.mark.parametrize(
    ("nonce", "nonces"), [("ab", ["ab", "ab.1", "ab.2"]), ("ab.3", ["ab.3", "ab.4", "ab.5"]), ("", ["", ".1", ".2"])]
)  # fmt: skip
def test_the_grants_of_one_write_of_release_0_1_follow_each_other(nonce: str, nonces: list[str]) -> None:
    metadata = {"kennel_grants": f'[[1,[10,20,30],2,"{nonce}",0,1.5]]', "kennel_owners": '[["bob"]]'}
    assert read_counter("orders", "31", None, metadata).grants == tuple(
        Grant(first, first + 9, BOB, name, 1.5, 2) for first, name in zip((1, 11, 21), nonces, strict=True)
    )


REPAIR = "`python -m coordinator ids repair orders` shows"


def refused(text: str = "41", metadata: dict[str, str] | None = None) -> SequenceError:
    with pytest.raises(SequenceError) as caught:
        read_counter("orders", text, "e", metadata or {})
    assert caught.value.sequence == "orders"
    return caught.value


@pytest.mark.parametrize(
    ("text", "quoted"), [("x", "x"), ("x" * 60, "x" * 60), ("x" * 61, "x" * 60 + "…"), (" 4 1 ", " 4 1 ")]
)
def test_text_that_is_no_number_is_quoted_up_to_sixty_characters(text: str, quoted: str) -> None:
    error = refused(text)
    assert isinstance(error, SequenceCorrupt)
    assert error.found == quoted
    assert str(error) == (
        f"sequence orders: the counter holds {quoted!r} instead of a number; no number is issued. "
        f"{REPAIR} what the ledger says it should be"
    )


def test_the_highest_number_is_one() -> None:
    assert read_counter("orders", str(HIGHEST), None, {}).value == HIGHEST


@pytest.mark.parametrize(
    "metadata",
    [
        {"kennel_grants": "[[1,2]]"},
        {"kennel_grants": '[[1,10,1,"n",0,1.5]]'},
        {"kennel_grants": "{}"},
        {"kennel_grants": "{"},
        {"kennel_owners": "[[]]"},
        {"kennel_owners": "[7]"},
        {"kennel_jumps": "[[1]]"},
        {"kennel_jumps": '[["a",2]]'},
        {"kennel_next": "a"},
        {"kennel_start": "a"},
        {"kennel_window": "a"},
        {"kennel_next": "1", "kennel_since": "a"},
    ],
)
def test_metadata_that_cannot_be_read_is_quoted(metadata: dict[str, str]) -> None:
    error = refused(metadata={**metadata, "colour": "red"})
    assert isinstance(error, SequenceCorrupt)
    assert error.found == str(metadata) or error.found == str(dict(reversed(metadata.items())))
    assert str(error).startswith("sequence orders: the metadata of the counter cannot be read (")
    assert str(error).endswith(f"); {REPAIR} what can be done")
    assert isinstance(error.__cause__, ValueError | TypeError | IndexError)


def test_metadata_that_is_no_list_says_so() -> None:
    assert "cannot be read (a list was expected);" in str(refused(metadata={"kennel_grants": "{}"}))


def test_metadata_is_quoted_up_to_two_hundred_characters() -> None:
    error = refused(metadata={"kennel_next": "x" * 500})
    assert isinstance(error, SequenceCorrupt)
    assert error.found == ("{'kennel_next': '" + "x" * 500)[:200]


@pytest.mark.parametrize(
    ("value", "metadata", "least"),
    [
        (20, {"kennel_next": "21"}, 21),
        (21, {"kennel_next": "21"}, None),
        (20, {"kennel_grants": '[[11,20,1,"n",0,1.5]]', "kennel_owners": '[["bob"]]'}, 21),
        (21, {"kennel_grants": '[[11,20,1,"n",0,1.5]]', "kennel_owners": '[["bob"]]'}, None),
        (22, {"kennel_next": "25", "kennel_grants": '[[11,20,1,"n",0,1.5]]', "kennel_owners": '[["bob"]]'}, 25),
        (15, {"kennel_next": "14", "kennel_grants": '[[11,20,1,"n",0,1.5]]', "kennel_owners": '[["bob"]]'}, 21),
        (0, {}, None),
    ],
)  # fmt: skip
def test_a_number_must_not_be_below_what_its_metadata_granted(
    value: int, metadata: dict[str, str], least: int | None
) -> None:
    if least is None:
        assert read_counter("orders", str(value), None, metadata).value == value
        return
    error = refused(str(value), metadata)
    assert isinstance(error, SequenceLowered)
    assert str(error) == (
        f"sequence orders: the counter says {value}, but by its own metadata it must be at least {least}; issuing would "
        "repeat numbers, so none is issued. Either a backup was restored, or another program writes the counter without "
        f"regard to its ETag: stop that program; {REPAIR} how to raise the counter"
    )


def test_errors_of_a_counter_say_which_and_what_to_do() -> None:
    lowered = lowered_error("orders", 5, 9, "the ledger")
    assert (type(lowered), lowered.sequence) == (SequenceLowered, "orders")
    assert "the counter says 5, but by the ledger it must be at least 9;" in str(lowered)
    overwritten = overwritten_error("orders", 5)
    assert (type(overwritten), overwritten.sequence) == (SequenceOverwritten, "orders")
    assert str(overwritten) == (
        "sequence orders: the counter says 5, where the last grant in the ledger ends, but its metadata is gone: another "
        "program wrote the same number without regard to the ETag, and may issue numbers that are granted here, or somebody "
        f"removed the metadata; no number is issued. Stop that program, then {REPAIR} how to go on"
    )


@pytest.mark.parametrize(
    ("value", "noted", "known_next", "advances", "noted_then"),
    [
        (121, 21, 1, (ExternalAdvance(1, 2), ExternalAdvance(21, 120)), 121),
        (22, 21, 1, (ExternalAdvance(1, 2), ExternalAdvance(21, 21)), 22),
        (21, 21, 1, (ExternalAdvance(1, 2),), 21),
        (21, None, 20, (ExternalAdvance(1, 2), ExternalAdvance(20, 20)), 21),
        (21, None, 21, (ExternalAdvance(1, 2),), None),
        (21, None, 22, (ExternalAdvance(1, 2),), None),
    ],
)
def test_a_jump_is_what_nobody_accounts_for(
    value: int,
    noted: int | None,
    known_next: int,
    advances: tuple[ExternalAdvance, ...],
    noted_then: int | None,
) -> None:
    before = Counter(
        value, "e", (grant(1, 10),), (ExternalAdvance(1, 2),), noted, 1, ("t",), 3, 0.5, {"x": "y"}
    )
    assert note_advance(before, known_next=known_next) == Counter(
        value, "e", (grant(1, 10),), advances, noted_then, 1, ("t",), 3, 0.5, {"x": "y"}
    )


# --- settings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, (1000, 1_000_000)),
        ({"range_size": 7}, (7, 7000)),
        ({"range_size": 7, "min_range_size": 3}, (3, 7000)),
        ({"range_size": 7, "max_range_size": 8}, (7, 8)),
        ({"range_size": 1_000_001}, (1_000_001, 10**9)),
        ({"range_size": 10**9, "max_range_size": 10**9}, (10**9, 10**9)),
    ],
)
def test_a_range_adapts_up_to_a_thousand_times(options: dict[str, int], sizes: tuple[int, int]) -> None:
    assert SequenceConfig(**options).sizes == sizes  # type: ignore[arg-type]


SIZES = "1 <= min_range_size <= range_size <= max_range_size"
BOUNDS = f"0 <= start <= upper_bound <= {HIGHEST}"


@pytest.mark.parametrize(
    ("within", "beyond", "rule"),
    [
        ({"range_size": 1}, {"range_size": 0}, SIZES),
        ({"min_range_size": 1}, {"min_range_size": 0}, SIZES),
        ({"min_range_size": 1000}, {"min_range_size": 1001}, SIZES),
        ({"max_range_size": 1000}, {"max_range_size": 999}, SIZES),
        ({"max_range_size": 10**9}, {"max_range_size": 10**9 + 1}, "max_range_size at most 1,000,000,000"),
        ({"range_seconds": 0.05}, {"range_seconds": 0.049}, "range_seconds between 0.05 and 3600"),
        ({"range_seconds": 3600}, {"range_seconds": 3600.1}, "range_seconds between 0.05 and 3600"),
        ({"start": 0}, {"start": -1}, BOUNDS),
        ({"start": 9, "upper_bound": 9}, {"start": 10, "upper_bound": 9}, BOUNDS),
        ({"upper_bound": HIGHEST}, {"upper_bound": HIGHEST + 1}, BOUNDS),
        ({"step": 1}, {"step": 0}, "step between 1 and 1,000,000"),
        ({"step": 10**6}, {"step": 10**6 + 1}, "step between 1 and 1,000,000"),
        ({"max_retries": 0}, {"max_retries": -1}, "max_retries between 0 and 10,000"),
        ({"max_retries": 10_000}, {"max_retries": 10_001}, "max_retries between 0 and 10,000"),
        ({"deadline_seconds": 0.1}, {"deadline_seconds": 0.09}, "deadline_seconds between 0.1 and 3600"),
        ({"deadline_seconds": 3600}, {"deadline_seconds": 3600.1}, "deadline_seconds between 0.1 and 3600"),
    ],
)
def test_settings_may_go_to_their_bounds_and_no_further(
    within: dict[str, int], beyond: dict[str, int], rule: str
) -> None:
    SequenceConfig(**within)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as caught:
        SequenceConfig(**beyond)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"sequence settings need {rule}; got SequenceConfig(")
