"""The fleet as JSON, for the users' own tools and alerts."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from dashboard import selectors
from dashboard.api.access import answer, problem, reads

LONGEST_SECONDS = 31 * 86400.0


@reads
def fleet(request: HttpRequest) -> HttpResponse:
    """Everything the pages show; null means unknown, moments are seconds since 1970."""
    return answer(selectors.fleet())


@reads
def attention(request: HttpRequest) -> HttpResponse:
    """What an operator should look at now: an empty list when all is well."""
    now = selectors.fleet()
    return answer({"taken_at": now.taken_at, "headline": now.headline, "attention": now.attention})


@reads
def history(request: HttpRequest) -> HttpResponse:
    """``?series=depth:orders-in&seconds=3600``: points, oldest first; a null value is a gap."""
    series = request.GET.get("series", "")
    try:
        seconds = float(request.GET.get("seconds", "3600"))
    except ValueError:
        seconds = -1.0
    if not series or not 1 <= seconds <= LONGEST_SECONDS:
        return problem(400, "Bad request", f"give series=NAME and seconds=1…{LONGEST_SECONDS:.0f}")
    points = selectors.history(series, seconds)
    return answer({"series": series, "points": [(point.at, point.value) for point in points]})
