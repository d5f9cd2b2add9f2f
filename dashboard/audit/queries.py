"""Reads of the audit."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import msgspec

from dashboard.audit import search as audit_search
from dashboard.core import audit as trail
from dashboard.models import AuditOutcome, AuditRow


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


class Days(NamedTuple):
    """From the first day to the last one, both included, in UTC; None is open."""

    since: date | None = None
    until: date | None = None


ALWAYS = Days()


def _ids(days: Days) -> tuple[int, int | None]:
    """The first id of these days, and the first after them. Ids rise with time."""
    return (
        0 if days.since is None else _first_id(days.since, 2**63 - 1),
        None if days.until is None else _first_id(days.until + timedelta(days=1), None),
    )


T = TypeVar("T")


def _first_id(day: date, otherwise: T) -> int | T:
    at = datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
    found = AuditRow.objects.filter(at__gte=at).order_by("at").values_list("pk", flat=True).first()
    return otherwise if found is None else int(found)


def audit(*, q: str = "", before: int | None = None, limit: int = 50, days: Days = ALWAYS) -> AuditPage:
    """The audit, newest first: all of it or some days, or what `q` finds there (see `dashboard.audit.search`)."""
    first, end = _ids(days)
    if end is not None:
        before = end if before is None else min(before, end)
    rows = trail.shown().filter(pk__gte=first)
    ids = audit_search.find(q, before=before, limit=limit + 1, first=first)
    if ids is not None:
        rows = rows.filter(pk__in=ids)
    elif before is not None:
        rows = rows.filter(pk__lt=before)
    found: list[AuditRow] = list(rows.order_by("-pk")[: limit + 1])
    views = tuple(_view(row) for row in found[:limit])
    return AuditPage(views, views[-1].id if len(found) > limit else None)


def acts(names: tuple[str, ...], *, since: float, limit: int) -> tuple[AuditView, ...]:
    """What was done of these actions since a moment, newest first."""
    first = AuditRow.objects.filter(at__gte=since).order_by("at").values_list("pk", flat=True).first()
    if first is None:
        return ()
    # By ids, which the index of actions holds: by moments, a planner without statistics reads all of an action.
    rows = AuditRow.objects.filter(pk__gte=first, action__in=names, outcome=AuditOutcome.DONE).order_by("-pk")
    return tuple(_view(row) for row in rows[:limit])


def _view(row: AuditRow) -> AuditView:
    values: dict[str, Any] = {
        name: getattr(row, name) for name in AuditView.__struct_fields__ if name != "id"
    }
    return AuditView(id=row.pk, **values)
