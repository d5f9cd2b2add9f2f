"""Who may read the API: people by their session, programs by a token of scope *read*."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse

from dashboard.core import tokens
from dashboard.core.permissions import decide
from dashboard.models import Scope
from dashboard.pages.views import actor_of

ANSWER_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"
encode = msgspec.json.Encoder().encode


def answer(value: Any, *, status: int = 200) -> HttpResponse:
    """JSON, not to be kept by caches."""
    response = HttpResponse(encode(value), content_type=ANSWER_TYPE, status=status)
    response["Cache-Control"] = "no-store"
    return response


def problem(status: int, title: str, detail: str) -> HttpResponse:
    """An error as RFC 9457 has it."""
    response = answer(
        {"type": "about:blank", "title": title, "status": status, "detail": detail}, status=status
    )
    response["Content-Type"] = PROBLEM_TYPE
    return response


def reads(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Decorate a view that only reads."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            refused = problem(405, "Method not allowed", "only GET and HEAD are answered here")
            refused["Allow"] = "GET, HEAD"
            return refused
        token = tokens.bearer_of(request.headers.get("Authorization", ""))
        if token:
            if tokens.check(token, Scope.READ) is not None:
                return view(request, *args, **kwargs)
        elif request.user.is_authenticated:
            if not decide(actor_of(request), "page.view"):
                return view(request, *args, **kwargs)
            return problem(403, "Forbidden", "your user has no role; an administrator can give you one")
        refused = problem(
            401,
            "Unauthorized",
            "sign in, or send a valid token of scope read: Authorization: Bearer TOKEN "
            "(manage.py worker_token create NAME --scope read)",
        )
        refused["WWW-Authenticate"] = 'Bearer realm="kennel"'
        return refused

    guarded.kennel_action = "page.view"  # type: ignore[attr-defined]
    return guarded
