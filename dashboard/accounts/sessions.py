"""Sessions of people: how long one lasts, how fresh the sign-in behind it is, who has which, and ending them.

Guarantees that a session ends with the password it was opened with, after `SESSION_COOKIE_AGE` in any case, and for those
who may act after `KENNEL_IDLE_MINUTES` without a request of theirs; sockets that it opened close within seconds. What
nobody asks for is no activity: pages that update themselves do not keep a session alive. Viewers have no idle time-out,
so that a wallboard stays on. The last activity is noted to the minute, so that it costs one write a minute.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
from allauth.account.authentication import AUTHENTICATION_METHODS_SESSION_KEY
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY, get_user
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.models import Session
from django.db import OperationalError
from django.http import HttpRequest
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from django.utils.functional import SimpleLazyObject

from dashboard.core.permissions import WANTS_FACTOR, role_of

SEEN = "kennel_seen"
NOTED_SECONDS = 60.0
_note_again_at = 0.0


class Authentication(AuthenticationMiddleware):
    """Django's, except that an idle session is nobody's. Lazy as that one: what asks for no user reads no session."""

    def process_request(self, request: HttpRequest) -> None:
        request.user = SimpleLazyObject(lambda: _present(request))  # type: ignore[assignment]
        request.auser = partial(_present_async, request)


def _present(request: Any) -> Any:
    if not hasattr(request, "_kennel_user"):
        user: Any = get_user(request)
        if user.is_authenticated:
            now = time.time()
            if is_idle(request.session, user, now):
                request.session.flush()
                user = AnonymousUser()
            elif now - _seen(request.session) > NOTED_SECONDS:
                _note(request.session, now)
            if user.is_authenticated and wants_factor(request.session, user):
                setattr(user, WANTS_FACTOR, True)
        request._kennel_user = user
    return request._kennel_user


def _note(session: Any, now: float) -> None:
    """Write down the activity, if the database takes it: somebody who presses must not wait for this."""
    global _note_again_at
    if now < _note_again_at:
        return
    was_modified = session.modified
    session[SEEN] = now
    try:
        session.save()
        UserSession.objects.filter(session_key=session.session_key).update(last_seen_at=timezone.now())
    except OperationalError:
        _note_again_at = now + NOTED_SECONDS
    session.modified = was_modified


async def _present_async(request: Any) -> Any:
    return await sync_to_async(_present)(request)


def _seen(session: Mapping[str, Any] | Any) -> float:
    value = session.get(SEEN, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def is_idle(session: Mapping[str, Any] | Any, user: Any, now: float) -> bool:
    """Whether somebody who may act has done nothing for longer than the settings allow."""
    seen = _seen(session)
    if not settings.IDLE_SECONDS or not seen or now - seen <= settings.IDLE_SECONDS:
        return False
    return role_of(user) in ("operator", "admin")


def is_of_provider(session: Mapping[str, Any] | Any) -> bool:
    """Whether its person came by single sign-on."""
    records = session.get(AUTHENTICATION_METHODS_SESSION_KEY) or ()
    return any(record.get("method") == "socialaccount" for record in records)


def wants_factor(session: Mapping[str, Any] | Any, user: Any) -> bool:
    """Whether this person's role demands a second factor that they have not set up.

    By single sign-on they have shown what the provider demands.
    """
    if role_of(user) not in settings.SECOND_FACTOR_ROLES or is_of_provider(session):
        return False
    return not Authenticator.objects.filter(user=user).exists()


def alive(keys: Iterable[str | None]) -> dict[str, dict[str, Any]]:
    """What those of these sessions hold that have not ended."""
    rows = Session.objects.filter(
        session_key__in=[key for key in keys if key], expire_date__gt=timezone.now()
    )
    return {row.session_key: row.get_decoded() for row in rows}


def is_of(session: Mapping[str, Any] | None, user: Any) -> bool:
    """Whether this session is this user's now: same user, same password as at the sign-in, not idle."""
    return (
        session is not None
        and user is not None
        and session.get(SESSION_KEY) == str(user.pk)
        and constant_time_compare(str(session.get(HASH_SESSION_KEY, "")), user.get_session_auth_hash())
        and not is_idle(session, user, time.time())
        and not wants_factor(session, user)
    )


class SessionView(msgspec.Struct, frozen=True):
    """A session as the pages show it, without its key. Moments are seconds since 1970."""

    id: int
    user: str
    address: str
    agent: str
    since: float
    seen: float
    current: bool


def listed(user: Any = None, *, current: str = "") -> tuple[SessionView, ...]:
    """The sessions of one person or of all, the newest first; `current` is the key of the one that asks."""
    rows = UserSession.objects.select_related("user").order_by("-last_seen_at")
    if user is not None:
        rows = rows.filter(user=user)
    found = list(rows[:500])
    living = alive(row.session_key for row in found)
    return tuple(
        SessionView(
            row.pk, row.user.get_username(), str(row.ip), _browser(row.user_agent),
            row.created_at.timestamp(), row.last_seen_at.timestamp(), row.session_key == current,
        )
        for row in found
        if is_of(living.get(row.session_key), row.user)
    )  # fmt: skip


def end(keys: Iterable[str]) -> int:
    """End these sessions; returns how many there were."""
    given = list(keys)
    UserSession.objects.filter(session_key__in=given).delete()
    return Session.objects.filter(session_key__in=given).delete()[0]


def keys_of(user: Any) -> set[str]:
    """The keys of all living sessions of a person, those too that no list knows."""
    rows = Session.objects.filter(expire_date__gt=timezone.now()).iterator(500)
    return {row.session_key for row in rows if row.get_decoded().get(SESSION_KEY) == str(user.pk)}


_BROWSERS = (
    ("Edg/", "Edge"),
    ("OPR/", "Opera"),
    ("Firefox/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
)
_SYSTEMS = (("Android", "Android"), ("iPhone", "iOS"), ("iPad", "iOS"), ("Windows", "Windows"), ("Mac OS", "macOS"), ("Linux", "Linux"))  # fmt: skip


def _browser(agent: str) -> str:
    """What people call it. The rest of what browsers say of themselves helps nobody to know one's own again."""
    name = next((shown for sign, shown in _BROWSERS if sign in agent), "")
    system = next((shown for sign, shown in _SYSTEMS if sign in agent), "")
    return ", ".join(filter(None, (name, system))) or agent[:40] or "?"
