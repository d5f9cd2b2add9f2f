"""Ending sessions: one's own by everybody with a role, those of others by administrators."""

from __future__ import annotations

import json

from allauth.usersessions.models import UserSession
from django.contrib.auth import get_user_model

from dashboard.accounts import sessions
from dashboard.core.audit import ActionFailed, audited
from dashboard.core.permissions import Actor


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
