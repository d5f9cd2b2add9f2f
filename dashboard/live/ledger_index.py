"""Keeps an index of the ledgers in the dashboard's database, so that pages find a number among millions of rows.

Storage stays the truth. The index is copied span by span: the rows of a span are replaced by those that storage has there,
holes included. New numbers are read on from where the index ends; spans with rows that may still change (in use, free,
missing) are read again in turn. Settled rows are not read twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar, TypeVarTuple

from channels.db import database_sync_to_async
from django.db import DatabaseError, transaction

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import KennelError
from coordinator.sequences.azure import CounterInfo, CounterListing, TableLedger
from coordinator.sequences.grants import Counter, ExternalAdvance, Grant, Owner
from coordinator.sequences.store import Ledger
from coordinator.sequences.verify import all_grants, merged
from coordinator.storage import Storage
from dashboard.models import LedgerBook, LedgerOwner, LedgerRow

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
log = logging.getLogger(__name__)

WATCHED_SECONDS = 3.0
UNWATCHED_SECONDS = 30.0
PAUSE_SECONDS, TICK_SECONDS = 0.2, 0.5
SPAN_ROWS = 999
"""One answer of the service holds 1,000: the row that reports that a span is whole comes with it."""
SPANS_AT_ONCE = 8
NEWEST_ROWS = 800
"""Unsettled rows among so many newest are read again each time, older ones in turn."""


class Hole(NamedTuple):
    """Numbers that are unaccounted for. `state` is "unattributed" if it is known that others moved the counter, else "missing"."""

    first: int
    last: int
    state: str


class LedgerSpan(NamedTuple):
    """Everything storage holds of the numbers from `start` to `end`. `is_last`: nothing was granted above it."""

    start: int
    end: int
    grants: tuple[Grant, ...]
    holes: tuple[Hole, ...]
    is_last: bool


def read_span(ledger: Ledger, counter: Counter, start: int, *, rows: int = SPAN_ROWS) -> LedgerSpan:
    """About `rows` grants from number `start` on, where a range begins. The counter must have been read before.

    One request, or two if there are holes; blocking.
    """
    grants: list[Grant] = []
    is_last = True
    for grant in all_grants(ledger.rows(at_or_after=start), counter):
        if grant.last < start:
            continue
        if len(grants) >= rows and grant.last != grants[-1].last:  # the turns of a range stay together
            is_last = False
            break
        grants.append(grant)
    end = counter.value - 1 if is_last else grants[-1].last
    holes = tuple(_holes(grants, start, end))
    if holes:
        holes = tuple(_explained(holes, _advances(ledger, counter, holes)))
    return LedgerSpan(start, end, tuple(grants), holes, is_last)


def _holes(grants: Iterable[Grant], start: int, end: int) -> Iterator[Hole]:
    covered = start
    for grant in grants:
        if grant.first > covered:
            yield Hole(covered, grant.first - 1, "missing")
        covered = max(covered, grant.covers_to + 1)
    if covered <= end:
        yield Hole(covered, end, "missing")


def _advances(ledger: Ledger, counter: Counter, holes: tuple[Hole, ...]) -> list[ExternalAdvance]:
    first, last = holes[0].first, holes[-1].last
    found = list(counter.advances)
    for advance in ledger.advances(at_or_after=first):
        found.append(advance)
        if advance.first > last:
            break
    noted = counter.start or 1 if counter.noted is None else counter.noted
    if noted < counter.value:  # a writer of the plain scheme was there last
        found.append(ExternalAdvance(noted, counter.value - 1))
    return [advance for advance in merged(found) if advance.last >= first and advance.first <= last]


def _explained(holes: Iterable[Hole], advances: list[ExternalAdvance]) -> Iterator[Hole]:
    for hole in holes:
        place = hole.first
        for advance in advances:
            if advance.last < place or advance.first > hole.last:
                continue
            if advance.first > place:
                yield Hole(place, advance.first - 1, "missing")
            end = min(advance.last, hole.last)
            yield Hole(max(place, advance.first), end, "unattributed")
            place = end + 1
        if place <= hole.last:
            yield Hole(place, hole.last, "missing")


def write_span(book_id: int, span: LedgerSpan) -> None:
    """Put a span in the place of whatever the index had there, in one transaction."""
    owners = _owners({grant.owner for grant in span.grants})
    rows = [
        LedgerRow(
            book_id=book_id, first=g.first, last=g.last, turn=g.generation, step=g.step, owner_id=owners[g.owner],
            granted_at=g.granted_at or None, state=g.outcome, issued_through=g.issued_through,
        )
        for g in span.grants
    ]  # fmt: skip
    rows += [LedgerRow(book_id=book_id, first=h.first, last=h.last, state=h.state) for h in span.holes]
    with transaction.atomic():
        book = LedgerBook.objects.select_for_update().get(pk=book_id)
        if (
            span.start > book.next
        ):  # the index was cleared meanwhile: this would leave a gap that nobody closes
            return
        LedgerRow.objects.filter(book_id=book_id, last__gte=span.start, last__lte=span.end).delete()
        LedgerRow.objects.bulk_create(rows)
        book.next = max(book.next, span.end + 1)
        book.save(update_fields=["next"])


def _owners(wanted: set[Owner]) -> dict[Owner, int]:
    """The keys of owners, made where missing."""
    made = [
        LedgerOwner(name=o.id, host=o.host, pid=o.pid, started_at=o.started_at, software=o.software)
        for o in wanted
    ]
    LedgerOwner.objects.bulk_create(made, ignore_conflicts=True)
    rows = LedgerOwner.objects.filter(name__in={o.id for o in wanted})
    known = {Owner(r.name, r.host, r.pid, r.started_at, r.software): r.pk for r in rows}
    return {owner: known[owner] for owner in wanted}


def book_of(name: str, source: str, counter: Counter) -> LedgerBook:
    """The book of a sequence, empty if it was of another account, or if the counter is below what was indexed."""
    start = 1 if counter.start is None else counter.start
    book, _ = LedgerBook.objects.get_or_create(
        name=name, defaults={"source": source, "start": start, "next": start}
    )
    if book.source != source or (counter.value < book.next and book.next > start):
        clear(book, source, start)
    return book


def clear(book: LedgerBook, source: str, start: int) -> None:
    """Forget what was indexed; it is read again from storage."""
    with transaction.atomic():
        LedgerRow.objects.filter(book=book).delete()
        book.source, book.start, book.next, book.swept = source, start, start, 0
        book.save()


def beginning(book: LedgerBook) -> int:
    """From where to read on: where the index ends, or at the first of the newest rows that may have changed."""
    rows = LedgerRow.objects.filter(book=book)
    newest = rows.order_by("-last", "-turn").values_list("last", flat=True)
    edge = newest[NEWEST_ROWS : NEWEST_ROWS + 1].first() or 0
    row = rows.unsettled().filter(last__gt=edge).order_by("last", "turn").first()
    return book.next if row is None else min(row.first, book.next)


def next_to_sweep(book: LedgerBook, below: int) -> int | None:
    """The beginning of the next older span that may have changed; they are taken in turn."""
    # Ordered as the index of these rows is: with the turn, the database would look at every row below.
    rows = LedgerRow.objects.unsettled().filter(book=book, last__lt=below).order_by("last")
    lasts = rows.values_list("last", flat=True)
    last = lasts.filter(last__gte=book.swept).first()
    if last is None:
        last = lasts.first()
    return None if last is None else min(rows.filter(last=last).values_list("first", flat=True))


def _known() -> dict[str, int]:
    return dict(LedgerBook.objects.values_list("name", "next"))


def _note(book: LedgerBook, counter: int, swept: int, read_at: float | None) -> None:
    level = {} if read_at is None else {"read_at": read_at}
    LedgerBook.objects.filter(pk=book.pk).update(counter=counter, swept=swept, **level)


class LedgerIndex:
    """Copies the ledgers of one account. `step` is one look at all of them. To be run by one process at a time;
    two at once do twice the work and no harm."""

    def __init__(
        self, storage: Storage, *, clock: Clock = SYSTEM_CLOCK, watched: Callable[[], bool] = lambda: True
    ) -> None:
        self.storage, self.clock, self.watched = storage, clock, watched
        self._counters = CounterListing(storage)
        self.source = f"{storage.endpoints.account}/{storage.config.prefix}"

    async def run(self) -> None:
        """Keep the index fresh until cancelled."""
        while True:
            behind = False
            try:
                behind = await self.step()
            except (KennelError, DatabaseError) as error:
                log.info("The index of the ledger waits: %s", error)
            except Exception:
                # Without it pages would fall behind for ever.
                log.exception("The index of the ledger failed; trying again")
            await self._rest(behind)

    async def _rest(self, behind: bool) -> None:
        """Wait for the next look; short as soon as somebody watches."""
        began = self.clock.monotonic()
        await self.clock.sleep(PAUSE_SECONDS)
        while not behind:
            pause = WATCHED_SECONDS if self.watched() else UNWATCHED_SECONDS
            if self.clock.monotonic() - began >= pause:
                return
            await self.clock.sleep(TICK_SECONDS)

    async def step(self) -> bool:
        """Look at every sequence once; True if some is not read to its end yet."""
        # Before the counters: a counter read later can only be lower if it was lowered.
        known = await _in_thread(_known)
        behind = False
        for info in await self._counters.read():
            if info.counter is None:
                continue
            try:
                if info.counter.value >= known.get(info.name, 0):
                    behind |= await self._read(info, info.counter)
                else:
                    book = await _in_thread(book_of, info.name, self.source, info.counter)
                    behind |= book.next <= info.counter.value
            except (KennelError, DatabaseError) as error:
                log.info("The index of the ledger of %s waits: %s", info.name, error)
            except Exception:
                # What is odd in one ledger must not stop the index of the others.
                log.exception("The index of the ledger of %s failed", info.name)
        return behind

    async def _read(self, info: CounterInfo, counter: Counter) -> bool:
        read_at = time.time()
        ledger = TableLedger(self.storage, info.name)
        book = await _in_thread(book_of, info.name, self.source, counter)
        start = edge = await _in_thread(beginning, book)
        is_last = start >= counter.value
        for _ in range(SPANS_AT_ONCE):
            if is_last:
                break
            start, is_last = await self._copy(book, ledger, counter, start)
        swept = book.swept
        old = await _in_thread(next_to_sweep, book, edge)
        if old is not None:
            swept, _ = await self._copy(book, ledger, counter, old)
        await _in_thread(_note, book, counter.value, swept, read_at if is_last else None)
        return not is_last

    async def _copy(self, book: LedgerBook, ledger: Ledger, counter: Counter, start: int) -> tuple[int, bool]:
        span = await asyncio.to_thread(read_span, ledger, counter, start)
        await _in_thread(write_span, book.pk, span)
        return span.end + 1, span.is_last


async def _in_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Run what asks the database in a thread of its own, so that nobody waits for a long copy."""
    result: T = await database_sync_to_async(function, thread_sensitive=False)(*args)
    return result
