"""The proof finds every hole and every overlap, and explains what can be explained."""

from __future__ import annotations

import pytest

from coordinator.sequences.grants import FREE, RETURNED, USED, Counter, ExternalAdvance, Grant, Owner
from coordinator.sequences.verify import all_grants, merged, verify

ANN = Owner("ann")


def grant(first: int, last: int, **more: object) -> Grant:
    return Grant(first, last, ANN, f"n{first}", 0.0, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("grants", "advances", "next_number", "gaps", "overlaps", "unattributed"),
    [
        ([], [], 1, [], [], 0),
        ([(1, 10), (11, 20)], [], 21, [], [], 0),
        ([(1, 10), (12, 20)], [], 21, [(11, 11)], [], 0),
        ([(1, 10)], [], 21, [(11, 20)], [], 0),
        ([(3, 10)], [], 11, [(1, 2)], [], 0),
        ([(1, 10), (8, 20)], [], 21, [], [(8, 10)], 0),
        ([(1, 10), (21, 30)], [(11, 20)], 31, [], [], 10),
        ([(1, 10), (21, 30)], [(13, 15)], 31, [(11, 12), (16, 20)], [], 3),
        ([(1, 10), (21, 30)], [(5, 25)], 31, [], [], 10),
        ([(1, 10)], [(11, 15), (14, 40)], 41, [], [], 30),
        ([(1, 10), (1, 10)], [], 11, [], [(1, 10)], 0),
    ],
)
def test_holes_overlaps_and_jumps(
    grants: list[tuple[int, int]],
    advances: list[tuple[int, int]],
    next_number: int,
    gaps: list[tuple[int, int]],
    overlaps: list[tuple[int, int]],
    unattributed: int,
) -> None:
    report = verify(
        "orders",
        [grant(*each) for each in grants],
        [ExternalAdvance(*each) for each in advances],
        start=1,
        next_number=next_number,
    )
    assert (report.gaps, report.overlaps, report.unattributed) == (gaps, overlaps, unattributed)
    assert report.is_ok == (not gaps and not overlaps)


def test_outcomes_are_added_up() -> None:
    grants = [
        grant(1, 10, outcome=USED),
        grant(11, 20, outcome=RETURNED, issued_through=14),
        grant(15, 20, generation=1, outcome=FREE),
        grant(21, 30),
    ]
    report = verify("orders", grants, [], start=1, next_number=31)
    assert (report.used, report.returned, report.open, report.is_ok) == (14, 6, 10, True)


def test_a_hole_behind_a_returned_grant_is_found() -> None:
    grants = [grant(1, 10, outcome=RETURNED, issued_through=4), grant(6, 10, generation=1)]
    assert verify("orders", grants, [], start=1, next_number=11).gaps == [(5, 5)]


def test_a_grant_on_the_blob_and_in_the_ledger_counts_once_as_the_ledger_has_it() -> None:
    counter = Counter(31, "e", (grant(11, 20), grant(21, 30)))
    both = list(all_grants([grant(1, 10), grant(11, 20, outcome=USED)], counter))
    assert [(each.first, each.outcome) for each in both] == [(1, "granted"), (11, "used"), (21, "granted")]


def test_grants_made_after_the_counter_was_read_are_left_out() -> None:
    assert [each.first for each in all_grants([grant(1, 10), grant(11, 20)], Counter(11, "e"))] == [1]


def test_stretches_are_merged() -> None:
    assert merged(
        [
            ExternalAdvance(20, 30),
            ExternalAdvance(1, 5),
            ExternalAdvance(6, 8),
            ExternalAdvance(2, 3),
            ExternalAdvance(25, 40),
        ]
    ) == [
        ExternalAdvance(1, 8),
        ExternalAdvance(20, 40),
    ]
