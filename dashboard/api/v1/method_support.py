"""What HTTP asks of every address: HEAD wherever GET is answered, and a problem for any method that is not.

django-ninja knows neither: it would answer HEAD with 405, and 405 with a line of text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver

from dashboard.api.v1 import problems


def spoken(patterns: Iterable[URLPattern | URLResolver]) -> list[URLPattern | URLResolver]:
    """These addresses, each answering as HTTP asks."""
    made = list(patterns)
    for each in made:
        if isinstance(each, URLPattern):
            each.callback = _spoken(each.callback)
    return made


def _spoken(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    @wraps(view)
    def answered(request: HttpRequest, *args: Any, **values: Any) -> HttpResponse:
        asked = request.method
        if asked == "HEAD":
            request.method = "GET"  # the server leaves the body out, and reports its length all the same
        try:
            response = view(request, *args, **values)
        finally:
            request.method = asked
        if response.status_code != 405:
            return response
        allowed = sorted({each.strip() for each in response["Allow"].split(",")})
        if "GET" in allowed:
            allowed.insert(allowed.index("GET") + 1, "HEAD")
        methods = ", ".join(allowed)
        return problems.answered(405, f"{asked} is not answered here, but {methods}", {"Allow": methods})

    return answered
