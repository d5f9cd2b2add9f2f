"""Who comes in: a program by its token, a person by their session; each operation accepts both.

Everything is decided before a body is read: who it is, how much they may still ask, whether they may do this to that.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja.errors import AuthenticationError
from ninja.security import APIKeyCookie, HttpBearer
from ninja.utils import check_csrf

from dashboard.api.v1 import throttling as limits
from dashboard.api.v1.problems import HOW_TO_ENTER, Refusal
from dashboard.core import audit, tokens
from dashboard.core.audit import Denied
from dashboard.core.middleware import request_id_var
from dashboard.core.permissions import ACTIONS, Actor, decide
from dashboard.pages.views import actor_of

SAFE = ("GET", "HEAD")


class Bearer(HttpBearer):
    """A token of scope read or act: ``Authorization: Bearer TOKEN``."""

    openapi_description = "A personal or service token of scope read or act."

    def __init__(self, action: str) -> None:
        super().__init__()
        self.action = action

    def __call__(self, request: HttpRequest) -> Any:
        if "Authorization" not in request.headers:
            return None
        return self.authenticate(request, tokens.bearer_of(request.headers["Authorization"]))

    def authenticate(self, request: HttpRequest, token: str) -> Actor:
        address = request.META.get("REMOTE_ADDR") or ""
        actor = None
        if token:
            _spend(request, tokens.digest_of(token)[:32])
            actor = tokens.actor_of_token(token, address=address, request_id=request_id_var.get())
        if actor is None:
            limits.spend(f"from:{address}", "refused")
            raise AuthenticationError
        return _allowed(request, actor, self.action)


class Session(APIKeyCookie):
    """The session of somebody who signed in; what changes something needs the CSRF token, too."""

    param_name = "sessionid"
    openapi_description = "A session; changes need the header X-CSRFToken besides."

    def __init__(self, action: str) -> None:
        super().__init__(csrf=False)
        self.action = action

    def authenticate(self, request: HttpRequest, key: str | None) -> Actor | None:
        if not request.user.is_authenticated:
            limits.spend(f"from:{request.META.get('REMOTE_ADDR') or ''}", "refused")
            raise AuthenticationError
        _spend(request, f"user:{request.user.pk}")
        if check_csrf(request) is not None:
            raise Refusal(403, "a session must send the CSRF token, too: header X-CSRFToken, from the cookie")
        return _allowed(request, actor_of(request), self.action)


def authentication(action: str) -> list[Any]:
    """The ways to sign in for an operation that needs this action."""
    if action not in ACTIONS:
        raise KeyError(f"{action!r} is not in permissions.ACTIONS")
    return [Bearer(action), Session(action)]


def _spend(request: HttpRequest, caller: str) -> None:
    kind = "reads" if request.method in SAFE else "writes"
    request.kennel_caller = caller  # type: ignore[attr-defined]
    request.kennel_quota = limits.spend(caller, kind)  # type: ignore[attr-defined]


def _allowed(request: HttpRequest, actor: Actor, action: str) -> Actor:
    match = request.resolver_match
    target = "/".join(str(value) for value in match.kwargs.values()) if match is not None else ""
    why = decide(actor, action, target)
    if why:
        if action != "page.view":
            audit.denied(actor, action, target)
        raise Denied(why)
    return actor


__all__ = ["HOW_TO_ENTER", "Bearer", "Session", "authentication"]
