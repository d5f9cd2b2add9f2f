"""Reading a sequence's book: the counter and the ledger as one, by number, owner and time. Blocking; call from threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from coordinator.azure.account import Account
from coordinator.errors import NotFound, SequenceMissing
from coordinator.sequences.azure import BlobCounterStore, TableLedger
from coordinator.sequences.grants import Counter, ExternalAdvance, Grant, lowered_error, read_counter
from coordinator.sequences.repair import Repair, carry_out, plan_repair
from coordinator.sequences.store import Ledger, OptimisticSyncStore
from coordinator.sequences.verify import Report, all_grants, merged, verify
from coordinator.spreadsheets import csv_text

COLUMNS = ("first", "last", "step", "owner", "host", "pid", "started_at", "software", "granted_at", "outcome",
           "issued_through", "nonce")  # fmt: skip


@dataclass(frozen=True)
class GrantPage:
    """Grants in falling order of number; `before` continues (None: that was all)."""

    grants: tuple[Grant, ...]
    before: int | None


class LedgerReader:
    """Counter and ledger of one sequence, for reading. Each method reads storage again; only `repair` writes."""

    def __init__(self, name: str, store: OptimisticSyncStore, ledger: Ledger, *, start: int = 1) -> None:
        self.name, self._store, self._ledger, self._start = name, store, ledger, start

    def counter(self) -> Counter:
        """The counter as it is; `NotFound`, `SequenceCorrupt` or `SequenceLowered` if it cannot be used."""
        snapshot = self._store.get_data()
        return read_counter(self.name, snapshot.data, snapshot.etag, snapshot.metadata)

    def verify(self) -> Report:
        """Prove that ledger and blob cover every number handed out so far once, without gaps or overlaps.

        Raises `SequenceMissing` if there is no counter (and says whether there ever was), `SequenceLowered` if it is below
        the ledger, and what `counter` raises.
        """
        try:
            counter = self.counter()
            below = self._below(counter.value)
            if below > counter.value and (counter := self.counter()).value < below:
                raise lowered_error(self.name, counter.value, below, "the ledger")
        except NotFound as error:
            raise self._missing(self._below(0)) from error
        start = self._start if counter.start is None else counter.start
        advances = [*self._ledger.advances(), *counter.advances]
        if counter.noted is None and counter.value > start:
            advances.append(
                ExternalAdvance(start, counter.value - 1)
            )  # a plain counter: nobody wrote down a thing
        elif counter.noted is not None and counter.noted < counter.value:
            advances.append(ExternalAdvance(counter.noted, counter.value - 1))
        return verify(
            self.name,
            all_grants(self._ledger.rows(), counter),
            advances,
            start=start,
            next_number=counter.value,
        )

    def holder(self, number: int) -> Grant | None:
        """The grant that answers for a number: one request to the ledger, one to the counter if it is not there."""
        for grant in self._ledger.rows(at_or_after=max(0, number), limit=8):
            if grant.first <= number <= grant.covers_to:
                return grant
            if grant.first > number:
                break
        return next((g for g in self._counter_or_new().grants if g.first <= number <= g.covers_to), None)

    def is_unattributed(self, number: int) -> bool:
        """Whether the number lies where others moved the counter."""
        counter = self._counter_or_new()
        return any(
            advance.first <= number <= advance.last
            for advance in merged([*self._ledger.advances(), *counter.advances])
        )

    def rows(self, *, at_or_after: int = 0, owner: str = "") -> Iterator[Grant]:
        """All grants in order of number, in constant memory; of one owner if named."""
        counter = self._counter_or_new()
        for grant in all_grants(self._ledger.rows(at_or_after=max(0, at_or_after), owner=owner), counter):
            if grant.last >= at_or_after and owner in ("", grant.owner.id):
                yield grant

    def page(self, *, before: int | None = None, owner: str = "", limit: int = 50) -> GrantPage:
        """The newest grants first, below number `before`. The table only reads forward, so this looks back in
        windows that double until the page is full: two or three requests, however long the ledger is."""
        counter = self._counter_or_new()
        top = min(before if before is not None else counter.value, counter.value)
        sizes = [grant.last - grant.first + 1 for grant in counter.grants] or [1000]
        window = 2 * limit * max(1, sum(sizes) // len(sizes))
        found: list[Grant] = []
        while True:
            bottom = max(0, top - window)
            rows = self._ledger.rows(at_or_after=bottom, below=top, owner=owner)
            found = [
                g for g in all_grants(rows, counter) if bottom <= g.last < top and owner in ("", g.owner.id)
            ]
            if len(found) > limit or bottom == 0:
                break
            window *= 4
        newest = tuple(reversed(found[-limit:]))
        more = len(found) > limit
        return GrantPage(newest, newest[-1].last if more else None)

    def granted_since(self, moment: float) -> int:
        """The lowest number granted at or after a moment (wall-clock seconds), found by halving: ~20 requests."""
        low, high = 0, self._counter_or_new().value
        while low < high:
            middle = (low + high) // 2
            row = next(self._ledger.rows(at_or_after=middle, limit=1), None)
            if row is None or row.granted_at >= moment:
                high = middle
            else:
                low = row.last + 1
        return low

    def plan_repair(self, *, next_number: int | None = None) -> Repair:
        """What would put the counter right; see `coordinator.sequences.repair`."""
        return plan_repair(self.name, self._store, self._ledger, next_number=next_number)

    def repair(self, plan: Repair) -> None:
        """Carry a plan out; the only method here that writes."""
        carry_out(self.name, self._store, plan)

    def _below(self, value: int) -> int:
        """A number below which the ledger knows grants; above `value` if it knows any there."""
        row = next(self._ledger.rows(at_or_after=value, limit=1), None)
        return max(row.last + 1 if row else 0, self._ledger.head())

    def require(self) -> None:
        """Raise `SequenceMissing` if there is neither a counter nor a grant of that name."""
        try:
            self.counter()
        except NotFound as error:
            if next(self._ledger.rows(limit=1), None) is None:
                raise self._missing(0) from error

    def _missing(self, below: int) -> SequenceMissing:
        found = (
            f"numbers below {below} or more were granted"
            if below
            else "the ledger knows none of that name, either"
        )
        cure = (
            f"`python -m coordinator ids repair {self.name}` shows how to put it back"
            if below
            else "look for a mistyped name or another prefix"
        )
        return SequenceMissing(
            f"sequence {self.name}: there is no counter, and {found}: {cure}", sequence=self.name
        )

    def _counter_or_new(self) -> Counter:
        try:
            return self.counter()
        except NotFound:
            return Counter(self._start, None)


def open_book(storage: Account, name: str, *, container: str = "", blob: str = "") -> LedgerReader:
    """The book of a sequence in a storage account; `container` and `blob` as in `Storage.sequence`."""
    return LedgerReader(
        name, BlobCounterStore(storage, name, container=container, blob=blob), TableLedger(storage, name)
    )


def csv_lines(grants: Iterable[Grant]) -> Iterator[str]:
    """CSV with a heading, a line at a time: constant memory however long the ledger is."""
    yield csv_text([COLUMNS])
    for grant in grants:
        owner = grant.owner
        row = (
            grant.first, grant.last, grant.step, owner.id, owner.host, owner.pid, _moment(owner.started_at), owner.software,
            _moment(grant.granted_at), grant.outcome, "" if grant.issued_through is None else grant.issued_through, grant.nonce,
        )  # fmt: skip
        yield csv_text([row])


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds") if seconds else ""
