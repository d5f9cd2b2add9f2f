"""Ranges of numbers and what became of them: from the index of the ledger and what workers say. Reads only."""

from __future__ import annotations

import heapq
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
from django.db import DatabaseError
from django.db.models import QuerySet

from coordinator.realtime.protocol import SequenceStatus
from coordinator.sequences.grants import FREE, GRANTED, RETURNED, USED, Grant, Owner
from dashboard.live.fleet import GrantView
from dashboard.live.presence import LATE_SECONDS, Presence
from dashboard.models import LastIssued, LedgerBook, LedgerOwner, LedgerRow

log = logging.getLogger(__name__)

_STATES = {USED: "used", RETURNED: "returned", FREE: "free"}
FEW_OWNERS = 20
CHUNK = 1000
AT_ONCE = 500


class NumberAnswer(msgspec.Struct, frozen=True):
    """Who has a number, as far as is known. `kind` is the state of its grant, or "unattributed", "missing" (unaccounted for,
    although later ones were given), "future" (not granted yet), "before" (below the sequence's start) or "unread" (the
    index has not come to it)."""

    kind: str
    grant: GrantView | None = None
    host: str = ""
    pid: int = 0


class LedgerPage(msgspec.Struct, frozen=True):
    """Rows of a ledger, newest first. `next` continues (as `before`); `problem` says why rows are missing.

    All below `indexed` is in the index, which was synced with storage at `read_at` (None: never yet), when `counter` was
    the next free number. `hour` and `day` are how many numbers were granted in the last hour and day (None: unknown).
    """

    rows: tuple[GrantView, ...]
    next: int | None = None
    problem: str = ""
    start: int = 1
    indexed: int = 1
    counter: int = 1
    read_at: float | None = None
    hour: int | None = None
    day: int | None = None
    answer: NumberAnswer | None = None

    @property
    def is_behind(self) -> bool:
        return self.indexed < self.counter


class LastWord(NamedTuple):
    """Up to which number a process said that it had issued, in its last heartbeat, and when (wall clock)."""

    last_issued: int
    at: float


class Owners(NamedTuple):
    """Which processes take numbers of a sequence: those alive (with what they say of it), and whether any is known.

    `gone` has when those that ended were last heard of (wall clock), `heard` what those that fell silent said last, by name,
    process id and first number of the range.
    """

    alive: Mapping[tuple[str, int], SequenceStatus]
    somebody: bool
    gone: Mapping[tuple[str, int], float] = {}
    heard: Mapping[tuple[str, int, int], LastWord] = {}


class Account(NamedTuple):
    """A ledger in the index, and who takes its numbers: read once for all that a page says of it."""

    book: LedgerBook
    owners: Owners


def account_of(presence: Presence, sequence: str) -> Account | None:
    """None if the index has nothing of the sequence yet. Blocking."""
    book = LedgerBook.objects.filter(name=sequence).first()
    return None if book is None else Account(book, owners_of(presence, sequence))


_NOTHING_TAKEN = SequenceStatus("none")


def owners_of(presence: Presence, sequence: str) -> Owners:
    """The processes that presence knows to be alive, by name and process id."""
    return owners_of_each(presence, (sequence,))[sequence]


def owners_of_each(presence: Presence, sequences: Iterable[str]) -> dict[str, Owners]:
    """The same for several sequences: each worker is looked at once, however many sequences there are."""
    limit = presence.clock.monotonic() - LATE_SECONDS
    somebody, gone = bool(presence.entries), presence.gone()
    everybody: dict[tuple[str, int], SequenceStatus] = {}
    own: dict[str, dict[tuple[str, int], SequenceStatus]] = defaultdict(dict)
    heard: dict[str, dict[tuple[str, int, int], LastWord]] = defaultdict(dict)
    for entry in list(presence.entries.values()):
        hello, said = entry.hello, entry.state.sequences
        if entry.seen >= limit:
            process = hello.worker, hello.pid
            everybody[process] = _NOTHING_TAKEN
            # The first of several of one name counts.
            for status in said[::-1]:
                own[status.name][process] = status
        else:
            at = presence.clock.time() - (presence.clock.monotonic() - entry.seen)
            for status in said:
                heard[status.name][hello.worker, hello.pid, status.first] = LastWord(status.last_issued, at)
    return {
        name: Owners(
            everybody | own[name] if name in own else everybody, somebody, gone, heard.get(name) or {}
        )
        for name in sequences
    }


def with_last_words(owners: Owners, sequence: str, grants: Iterable[Grant]) -> Owners:
    """With what the lost processes among the owners of these grants said last. Blocking."""
    firsts = [
        grant.first
        for grant in grants
        if grant.outcome == GRANTED and (grant.owner.id, grant.owner.pid) not in owners.alive
    ]
    kept: dict[tuple[str, int, int], LastWord] = {}
    for start in range(0, len(firsts), AT_ONCE):
        rows = LastIssued.objects.filter(sequence=sequence, first__in=firsts[start : start + AT_ONCE])
        for row in rows:
            kept[row.owner, row.pid, row.first] = LastWord(row.last_issued, row.at)
    return owners._replace(heard=kept | dict(owners.heard)) if kept else owners


def judge(sequence: str, grant: Grant, owners: Owners, read_at: float | None) -> GrantView:
    """What became of a grant, by the ledger as it was at `read_at` (None: the ledger was not asked).

    A process that ended without settling its grant lost what it had not issued. Only the ledger can say so, and only
    as it was after the end: what a stopping process returns is written there.
    """
    state, last_issued, heard_at = _STATES.get(grant.outcome), grant.issued_through, None
    if grant.outcome == GRANTED:
        status = owners.alive.get((grant.owner.id, grant.owner.pid))
        if status is not None:
            state = "used" if status.first > grant.last else "in use"
            if status.first == grant.first and status.last_issued <= grant.last:
                last_issued = status.last_issued or None
        else:
            # Without a single worker on the socket nothing can be said of those that only poll.
            ended = owners.gone.get((grant.owner.id, grant.owner.pid), 0.0)
            state = "lost" if owners.somebody and read_at is not None and read_at > ended else "granted"
            word = owners.heard.get((grant.owner.id, grant.owner.pid, grant.first))
            if state == "lost" and word is not None and grant.first <= word.last_issued <= grant.last:
                last_issued, heard_at = word
    return GrantView(
        sequence=sequence,
        first=grant.first,
        last=grant.last,
        owner=grant.owner.id,
        granted_at=grant.granted_at or None,
        state=state or grant.outcome,
        last_issued=last_issued,
        heard_at=heard_at,
    )


def page(
    account: Account | None,
    *,
    before: int | None = None,
    number: int | None = None,
    owner: str = "",
    limit: int = 50,
    now: float = 0.0,
) -> LedgerPage:
    """One page of the index, newest first; with `number` the rows that hold it, and who has it. Blocking."""
    if account is None:
        return LedgerPage((), problem="unread")
    (book, owners), sequence = account, account.book.name
    answer, more = None, False
    if number is not None:
        rows = _holding(book, number)
        answer = _answer(book, number, rows, owners)
        if owner:
            rows = [row for row in rows if row.owner and owner.lower() in row.owner.name.lower()]
    else:
        rows = list(islice(newest_first(book, before=before, owner=owner, chunk=limit + 1), limit + 1))
        more = len(rows) > limit
        if more:
            # The turns of one range stay together: the cursor is its last number.
            rows = [
                *rows[:limit],
                *(row for row in _turns(book, rows[limit - 1].last) if row not in rows[:limit]),
            ]
    grants = [grant_of(row) for row in rows]
    owners = with_last_words(owners, sequence, grants)
    views = tuple(judge(sequence, grant, owners, book.read_at) for grant in grants)
    return LedgerPage(
        views,
        views[-1].last if more else None,
        start=book.start,
        indexed=book.next,
        counter=book.counter,
        read_at=book.read_at or None,
        hour=granted_since(book, now - 3600),
        day=granted_since(book, now - 86400),
        answer=answer,
    )


def settle(
    grants: Mapping[str, Sequence[Grant]], owners: Mapping[str, Owners]
) -> dict[str, tuple[GrantView, ...]]:
    """What became of the newest grants of each sequence, as its counter has them, newest first. Blocking.

    The counter does not learn what becomes of a grant afterwards. The index of the ledger is asked about each that its owner
    does not have now, and has the returned end as a range of its own.
    """
    asked = {
        (name, grant.last)
        for name, newest in grants.items()
        for grant in newest
        if _may_be_over(grant, owners[name])
    }
    rows: dict[tuple[str, int], list[tuple[Grant, float | None]]] = defaultdict(list)
    try:
        for row in _rows_at(asked):
            if (row.book.name, row.last) in asked:
                rows[row.book.name, row.last].append((grant_of(row), row.book.read_at))
    except DatabaseError as error:
        log.info("What became of the newest ranges is not known: %s", error)
    return {
        name: tuple(
            judge(name, turn, owners[name], read_at)
            for grant in newest
            for turn, read_at in rows.get((name, grant.last), [(grant, None)])
        )
        for name, newest in grants.items()
    }


def unsettled(
    grants: Mapping[str, Sequence[Grant]], owners: Mapping[str, Owners]
) -> dict[str, tuple[GrantView, ...]]:
    """The same without the index of the ledger: nothing is called lost."""
    return {
        name: tuple(judge(name, grant, owners[name], None) for grant in newest)
        for name, newest in grants.items()
    }


def _may_be_over(grant: Grant, owners: Owners) -> bool:
    status = owners.alive.get((grant.owner.id, grant.owner.pid))
    return grant.outcome == GRANTED and (status is None or status.first != grant.first)


def _rows_at(places: Collection[tuple[str, int]]) -> QuerySet[LedgerRow]:
    """The rows of these ranges and of some others, by (sequence, last number); the newest turn first."""
    names, lasts = {name for name, _ in places}, {last for _, last in places}
    rows = LedgerRow.objects.filter(book__name__in=names, last__in=lasts, owner__isnull=False)
    return rows.select_related("owner", "book").order_by("-turn")


def _turns(book: LedgerBook, last: int) -> list[LedgerRow]:
    """All rows of one range, the newest turn first."""
    rows = LedgerRow.objects.filter(book=book, last=last).select_related("owner")
    return list(rows.order_by("-turn"))


def _holding(book: LedgerBook, number: int) -> list[LedgerRow]:
    """The rows that hold a number: its range, and what was granted again of it. The first is the one that answers."""
    near = (
        LedgerRow.objects.filter(book=book, last__gte=number).order_by("last").values_list("last", flat=True)
    )
    last = near.first()
    return [] if last is None else [row for row in _turns(book, last) if row.first <= number]


def _answer(book: LedgerBook, number: int, rows: list[LedgerRow], owners: Owners) -> NumberAnswer:
    if rows:
        grant = grant_of(rows[0])
        view = judge(book.name, grant, with_last_words(owners, book.name, [grant]), book.read_at)
        return NumberAnswer(view.state, view, grant.owner.host, grant.owner.pid)
    if number < book.start:
        return NumberAnswer("before")
    if number >= book.counter:
        return NumberAnswer("future")
    return NumberAnswer("unread")


def newest_first(
    book: LedgerBook, *, before: int | None = None, owner: str = "", chunk: int = CHUNK
) -> Iterator[LedgerRow]:
    """All rows below a number, of owners whose name contains a text: read in chunks, in constant memory."""
    rows = LedgerRow.objects.filter(book=book).select_related("owner")
    if before is not None:
        rows = rows.filter(last__lt=before)
    if not owner:
        return _chunks(rows, chunk)
    matching = LedgerOwner.objects.filter(name__icontains=owner)
    few = list(matching.values_list("pk", flat=True)[: FEW_OWNERS + 1])
    if len(few) > FEW_OWNERS:
        return _chunks(rows.filter(owner__in=matching), chunk)
    each = [_chunks(rows.filter(owner=key), chunk) for key in few]
    return heapq.merge(*each, key=lambda row: (row.last, row.turn), reverse=True)


def oldest_first(book: LedgerBook, low: int, high: int, *, chunk: int = CHUNK) -> Iterator[LedgerRow]:
    """All rows of ranges that end from `low` to `high`, by number: read in chunks, in constant memory."""
    rows = (
        LedgerRow.objects.filter(book=book, last__lte=high).select_related("owner").order_by("last", "turn")
    )
    part = list(rows.filter(last__gte=low)[:chunk])
    while part:
        yield from part
        end = part[-1]
        part = list(rows.filter(last__gte=end.last).exclude(last=end.last, turn__lte=end.turn)[:chunk])


def _chunks(rows: QuerySet[LedgerRow], chunk: int) -> Iterator[LedgerRow]:
    ordered = rows.order_by("-last", "-turn")
    part = list(ordered[:chunk])
    while part:
        yield from part
        if len(part) < chunk:
            return
        end = part[-1]
        part = list(ordered.filter(last__lte=end.last).exclude(last=end.last, turn__gte=end.turn)[:chunk])


def granted_since(book: LedgerBook, moment: float) -> int | None:
    """How many numbers were granted since a moment, others' among them included; None while not all is read."""
    if book.next <= book.start or book.next < book.counter:
        return None
    rows = LedgerRow.objects.filter(book=book, granted_at__gte=moment, turn=0).order_by("granted_at")
    first = rows.values_list("first", flat=True).first()
    return 0 if first is None else book.next - first


def grant_of(row: LedgerRow) -> Grant:
    """The grant as the ledger had it; nobody's for a hole."""
    owner = row.owner
    whose = Owner(owner.name, owner.host, owner.pid, owner.started_at, owner.software) if owner else Owner("")
    return Grant(
        row.first,
        row.last,
        whose,
        "",
        row.granted_at or 0.0,
        row.step,
        row.turn,
        row.state,
        row.issued_through,
    )
