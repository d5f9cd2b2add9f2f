"""What a counter blob says, and what is refused."""

from __future__ import annotations

import pytest

from coordinator.errors import ConfigurationError, SequenceCorrupt, SequenceExhausted, SequenceLowered
from coordinator.sequences.grants import (
    GRANTED,
    HIGHEST,
    RETURNED,
    USED,
    Counter,
    Grant,
    Jump,
    Owner,
    SequenceConfig,
    metadata_bytes,
    note_jump,
    read_counter,
    row_key,
)

ANN = Owner("ann", "höst", 11, 1_700_000_000, "1.0")


def grant(first: int, last: int, **more: object) -> Grant:
    return Grant(first, last, ANN, f"n{first}", 1_700_000_000.125, **more)  # type: ignore[arg-type]


def test_a_counter_reads_back_what_it_wrote() -> None:
    counter = Counter(
        21,
        "e",
        (grant(1, 10), grant(11, 20, step=2)),
        (Jump(3, 4),),
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
    assert (counter.tails, counter.others) == ((), {})
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
    assert note_jump(counter, known_next=1).jumps == (Jump(21, 120),)


def test_a_number_without_metadata_is_a_jump_from_what_is_known() -> None:
    assert note_jump(read_counter("orders", "121", "e", {}), known_next=51).jumps == (Jump(51, 120),)
    assert note_jump(read_counter("orders", "51", "e", {}), known_next=51).jumps == ()


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
