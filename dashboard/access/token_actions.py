"""Making and revoking tokens: one's own by everybody with a role, all others by administrators."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any

import msgspec
from django.contrib.auth.models import Group
from django.utils import timezone

from coordinator.bounds import plainly
from dashboard.core import audit, tokens
from dashboard.core.audit import ActionFailed, Denied, audited
from dashboard.core.permissions import NEW, ROLES, USUAL, Actor, Allowance, encode_allowance, lower_role
from dashboard.models import Scope, WorkerToken

_WITHOUT_ROLE: dict[str, str] = {Scope.WORKER: "connects to the hub", Scope.KIOSK: "shows the wallboard"}
MAX_DAYS = 3660.0
MAX_DAYS_OF_PERSON = 366.0


def create_token(
    actor: Actor,
    name: str,
    *,
    scope: str = Scope.WORKER,
    days: float | None = None,
    owner: Any = None,
    role: str = "",
    team: str = "",
    allowance: Mapping[str, Any] | None = None,
    reason: str = "",
) -> str:
    """Make a token and return it: the only time that it can be seen.

    With `owner` (a user) it is personal, needs `days`, and is capped by what they may; people make their own. Without,
    it is a service's or a fleet's, with a `role` and perhaps a `team` of its own, and made by administrators.
    `allowance` is what the workers of a fleet's token may claim, fields of `dashboard.core.permissions.Allowance`; what it
    leaves out is as in `dashboard.core.permissions.NEW`.
    """
    name = name.strip()
    own = owner is not None and owner.get_username() == actor.name
    action = "token.create_own" if own else "token.create"
    if actor.by_token:
        # One that leaked could outlive its end and its revocation by those it made.
        audit.denied(actor, action, name, reason=reason)
        raise Denied("A token cannot create tokens: sign in, or use manage.py worker_token.")
    with audited(actor, action, name, reason) as act:
        if not 1 <= len(name) <= 100:
            raise ActionFailed("A token name has 1-100 characters.")
        if scope not in Scope.values:
            raise ActionFailed(
                "A token is for {scopes}, not for {scope!r}.".format(
                    scopes=" or ".join(Scope.values), scope=scope[:40]
                )
            )
        most = MAX_DAYS if owner is None else MAX_DAYS_OF_PERSON
        if days is not None and not 0 < days <= most:
            raise ActionFailed(f"A token may be valid for up to {most:,.0f} days.")
        if owner is not None and days is None:
            raise ActionFailed("A personal token must expire: enter the number of days.")
        if owner is not None and scope in _WITHOUT_ROLE:
            raise ActionFailed("Tokens of workers and of screens have no owner; administrators create them.")
        role = _role(scope, role)
        if lower_role(role, actor.role) != role:
            raise ActionFailed(f"A token cannot exceed your own role: {actor.role}.")
        found = Group.objects.exclude(name__in=ROLES).filter(name=team).first() if team else None
        if team and found is None:
            raise ActionFailed(f"Team {team[:80]!r} does not exist.")
        if allowance and scope != Scope.WORKER:
            raise ActionFailed("Only worker tokens have an allowance of names and numbers.")
        allowed = _allowance(allowance or {}) if scope == Scope.WORKER else USUAL
        expires = timezone.now() + datetime.timedelta(days=days) if days is not None else None
        made = tokens.create(
            name, scope=scope, expires_at=expires, owner=owner, role=role, team=found, allowance=allowed
        )
        fields = {
            "token": made[: tokens.SHOWN] + "…",
            "scope": scope,
            "role": role,
            "team": team,
            "allowance": encode_allowance(allowed),
        }
        act.after = json.dumps({key: value for key, value in fields.items() if value})
    return made


def revoke_token(actor: Actor, token_id: int, *, reason: str = "") -> None:
    """End a token; sockets that were opened with it are closed within seconds."""
    row = WorkerToken.objects.filter(pk=token_id).select_related("owner").first()
    own = row is not None and row.owner is not None and row.owner.get_username() == actor.name
    target = str(row) if row is not None else f"#{token_id}"
    with audited(actor, "token.revoke_own" if own else "token.revoke", target, reason) as act:
        if row is None or row.revoked_at is not None:
            raise ActionFailed("No such valid token.")
        row.revoked_at = timezone.now()
        row.save(update_fields=["revoked_at"])
        act.after = json.dumps({"token": "revoked"})


def _allowance(given: Mapping[str, Any]) -> Allowance:
    try:
        return msgspec.convert(msgspec.structs.asdict(NEW) | dict(given), Allowance, strict=False)
    except msgspec.ValidationError as error:
        raise ActionFailed(f"The allowance of its workers is out of bounds: {plainly(error)}.") from error


def _role(scope: str, role: str) -> str:
    if scope in _WITHOUT_ROLE:
        if role:
            raise ActionFailed(
                f"A token of a {scope} has no role: it {_WITHOUT_ROLE[scope]} and nothing else."
            )
        return ""
    if role and role not in ROLES:
        raise ActionFailed("A role is {roles}, not {role!r}.".format(roles=", ".join(ROLES), role=role[:40]))
    if scope == Scope.ACT and not role:
        raise ActionFailed("A token that acts needs a role.")
    return lower_role(role or "viewer", "viewer") if scope == Scope.READ else role
