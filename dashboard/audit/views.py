"""Audit: who did what, and how it ended."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard.core.guard import requires
from dashboard.core.views import query_of, show, whole_number
from dashboard.live import queries as selectors

ROWS = 50


@require_safe
@requires("page.view")
def audit(request: HttpRequest) -> HttpResponse:
    q = request.GET.get("q", "").strip()[:200]
    page = selectors.audit(q=q, before=whole_number(request.GET.get("before", "")), limit=ROWS)
    return show(request, "audit/audit.html", "audit", q=q, audit=page, older=query_of(q=q, before=page.next))
