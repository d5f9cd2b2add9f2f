"""What became of all numbers of a sequence: each in one column, and the columns add up to the counter.

The columns are those of a month's statement. Settled ranges are not read: they are what is left of the granted numbers once those
of open, free, lost and unexplained ranges are taken away, which the index finds without looking at the others.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import msgspec
from django.db.models import F, Sum

from dashboard.live import ledger as ranges
from dashboard.live.ledger import Owners
from dashboard.models import LedgerBook, LedgerRow
from dashboard.sequences.statements import parts_of

MOST_OPEN = 5_000


class BalancePart(NamedTuple):
    """One column, as it is shown."""

    tone: str
    word: str
    numbers: int


class Balance(msgspec.Struct, frozen=True):
    """`issued` + `unused` + `in_use` + `lost` + `unaccounted` = `next` - `start`. `unused` was returned and is free."""

    issued: int
    unused: int
    in_use: int
    lost: int
    unaccounted: int
    start: int
    next: int

    @property
    def numbers(self) -> int:
        return self.next - self.start

    @property
    def parts(self) -> list[BalancePart]:
        """The columns. Numbers that nobody accounts for have one only if there are any."""
        parts = [
            BalancePart("green", "issued", self.issued),
            BalancePart("blue", "free", self.unused),
            BalancePart("grey", "in use", self.in_use),
            BalancePart("red", "lost", self.lost),
        ]
        odd = [BalancePart("amber", "unaccounted for", self.unaccounted)] if self.unaccounted else []
        return parts + odd


def balance(book: LedgerBook, owners: Owners) -> Balance | None:
    """Of all numbers in the index; None if more than `MOST_OPEN` ranges are open or lost."""
    rows = LedgerRow.objects.unsettled().filter(book=book).select_related("owner").order_by("last")
    grants = [ranges.grant_of(row) for row in rows[: MOST_OPEN + 1]]
    if len(grants) > MOST_OPEN:
        return None
    owners = ranges.with_last_words(owners, book.name, grants)
    counts: Counter[str] = Counter()
    for grant in grants:
        counts += parts_of(ranges.judge(book.name, grant, owners, book.read_at), grant.covers_to)
    others = LedgerRow.objects.filter(book=book, owner=None, state="unattributed")
    counts["unaccounted"] += others.aggregate(numbers=Sum(F("last") - F("first") + 1))["numbers"] or 0
    left = sum(counts[kind] for kind in ("unused", "in_use", "lost", "unaccounted"))
    return Balance(
        issued=book.next - book.start - left,
        unused=counts["unused"],
        in_use=counts["in_use"],
        lost=counts["lost"],
        unaccounted=counts["unaccounted"],
        start=book.start,
        next=book.next,
    )
