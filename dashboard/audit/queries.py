"""Reads of the audit."""

from __future__ import annotations

from typing import Any

import msgspec

from dashboard.audit import search as audit_search
from dashboard.core import audit as trail
from dashboard.models import AuditRow, Outcome


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
