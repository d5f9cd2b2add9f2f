"""Making and revoking tokens."""

from __future__ import annotations

import datetime
import json

from django.utils import timezone

from dashboard.actions.acting import ActionFailed, Actor, audited
from dashboard.hub import tokens
from dashboard.models import Scope, WorkerToken


def create_token(
    actor: Actor, name: str, *, scope: str = Scope.WORKER, days: float | None = None, reason: str = ""
) -> str:
    """Make a token and return it: the only time that it can be seen."""
    name = name.strip()
    with audited(actor, "token.create", name, reason) as act:
        if not 1 <= len(name) <= 100:
            raise ActionFailed("Say in 1-100 characters what the token is for.")
        if scope not in Scope.values:
            raise ActionFailed(f"A token is for {' or '.join(Scope.values)}, not for {scope[:40]!r}.")
        if days is not None and not 0 < days <= 3660:
            raise ActionFailed("A token may be valid for up to 3,660 days.")
        expires = timezone.now() + datetime.timedelta(days=days) if days is not None else None
        made = tokens.create(name, scope=scope, expires_at=expires)
        act.after = json.dumps({"token": made[: tokens.SHOWN] + "…", "scope": scope})
    return made


def revoke_token(actor: Actor, token_id: int, *, reason: str = "") -> None:
    """End a token; sockets that were opened with it are closed within seconds."""
    row = WorkerToken.objects.filter(pk=token_id).first()
    with audited(actor, "token.revoke", str(row) if row is not None else f"#{token_id}", reason) as act:
        if row is None or row.revoked_at is not None:
            raise ActionFailed("There is no such valid token.")
        row.revoked_at = timezone.now()
        row.save(update_fields=["revoked_at"])
        act.after = json.dumps({"token": "revoked"})
