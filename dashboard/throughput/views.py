"""Throughput: what handlers did, how long it took, and how long items waited."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.live import tallies
from dashboard.pages.views import requires, show
from dashboard.throughput import queries

SPANS = {"hour": ("Last hour", 3600.0), "day": ("Last 24 hours", 86_400.0), "week": ("Last 7 days", 604_800.0), "month": ("Last 30 days", 30 * 86_400.0)}  # fmt: skip

BEFORE = {"yesterday": ("Yesterday", tallies.DAY), "week": ("Last week", tallies.WEEK)}


@require_safe
@requires("page.view")
def throughput(request: HttpRequest) -> HttpResponse:
    asked = request.GET.get("span", "hour")
    name = asked if asked in SPANS else "hour"
    before = request.GET.get("with", "week")
    before = before if before in BEFORE else "week"
    return show(
        request,
        "throughput/throughput.html",
        "throughput",
        live=False,
        span=name,
        title=SPANS[name][0],
        spans=[(key, title) for key, (title, _) in SPANS.items()],
        compared=before,
        compare=[(key, title) for key, (title, _) in BEFORE.items()],
        before_title=BEFORE[before][0],
        found=queries.throughput(SPANS[name][1], before=BEFORE[before][1], page=request.GET.get("page", "")),
    )


@require_safe
@requires("page.view")
def figures(request: HttpRequest) -> HttpResponse:
    """The row of figures that Overview asks for, as a piece of a page."""
    answer = render(request, "throughput/_figures.html", {"sparks": queries.sparks()})
    answer["Cache-Control"] = "no-store"
    return answer
