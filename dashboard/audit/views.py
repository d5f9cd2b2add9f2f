"""Audit: who did what, and how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta

from channels.db import database_sync_to_async
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from coordinator.spreadsheets import csv_text
from dashboard.audit import queries
from dashboard.core import csv
from dashboard.pages.views import query_of, requires, show, whole_number

ROWS = 50
FILE_ROWS = 1000
AUDIT_HEAD = (
    "id", "at", "actor", "address", "action", "target", "outcome", "reason", "before", "after", "request_id",
)  # fmt: skip


@require_safe
@requires("page.view")
def audit(request: HttpRequest) -> HttpResponse:
    q, days = _asked(request)
    page = queries.audit(q=q, before=whole_number(request.GET.get("before", "")), limit=ROWS, days=days)
    asked = query_of(q=q, since=days.since, until=days.until)
    last = datetime.now(UTC).date().replace(day=1) - timedelta(days=1)
    return show(
        request,
        "audit/audit.html",
        "audit",
        q=q,
        days=days,
        audit=page,
        asked=asked,
        older=query_of(q=q, since=days.since, until=days.until, before=page.next),
        last_month=query_of(q=q, since=last.replace(day=1), until=last),
    )


def _asked(request: HttpRequest) -> tuple[str, queries.Days]:
    """What the address asks for; a day that is none is left open."""
    found: list[date | None] = []
    for name in ("since", "until"):
        try:
            found.append(date.fromisoformat(request.GET.get(name, "")))
        except ValueError:
            found.append(None)
    return request.GET.get("q", "").strip()[:200], queries.Days(*found)


@require_safe
@requires("audit.export")
def audit_csv(request: HttpRequest) -> HttpResponse:
    """Every row of the audit that is asked for, newest first, in constant memory; `before` begins below an id."""
    (q, days), before = _asked(request), whole_number(request.GET.get("before", ""))
    return csv.streamed("audit.csv", audit_parts(q, before=before, days=days))


async def audit_parts(
    q: str, *, before: int | None = None, days: queries.Days = queries.ALWAYS
) -> AsyncIterator[str]:
    """The file in parts of a thousand lines, each read when the one before has been taken."""
    yield csv_text([AUDIT_HEAD])
    more = True
    while more:
        page = await database_sync_to_async(queries.audit)(q=q, before=before, limit=FILE_ROWS, days=days)
        yield csv_text(
            (r.id, csv.moment(r.at), r.actor, r.address, r.action, r.target, r.outcome, r.reason, r.before, r.after,
             r.request_id)
            for r in page.rows
        )  # fmt: skip
        before, more = page.next, page.next is not None
