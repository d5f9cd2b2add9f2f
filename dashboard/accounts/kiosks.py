"""Screens on a wall: a token opens a session that shows the wallboard, and nothing else.

Guarantees that such a session is nobody's account, that it sees the wallboard alone and can do nothing, and that its pages stop within
seconds when its token is revoked or expires. It is valid as long as its token, over restarts of the dashboard; a browser forgets it
after `SESSION_SECONDS`, or when it keeps no cookies: the screen then opens its address again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest

from dashboard.core import audit, tokens
from dashboard.core.middleware import request_id_var
from dashboard.core.permissions import Actor
from dashboard.models import AuditOutcome, Scope

KEY = "kennel_kiosk"
# Browsers keep no cookie longer.
SESSION_SECONDS = 400 * 86_400


def begin(request: HttpRequest, token: str) -> bool:
    """Turn this browser into the screen of that token; False, and nothing changes, if it is not the valid one of a screen."""
    found = tokens.check(token, Scope.KIOSK)
    if found is None:
        return False
    request.session.flush()
    request.session[KEY] = found
    request.session.set_expiry(SESSION_SECONDS)
    if (actor := actor_of(request)) is not None:
        row = audit.intent(actor, "sign_in", actor.name)
        audit.outcome(row, AuditOutcome.DONE, after=json.dumps({"by": ["kiosk token"]}))
    return True


def token_of(session: Mapping[str, Any] | Any) -> int | None:
    """The id of the token that opened this session; None if it is none of a screen, or a person has signed in since."""
    found = session.get(KEY)
    return found if isinstance(found, int) and SESSION_KEY not in session else None


def end(request: HttpRequest, **_: Any) -> None:
    """A person has signed in where a screen was: the session is theirs alone, and lasts as long as any person's."""
    if request.session.pop(KEY, None) is not None:
        request.session.set_expiry(None)


def actor_of(request: HttpRequest) -> Actor | None:
    """The screen as a viewer; None if this browser is none, or its token is not valid any more."""
    found = token_of(request.session)
    row = None if found is None else tokens.valid().filter(pk=found, scope=Scope.KIOSK).first()
    if row is None:
        return None
    address = str(request.META.get("REMOTE_ADDR") or "")
    return Actor(f"screen {row.name}", "viewer", address, request_id_var.get(), by_token=True)


def still_valid(found: Iterable[int]) -> set[int]:
    """Those of these tokens that are valid now and open screens."""
    wanted = set(found)
    if not wanted:
        return wanted
    return set(tokens.valid().filter(pk__in=wanted, scope=Scope.KIOSK).values_list("pk", flat=True))
