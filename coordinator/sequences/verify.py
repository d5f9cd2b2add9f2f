"""Proof that grants cover the numbers of a sequence without gaps or overlaps: every number has exactly one answer. Pure.

Holes are explained by recorded advances (others moved the counter) as unattributed; a hole without one is a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby

from coordinator.sequences.grants import FREE, GRANTED, RETURNED, USED, Counter, ExternalAdvance, Grant

LISTED = 20


@dataclass
class Report:
    """What the proof found, in numbers of the sequence; the lists hold the first 20 of each kind."""

    sequence: str
    start: int
    next: int
    grants: int = 0
    used: int = 0
    returned: int = 0
    open: int = 0
    unattributed: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    overlaps: list[tuple[int, int]] = field(default_factory=list)
    missing: int = 0
    doubled: int = 0

    @property
    def is_ok(self) -> bool:
        return not self.missing and not self.doubled

    @property
    def summary(self) -> str:
        if self.is_ok:
            return f"ok: {self.grants} grants tile {self.start}…{self.next - 1}"
        parts = []
        if self.missing:
            parts.append(f"{self.missing} numbers in no grant ({_spans(self.gaps)})")
        if self.doubled:
            parts.append(f"{self.doubled} numbers in two grants ({_spans(self.overlaps)})")
        return f"sequence {self.sequence}: " + "; ".join(parts)


def all_grants(ledger: Iterable[Grant], counter: Counter) -> Iterator[Grant]:
    """Ledger and blob together, in order of number; what is in both counts once, with the outcome if one of them has it.

    The counter must have been read before the ledger, else a grant may be moved past the reader.
    """
    on_blob = sorted(counter.grants, key=lambda grant: grant.key)
    rows = (grant for grant in ledger if grant.last < counter.value)
    for _, same in groupby(merge(rows, on_blob, key=lambda grant: grant.key), key=lambda grant: grant.key):
        row, *others = same
        yield row if row.outcome != GRANTED else next((g for g in others if g.outcome != GRANTED), row)


def verify(
    sequence: str,
    grants: Iterable[Grant],
    advances: Iterable[ExternalAdvance],
    *,
    start: int,
    next_number: int,
) -> Report:
    """Check that `grants` (in order) tile ``start … next_number - 1``. One pass, constant memory but for the advances."""
    report = Report(sequence, start, next_number)
    explained = merged(advances)
    covered = start
    for grant in grants:
        report.grants += 1
        end = grant.covers_to
        if grant.first > covered:
            _hole(report, explained, covered, grant.first - 1)
        if grant.first < covered and end >= grant.first:
            double = (grant.first, min(covered - 1, end))
            report.doubled += double[1] - double[0] + 1
            if len(report.overlaps) < LISTED:
                report.overlaps.append(double)
        size = (end - grant.first + grant.step) // grant.step if end >= grant.first else 0
        match grant.outcome:
            case outcome if outcome in (USED, RETURNED):
                report.used += size
            case outcome if outcome == FREE:
                report.returned += size
            case outcome if outcome == GRANTED:
                report.open += size
        covered = max(covered, end + 1)
    if covered < next_number:
        _hole(report, explained, covered, next_number - 1)
    return report


def merged(advances: Iterable[ExternalAdvance]) -> list[ExternalAdvance]:
    """The same stretches without overlaps, in order."""
    result: list[ExternalAdvance] = []
    for advance in sorted(advances, key=lambda each: each.last):
        first = advance.first
        while result and result[-1].last >= first - 1:
            first = min(first, result.pop().first)
        result.append(ExternalAdvance(first, advance.last))
    return result


def _hole(report: Report, explained: list[ExternalAdvance], first: int, last: int) -> None:
    place = first
    for advance in explained:
        if advance.last < place or advance.first > last:
            continue
        if advance.first > place:
            _gap(report, place, advance.first - 1)
        end = min(advance.last, last)
        report.unattributed += end - max(place, advance.first) + 1
        place = end + 1
    if place <= last:
        _gap(report, place, last)


def _gap(report: Report, first: int, last: int) -> None:
    report.missing += last - first + 1
    if len(report.gaps) < LISTED:
        report.gaps.append((first, last))


def _spans(spans: list[tuple[int, int]]) -> str:
    return ", ".join(f"{first}…{last}" for first, last in spans[:5]) + (", …" if len(spans) > 5 else "")
