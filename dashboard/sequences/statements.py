"""A month of a sequence for an accountant: each number granted in it, once, by what became of it; sealed by the audit.

1. A month has the numbers above the highest that was granted before it, up to the highest that was granted in it: months
   join without gap or overlap. Numbers that were returned and granted again later stay in the month of their first grant.
2. Each number is in one row and in one column of `KINDS`: `numbers` = the sum of the others, and the sum of all rows is the
   next free number at the month's end less that at its beginning.
3. The SHA-256 of the file's lines is put into the audit, whose rows are chained; the last line of the file says which row.
   A later change of the file or the row shows when they are compared, and in `manage.py audit verify`.

A statement says how things were when it was made: what was in use then is used or lost in a later one.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

from django.db.models import Max

from coordinator.spreadsheets import csv_text
from dashboard.core import audit, csv
from dashboard.core.audit import ActionFailed
from dashboard.core.pdf import Sheet
from dashboard.core.permissions import Actor
from dashboard.hub.runtime import current
from dashboard.live import ledger as ranges
from dashboard.live.fleet import GrantView
from dashboard.models import LedgerBook, LedgerRow

KINDS = ("issued", "unused", "in_use", "lost", "unaccounted")
HEAD = ("first", "last", "numbers", *KINDS, "state", "owner", "host", "pid", "granted_at", "software")
MEANS = {
    "issued": "issued by a process that said so",
    "unused": "returned; may still be granted again",
    "in_use": "in a range that is in use, or of which nothing is known",
    "lost": "of a process that crashed, after its last report: issued, or never to be issued",
    "unaccounted": "in no grant: another program moved the counter, or rows are missing",
}
MOST_MONTHS = 24
MOST_ODD = 200


class Month(NamedTuple):
    """A month of the calendar, in UTC."""

    year: int
    month: int

    @classmethod
    def parse(cls, text: str) -> Month:
        """Of `2026-10`; raises `ActionFailed`."""
        try:
            return cls.of(datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).timestamp())
        except (ValueError, OverflowError):
            raise ActionFailed("A month is written as 2026-10.") from None

    @classmethod
    def of(cls, at: float) -> Month:
        """The month of a moment."""
        when = datetime.fromtimestamp(at, UTC)
        return cls(when.year, when.month)

    @property
    def start(self) -> float:
        return datetime(self.year, self.month, 1, tzinfo=UTC).timestamp()

    @property
    def after(self) -> Month:
        return Month(self.year + self.month // 12, self.month % 12 + 1)

    @property
    def before(self) -> Month:
        return Month(self.year - (self.month == 1), (self.month - 2) % 12 + 1)

    @property
    def title(self) -> str:
        return f"{datetime(self.year, self.month, 1, tzinfo=UTC):%B %Y}"

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.month:02d}"


def months(sequence: str) -> list[Month]:
    """The months of which there can be a statement, the newest first."""
    # The book first: for a join by its name, PostgreSQL reads all rows there are.
    book = LedgerBook.objects.filter(name=sequence).values("pk")[:1]
    granted = LedgerRow.objects.filter(book=book, granted_at__isnull=False)
    first = granted.order_by("granted_at").values_list("granted_at", flat=True).first()
    if first is None:
        return []
    found, oldest = [Month.of(time.time())], Month.of(first)
    while found[-1] > oldest and len(found) < MOST_MONTHS:
        found.append(found[-1].before)
    return found


class Seal(NamedTuple):
    """The row of the audit that holds the SHA-256 of a statement."""

    row: int
    digest: str
    sha256: str

    def __str__(self) -> str:
        return f"Sealed by row {self.row} of the audit, whose digest is {self.digest}. SHA-256 of the lines above: {self.sha256}"


class Statement:
    """One statement, made row by row in constant memory: take all `parts`, then `seal` it."""

    def __init__(self, sequence: str, month: Month) -> None:
        """Raises `ActionFailed` if there can be none."""
        book = LedgerBook.objects.filter(name=sequence).first()
        if book is None:
            raise ActionFailed("The ledger has not been read yet. Try again in a few seconds.")
        if book.next < book.counter:
            raise ActionFailed(
                f"The ledger is read up to {book.next:,} of {book.counter:,}. Try again once it is complete."
            )
        self.sequence, self.month, self.book, self.at = sequence, month, book, time.time()
        self.opening = _next_at(book, month.start)
        self.closing = _next_at(book, month.after.start)
        self.days: dict[str, Counter[str]] = {}
        self.total: Counter[str] = Counter()
        self.odd: list[GrantView] = []
        self._sha = hashlib.sha256()

    def parts(self) -> Iterator[str]:
        """The file, a thousand rows at a time."""
        yield self._part([HEAD])
        owners = ranges.owners_of(current().presence, self.sequence)
        rows = ranges.oldest_first(self.book, self.opening, self.closing - 1)
        while chunk := list(islice(rows, ranges.CHUNK)):
            lines: list[tuple[object, ...]] = []
            grants = [ranges.grant_of(row) for row in chunk]
            known = ranges.with_last_words(owners, self.sequence, grants)
            for grant in grants:
                view = ranges.judge(self.sequence, grant, known, self.book.read_at)
                counts = parts_of(view, grant.covers_to)
                if not counts["numbers"]:
                    continue
                self._count(view, counts)
                owner = grant.owner
                lines.append(
                    (view.first, min(view.last, grant.covers_to), counts["numbers"], *(counts[kind] for kind in KINDS),
                     view.state, owner.id, owner.host, owner.pid or None, csv.moment(view.granted_at), owner.software)
                )  # fmt: skip
            yield self._part(lines)

    def _part(self, rows: Iterable[tuple[object, ...]]) -> str:
        text = csv_text(rows)
        self._sha.update(text.encode())
        return text

    def _count(self, view: GrantView, counts: Counter[str]) -> None:
        day = "other program" if view.granted_at is None else _day(view.granted_at)
        self.days.setdefault(day, Counter()).update(counts | Counter(ranges=1))
        self.total += counts
        if (counts["lost"] or counts["unaccounted"]) and len(self.odd) < MOST_ODD:
            self.odd.append(view)

    def seal(self, actor: Actor) -> Seal:
        """Put the digest of what `parts` gave into the audit (3)."""
        sha = self._sha.hexdigest()
        counts = {kind: self.total[kind] for kind in ("numbers", *KINDS)}
        after = {"month": str(self.month), "opening": self.opening, "closing": self.closing, **counts}
        row = audit.noted(
            actor, "sequence.statement", self.sequence, after=json.dumps(after | {"sha256": sha})
        )
        return Seal(row.pk, row.digest, sha)

    def pdf(self, seal: Seal, actor: Actor) -> bytes:
        """The sums of all `parts`, by day, with what is lost, as a document."""
        sheet = Sheet(f"Order numbers of {self.sequence}, {self.month.title}")
        sheet.text(
            f"Made at {_moment(self.at)} by {actor.name}, of the ledger of {self.book.source} as of "
            f"{_moment(self.book.read_at)}. Times are UTC."
        )
        if self.month.after.start > self.at:
            sheet.text("The month is not over: this statement has its numbers up to now.")
        sheet.text(
            f"Next free number when the month began: {self.opening:,}; when it ended: {self.closing:,}. Granted "
            f"in the month: {self.total['numbers']:,} numbers."
        )
        rows = [(kind.replace("_", " "), f"{self.total[kind]:,}", MEANS[kind]) for kind in KINDS]
        width = max(len(row[2]) for row in rows)
        sheet.table(
            ("Numbers", "Count", "Meaning".ljust(width)),
            [
                *((name, count, means.ljust(width)) for name, count, means in rows),
                ("sum", f"{self.total['numbers']:,}", f"= {self.closing:,} - {self.opening:,}".ljust(width)),
            ],
        )
        sheet.heading("By day of the grant")
        sheet.table(
            ("Day", "Ranges", "Numbers", *(kind.replace("_", " ") for kind in KINDS)),
            [
                (day, *(f"{counts[name]:,}" for name in ("ranges", "numbers", *KINDS)))
                for day, counts in sorted(self.days.items())
            ],
        )
        if self.odd:
            sheet.heading("Numbers that are lost or unaccounted for")
            sheet.table(
                ("From", "To", "Count", "State", "Issued up to", "Heartbeat", "Process"),
                [
                    (
                        f"{each.first:,}",
                        f"{each.last:,}",
                        f"{each.last - each.first + 1:,}",
                        each.state,
                        "" if each.last_issued is None else f"{each.last_issued:,}",
                        "" if each.heard_at is None else _moment(each.heard_at),
                        each.owner[:30],
                    )
                    for each in self.odd
                ],
            )
            if len(self.odd) == MOST_ODD:
                sheet.text(f"These are the first {MOST_ODD}. The CSV file has all.")
        sheet.heading("Seal")
        sheet.text(f"The CSV file has a line for each range. SHA-256 of its lines: {seal.sha256}")
        sheet.text(f"Sealed by row {seal.row} of the audit, whose digest is {seal.digest}")
        sheet.text("To check: compare that row on the Audit page, and run: manage.py audit verify")
        return sheet.data()


def parts_of(view: GrantView, covers_to: int) -> Counter[str]:
    """How many numbers the range answers for (`numbers`), and how many of them are of each kind (2)."""
    numbers = max(0, min(view.last, covers_to) - view.first + 1)
    known = 0 if view.last_issued is None else min(numbers, max(0, view.last_issued - view.first + 1))
    match view.state:
        case "used" | "returned":
            counts = {"issued": numbers}
        case "free":
            counts = {"unused": numbers}
        case "in use" | "granted":
            counts = {"issued": known, "in_use": numbers - known}
        case "lost":
            counts = {"issued": known, "lost": numbers - known}
        case _:
            counts = {"unaccounted": numbers}
    return Counter(counts | {"numbers": numbers})


def _next_at(book: LedgerBook, moment: float) -> int:
    """The number after the highest that was granted before a moment (1)."""
    rows = LedgerRow.objects.filter(book=book, granted_at__lt=moment, turn=0)
    highest: int | None = rows.aggregate(highest=Max("last"))["highest"]
    return book.start if highest is None else highest + 1


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"
