"""Every read that pages make. Returns frozen values; blocking functions for threads."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
from django.utils import timezone

from coordinator.sequences.grants import Owner
from dashboard.audit import log as trail
from dashboard.audit import search as audit_search
from dashboard.core.runtime import current
from dashboard.gates import plans
from dashboard.gates.plans import Plan
from dashboard.hub.allowance import Allowance, decode
from dashboard.live import history as past
from dashboard.live.fleet import Fleet, GrantView, Point
from dashboard.models import AuditRow, LedgerBook, Outcome, Scope, WorkerToken
from dashboard.sequences import ledger as ranges
from dashboard.sequences.ledger import LedgerPage


class AuditView(msgspec.Struct, frozen=True):
    """A line of the audit."""

    id: int
    at: float
    actor: str
    address: str
    action: str
    target: str
    before: str
    after: str
    reason: str
    outcome: str
    request_id: str


class AuditPage(msgspec.Struct, frozen=True):
    """Rows of the audit, newest first. `next` continues (as `before`)."""

    rows: tuple[AuditView, ...]
    next: int | None = None


def fleet() -> Fleet:
    """The newest of everything, from memory. Asking keeps the sampler at its quick pace for a few seconds."""
    runtime = current()
    runtime.looked = runtime.clock.monotonic()
    return runtime.board.fleet()


def opening(gate: str, *, at: float | None, until: float | None, share: float) -> Plan:
    """What an opening of that gate would do now."""
    return plans.plan(glance(), gate, at=at, until=until, share=share, now=time.time())


def glance() -> Fleet:
    """The same for machines that ask all the time: leaves the sampler at its pace."""
    return current().board.fleet()


def history(series: str, seconds: float) -> list[Point]:
    """A series over the last `seconds`, oldest first; a point with value None is a gap."""
    until = time.time()
    points = past.read(series, until - seconds, until)
    resolution = past.level_for(seconds)[0] * past.step_for(seconds)
    after = points[-1].at if points else until - seconds
    points += [
        point
        for point in current().board.recent(series, since=until - seconds)
        if point.value is not None and point.at >= after + resolution
    ]
    return past.with_gaps(points, resolution)


def audit(*, q: str = "", before: int | None = None, limit: int = 50) -> AuditPage:
    """The audit, newest first: all of it, or what `q` finds (see `dashboard.audit.search`)."""
    rows = trail.shown()
    ids = audit_search.find(q, before=before, limit=limit + 1)
    if ids is not None:
        rows = rows.filter(pk__in=ids)
    elif before is not None:
        rows = rows.filter(pk__lt=before)
    found: list[AuditRow] = list(rows.order_by("-pk")[: limit + 1])
    views = tuple(_view(row) for row in found[:limit])
    return AuditPage(views, views[-1].id if len(found) > limit else None)


class TokenView(msgspec.Struct, frozen=True):
    """A token, never its secret. `state` is "valid", "revoked" or "expired"; moments are None for never."""

    id: int
    name: str
    start: str
    scope: str
    state: str
    created_at: float
    expires_at: float | None
    last_used_at: float | None
    owner: str = ""
    role: str = ""
    team: str = ""
    allowance: Allowance | None = None


def tokens(owner: str | None = None) -> tuple[TokenView, ...]:
    """All tokens, or those of one person, the newest first."""
    now = timezone.now()

    def moment(at: datetime.datetime | None) -> float | None:
        return at.timestamp() if at is not None else None

    def state(row: WorkerToken) -> str:
        if row.revoked_at is not None:
            return "revoked"
        return "expired" if row.expires_at is not None and row.expires_at <= now else "valid"

    rows = WorkerToken.objects.all() if owner is None else WorkerToken.objects.filter(owner__username=owner)
    return tuple(
        TokenView(
            row.pk, row.name, row.start, row.scope, state(row), row.created_at.timestamp(),
            moment(row.expires_at), moment(row.last_used_at),
            row.owner.get_username() if row.owner else "", row.role, row.team.name if row.team else "",
            decode(row.allowance) if row.scope == Scope.WORKER else None,
        )
        for row in rows.select_related("owner", "team").order_by("-pk")
    )  # fmt: skip


def acts(names: tuple[str, ...], *, since: float, limit: int) -> tuple[AuditView, ...]:
    """What was done of these actions since a moment, newest first."""
    first = AuditRow.objects.filter(at__gte=since).order_by("at").values_list("pk", flat=True).first()
    if first is None:
        return ()
    # By ids, which the index of actions holds: by moments, a planner without statistics reads all of an action.
    rows = AuditRow.objects.filter(pk__gte=first, action__in=names, outcome=Outcome.DONE).order_by("-pk")
    return tuple(_view(row) for row in rows[:limit])


def _view(row: AuditRow) -> AuditView:
    values: dict[str, Any] = {
        name: getattr(row, name) for name in AuditView.__struct_fields__ if name != "id"
    }
    return AuditView(id=row.pk, **values)


def ledger(
    sequence: str, *, before: int | None = None, number: int | None = None, owner: str = "", limit: int = 50
) -> LedgerPage:
    """The grants of a sequence, newest first: all, those that hold `number`, or those of an owner. From the index."""
    return ranges.page(
        current().presence, sequence, before=before, number=number, owner=owner, limit=limit, now=time.time()
    )


def ledger_lines(
    sequence: str, *, before: int | None = None, owner: str = ""
) -> Iterator[list[tuple[GrantView, Owner]]]:
    """The whole ledger for a file, newest first, a thousand ranges at a time: constant memory."""
    book = LedgerBook.objects.filter(name=sequence).first()
    if book is None:
        return
    owners = ranges.owners_of(current().presence, sequence)
    rows = map(ranges.grant_of, ranges.newest_first(book, before=before, owner=owner))
    while part := list(islice(rows, ranges.CHUNK)):
        yield [(ranges.judge(sequence, grant, owners, book.read_at), grant.owner) for grant in part]
