"""People: who may sign in, with which role; and ending sessions: one's own by everybody with a role, those of others by administrators."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from typing import Any

from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import IntegrityError, transaction

from dashboard.accounts import sessions
from dashboard.accounts.sign_in import UNKNOWN_NAME
from dashboard.core.audit import ActionFailed, audited
from dashboard.core.permissions import ROLES, Actor, role_of

RESERVED = frozenset({UNKNOWN_NAME, "anonymous"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,79}")


def add_person(actor: Actor, user: str, role: str, *, reason: str = "") -> str:
    """Make an account with a role; returns its first password, which is kept nowhere and should be changed at once."""
    with audited(actor, "person.add", user, reason) as act:
        if not _NAME.fullmatch(user):
            raise ActionFailed(
                "A username has 1 to 80 letters, digits and . _ @ + -, and starts with a letter or digit."
            )
        if user.lower() in RESERVED:
            raise ActionFailed(
                f"The audit uses {user.lower()} for somebody who is not known: choose another username."
            )
        _check(role)
        if taken := get_user_model().objects.filter(username__iexact=user).first():
            raise ActionFailed(f"User {taken.get_username()} already exists.")
        password = secrets.token_urlsafe(15)
        try:
            with transaction.atomic():
                made = get_user_model().objects.create_user(username=user, password=password)
        except IntegrityError as error:
            raise ActionFailed(f"User {user} already exists.") from error
        made.groups.add(Group.objects.get(name=role))
        act.after = json.dumps({"role": role})
    return password


def set_role(actor: Actor, user: str, role: str, *, reason: str = "") -> None:
    """Give somebody else this role in place of any other; it counts at once, on open sockets within seconds."""

    def change(found: Any) -> str:
        _check(role)
        if found.is_superuser:
            found.is_superuser = False
            found.save(update_fields=["is_superuser"])
        found.groups.remove(*Group.objects.filter(name__in=ROLES))
        found.groups.add(Group.objects.get(name=role))
        return json.dumps({"role": role})

    _change(actor, "person.role", user, reason, change)


def set_active(actor: Actor, user: str, *, active: bool, reason: str = "") -> None:
    """Let somebody else sign in again, or not any more: their sessions end, their sockets close within seconds."""

    def change(found: Any) -> str:
        found.is_active = active
        found.save(update_fields=["is_active"])
        ended = 0 if active else sessions.end(sessions.keys_of(found))
        return json.dumps({"active": active, "sessions_ended": ended})

    _change(actor, "person.enable" if active else "person.disable", user, reason, change)


def reset_password(actor: Actor, user: str, *, reason: str = "") -> str:
    """Give somebody else a new first password, which is returned and kept nowhere; their sessions end."""
    password = secrets.token_urlsafe(15)

    def change(found: Any) -> str:
        found.set_password(password)
        found.save(update_fields=["password"])
        return json.dumps({"sessions_ended": sessions.end(sessions.keys_of(found))})

    _change(actor, "person.reset_password", user, reason, change)
    return password


def reset_second_factor(actor: Actor, user: str, *, reason: str = "") -> None:
    """Remove somebody else's second factor, for who lost the device; their sessions end."""

    def change(found: Any) -> str:
        removed, _ = Authenticator.objects.filter(user=found).delete()
        return json.dumps({"removed": removed, "sessions_ended": sessions.end(sessions.keys_of(found))})

    _change(actor, "person.reset_factor", user, reason, change)


def _change(actor: Actor, action: str, user: str, reason: str, change: Callable[[Any], str]) -> None:
    with audited(actor, action, user, reason) as act:
        found = get_user_model().objects.filter(username=user).first()
        if found is None:
            raise ActionFailed(f"User {user[:80]!r} does not exist.")
        if user == actor.name:
            raise ActionFailed("This is your own account: another administrator must do it.")
        act.before = json.dumps({"role": role_of(found), "active": found.is_active})
        act.after = change(found)


def _check(role: str) -> None:
    if role not in ROLES:
        raise ActionFailed(f"A role is {', '.join(ROLES)}, not {role[:40]!r}.")


def end_session(actor: Actor, session: int, *, reason: str = "") -> None:
    """Sign one browser out; sockets that it opened are closed within seconds."""
    row = UserSession.objects.select_related("user").filter(pk=session).first()
    user = row.user.get_username() if row is not None else f"#{session}"
    with audited(actor, "session.end_own" if user == actor.name else "session.end", user, reason) as act:
        if row is None:
            raise ActionFailed("This session has already ended.")
        sessions.end([row.session_key])
        act.after = json.dumps({"sessions_ended": 1})


def end_sessions(actor: Actor, user: str, *, but: str = "", reason: str = "") -> int:
    """Sign somebody out everywhere, except in the session of the key `but`; returns how many sessions that were."""
    with audited(actor, "session.end_own" if user == actor.name else "session.end", user, reason) as act:
        found = get_user_model().objects.filter(username=user).first()
        if found is None:
            raise ActionFailed(f"User {user[:80]!r} does not exist.")
        ended = sessions.end(sessions.keys_of(found) - {but})
        act.after = json.dumps({"sessions_ended": ended})
    return ended
