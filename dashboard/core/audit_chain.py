"""The chain of the audit: what makes it whole, whether its rows come from the database or from an export.

Guarantees that a row which was changed, removed, repeated or added is named, that a chain starts at #1 or right behind the
row that its newest row of a removal names, and that it ends where its keeper says it ends. Does not find a chain that was
written again from some row on, with its end: only a head that was kept elsewhere does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from django.db import OperationalError

from dashboard.core.audit import FIELDS, HAS_OUTCOME, ActionFailed, digest, head
from dashboard.models import AuditOutcome, AuditRow

LINKS = ("previous", "digest")
PRUNE = "audit.prune"
DONE = "done"
NOWHERE = (0, "")


class ChainFault(NamedTuple):
    """What a walk found: at which row, and what."""

    row: int
    what: str


class Damaged(NamedTuple):
    """Stands for a row that cannot be read as one. `row` is its number, None if that is unknown, too."""

    row: int | None
    what: str


def removed(after: object) -> tuple[int, str]:
    """The last row that a removal took, and its digest, by the text of its outcome; 0 and "" if it names none."""
    try:
        fields = json.loads(after) if isinstance(after, str) else {}
        return int(fields["last"]), str(fields["digest"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return NOWHERE  # somebody changed it: its row is named, and the start is not attested


class Chain:
    """One walk along the rows: `faults` yields what is wrong; afterwards the fields say what was seen.

    `end` is asked after the last row which row is the last, and its digest; None if nobody wrote that down. `head` is a row that
    was once the end, kept elsewhere.
    """

    def __init__(
        self, end: Callable[[], tuple[int, str] | None], *, head: tuple[int, str] | None = None
    ) -> None:
        self.end = end
        self.head = head
        self.count = 0
        self.first = 0
        self.last = NOWHERE
        self.pruned = NOWHERE
        self._holds_head = False

    @property
    def head_was_pruned(self) -> bool:
        """Whether the head is of a row that retention removed: then nothing can be said about it."""
        return self.head is not None and self.head[0] < self.pruned[0]

    def faults(self, rows: Iterable[dict[str, Any] | Damaged]) -> Iterator[ChainFault]:
        """Walk the rows, the oldest first. The walk goes on after a damaged row, unless its number is unknown."""
        start, before = "", None
        for row in rows:
            if isinstance(row, Damaged) and row.row is None:
                yield ChainFault(self.last[0] + 1, row.what)
                return
            number, previous = (row.row, "") if isinstance(row, Damaged) else (row["id"], row["previous"])
            assert number is not None
            if not self.count:
                self.first, start = number, previous
            elif number != self.last[0] + 1:
                yield _missing(self.last[0], number)
                before = None
            if isinstance(row, Damaged):
                yield ChainFault(number, row.what)
                self.count, self.last, before = self.count + 1, (number, ""), None
                continue
            if before is not None and previous != before:
                yield ChainFault(number, f"#{number} does not follow from the row before it")
            if not _as_written(row):
                yield ChainFault(number, f"#{number} was changed after it was written")
            if row["action"] == PRUNE and row["outcome"] == DONE:
                self.pruned = removed(row["after"])
            before = row["digest"]
            self.count, self.last = self.count + 1, (number, before)
            self._holds_head = self._holds_head or self.last == self.head
        yield from self._start(start)
        yield from self._end()

    def _start(self, previous: str) -> Iterator[ChainFault]:
        if not self.count:
            yield ChainFault(0, "the audit holds no row: it is that of a new installation, or was emptied")
            return
        behind, digest = self.pruned if self.first == self.pruned[0] + 1 else NOWHERE
        if self.first != behind + 1:
            missing = f"#{self.pruned[0] + 1} to #{self.first - 1} are missing"
            yield ChainFault(self.first, f"the chain starts at #{self.first}; {missing}")
        elif previous != digest:
            yield ChainFault(self.first, f"#{self.first} does not follow from the row before it")

    def _end(self) -> Iterator[ChainFault]:
        end = self.end()
        if end is not None and end != self.last:
            ends = f"the chain ends at #{self.last[0]}"
            yield ChainFault(end[0], f"{ends}, but #{end[0]} was the last written")
        if end is None and self.head != self.last:
            what = "nothing shows whether rows followed: the end was cut off, or an older version wrote the export"
            yield ChainFault(self.last[0], f"{what}; it is proven if --head names #{self.last[0]}")
        if self.head is None or self._holds_head or self.head_was_pruned or self.head == self.pruned:
            return
        yield ChainFault(0, f"the chain does not hold the row #{self.head[0]} that was once its end")


def _missing(last: int, number: int) -> ChainFault:
    if number <= last:
        return ChainFault(number, f"#{number} comes after #{last}")
    return ChainFault(last + 1, f"#{last + 1} to #{number - 1} are missing")


def _as_written(row: dict[str, Any]) -> bool:
    try:
        written: object = row["digest"]
        return digest(row, row["previous"]) == written
    except (TypeError, ValueError, RecursionError):  # a value of a kind that was never written
        return False


class Export:
    """The lines of an export, made or read: a row a line, and a last line that says where the chain ends.

    `end` is what that last line says, once `rows` has come to it; None if there is none.
    """

    def __init__(self) -> None:
        self.end: tuple[int, str] | None = None

    @staticmethod
    def lines(rows: Iterable[dict[str, Any]], end: tuple[int, str]) -> Iterator[str]:
        """The lines to write."""
        for row in rows:
            yield json.dumps(row)
        yield json.dumps({"end": end[0], "digest": end[1]})

    def rows(self, lines: Iterable[str]) -> Iterator[dict[str, Any] | Damaged]:
        """The rows that were written; a line that `lines` never writes is damage."""
        for number, line in enumerate(lines, 1):
            try:
                fields = json.loads(line, object_pairs_hook=_without_repetition)
            except (ValueError, RecursionError):
                fields = None
            if self.end is not None:
                yield Damaged(None, f"line {number} comes after the end of the export")
            elif _is_end(fields):
                self.end = (fields["end"], fields["digest"])
            elif _is_row(fields):
                yield fields
            else:
                yield Damaged(
                    None, f"line {number} is not a row of the audit; what follows it was not verified"
                )


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name comes twice")
    return fields


def _is_row(fields: object) -> bool:
    return isinstance(fields, dict) and fields.keys() == {*FIELDS, *LINKS} and type(fields["id"]) is int


def _is_end(fields: Any) -> bool:
    return isinstance(fields, dict) and fields.keys() == {"end", "digest"} and type(fields["end"]) is int


UNREADABLE = "UTF-8"
"""In what SQLite says of a text that is none."""


def pruned() -> tuple[int, str]:
    """The last row that retention removed, and its digest, as the chain itself attests; 0 and "" if none was."""
    rows = AuditRow.objects.filter(action=PRUNE, outcome=AuditOutcome.DONE).order_by("-pk")
    try:
        return removed(rows.values_list("after", flat=True).first())
    except OperationalError as error:
        if UNREADABLE not in str(error):
            raise
        return NOWHERE  # somebody changed it: `verify` names the row


def verify(chain: Chain | None = None) -> Iterator[ChainFault]:
    """Walk the whole chain and report every fault. It may start at #1, or where a row of the chain says that it was pruned.

    A chain without any row proves nothing: that is a fault, too. `chain` is the walk, if its caller wants to know what it saw.
    """
    yield from (chain or Chain(head)).faults(_stored())
    hidden = AuditRow.objects.filter(~HAS_OUTCOME, outcome=AuditOutcome.INTENT, closed=True).order_by("pk")
    for number in hidden.values_list("pk", flat=True):
        yield ChainFault(number, f"#{number} is marked as over, and no row reports its outcome")


def _stored() -> Iterator[dict[str, Any] | Damaged]:
    """Every row, the oldest first. One that cannot be read does not hide the others."""
    rest = AuditRow.objects.order_by("id")
    while True:
        try:
            for row in rest.iterator(2000):
                yield _whole(row)
                rest = AuditRow.objects.filter(pk__gt=row.pk).order_by("id")
            return
        except OperationalError as error:
            if UNREADABLE not in str(error):
                raise
        # The database gives none of those that it read together with a text that is none: one by one up to that.
        for number in rest.values_list("pk", flat=True).iterator(2000):
            rest = AuditRow.objects.filter(pk__gt=number).order_by("id")
            try:
                yield _whole(AuditRow.objects.get(pk=number))
            except OperationalError:
                yield Damaged(number, f"#{number} was changed after it was written: it cannot be read")
                break


def _whole(row: AuditRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in (*FIELDS, *LINKS)}


def rows(through: int) -> Iterator[dict[str, Any]]:
    """Every row up to that one, the oldest first, with its digest and the one before.

    Raises `ActionFailed` at a row that can only have been changed by somebody else.
    """
    for row in _stored():
        if isinstance(row, Damaged):
            raise ActionFailed(row.what)
        if row["id"] > through:
            return
        if any(isinstance(value, bytes) for value in row.values()):
            raise ActionFailed(f"#{row['id']} was changed after it was written: it holds bytes")
        yield row
