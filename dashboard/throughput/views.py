"""Throughput: what handlers did, how long it took, and how long items waited."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard.pages.views import requires, show
from dashboard.throughput import queries

SPANS = {"hour": ("Last hour", 3600.0), "day": ("Last 24 hours", 86_400.0), "week": ("Last 7 days", 604_800.0), "month": ("Last 30 days", 30 * 86_400.0)}  # fmt: skip


@require_safe
@requires("page.view")
def throughput(request: HttpRequest) -> HttpResponse:
    asked = request.GET.get("span", "hour")
    name = asked if asked in SPANS else "hour"
    return show(
        request,
        "throughput/throughput.html",
        "throughput",
        live=False,
        span=name,
        title=SPANS[name][0],
        spans=[(key, title) for key, (title, _) in SPANS.items()],
        found=queries.throughput(SPANS[name][1]),
    )
