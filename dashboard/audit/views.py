"""Audit: who did what, and how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator

from channels.db import database_sync_to_async
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

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
    q = request.GET.get("q", "").strip()[:200]
    page = queries.audit(q=q, before=whole_number(request.GET.get("before", "")), limit=ROWS)
    return show(request, "audit/audit.html", "audit", q=q, audit=page, older=query_of(q=q, before=page.next))


@require_safe
@requires("audit.export")
def audit_csv(request: HttpRequest) -> HttpResponse:
    """Every row of the audit that `q` finds, newest first, in constant memory; `before` begins below an id."""
    q, before = request.GET.get("q", "").strip()[:200], whole_number(request.GET.get("before", ""))
    return csv.streamed("audit.csv", audit_parts(q, before=before))


async def audit_parts(q: str, *, before: int | None = None) -> AsyncIterator[str]:
    """The file in parts of a thousand lines, each read when the one before has been taken."""
    yield csv.lines([AUDIT_HEAD])
    more = True
    while more:
        page = await database_sync_to_async(queries.audit)(q=q, before=before, limit=FILE_ROWS)
        yield csv.lines(
            (r.id, csv.moment(r.at), r.actor, r.address, r.action, r.target, r.outcome, r.reason, r.before, r.after,
             r.request_id)
            for r in page.rows
        )  # fmt: skip
        before, more = page.next, page.next is not None
