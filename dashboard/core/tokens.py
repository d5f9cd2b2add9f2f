"""Tokens of workers, programs and screens: made once, shown once, kept as a digest, revocable at once.

Guarantees that only the digest is kept, that an expired or revoked token and one whose owner lost every role open
nothing, and that a personal token never allows more than its owner may at that moment. Noting the last use is to the
minute, so that a busy program costs one write a minute.
"""

from __future__ import annotations

import datetime
import hashlib
import secrets
from typing import Any

from django.db.models import Q
from django.utils import timezone

from dashboard.core.permissions import (
    USUAL,
    Actor,
    Allowance,
    decode_allowance,
    encode_allowance,
    lower_role,
    role_of,
    teams_of,
)
from dashboard.models import Scope, WorkerToken

# What a secret found somewhere is for, at a glance: a person's, a service's, workers', a screen's.
PERSONAL, SERVICE = "kp_", "ks_"
_STARTS: dict[str, str] = {Scope.WORKER: "kw_", Scope.KIOSK: "kk_"}
SHOWN = 8

# The scopes that each kind of token includes: a token that may act may also read.
_OPENS: dict[str, tuple[str, ...]] = {Scope.READ: (Scope.READ, Scope.ACT)}


def digest_of(token: str) -> str:
    """Tokens are long and random, so a plain hash is as good as a slow one."""
    return hashlib.sha256(token.encode()).hexdigest()


def create(
    name: str,
    *,
    by: Any = None,
    token: str = "",
    expires_at: datetime.datetime | None = None,
    scope: str = Scope.WORKER,
    owner: Any = None,
    role: str = "",
    team: Any = None,
    allowance: Allowance = USUAL,
) -> str:
    """Keep a new token and return it: the only time that it can be seen. A given `token` must be long."""
    prefix = _STARTS.get(scope) or (PERSONAL if owner is not None else SERVICE)
    made = token or prefix + secrets.token_urlsafe(32)
    if len(made) < 24:
        raise ValueError(f"the token has {len(made)} characters; use at least 24")
    WorkerToken.objects.update_or_create(
        digest=digest_of(made),
        defaults={
            "name": name,
            "scope": scope,
            "start": made[:SHOWN],
            "owner": owner,
            "role": role,
            "team": team,
            "allowance": encode_allowance(allowance),
            "created_by": by,
            "expires_at": expires_at,
            "revoked_at": None,
        },
    )
    return made


def admitted(token: str) -> tuple[int, Allowance] | None:
    """The id of a valid token of workers, and what they may claim; None if it opens nothing."""
    row = _used(token, Scope.WORKER)
    return None if row is None else (int(row.pk), decode_allowance(row.allowance))


def check(token: str, scope: str = Scope.WORKER) -> int | None:
    """The id of a valid token that opens that scope, its use noted; None if unknown, expired, revoked or its owner has no role."""
    row = _used(token, scope)
    return None if row is None else int(row.pk)


def actor_of_token(token: str, *, address: str = "", request_id: str = "") -> Actor | None:
    """Who acts with this token of scope read or act; None if it opens nothing now.

    A token of scope read is a viewer at most. A service is distinguished from people by a name that no user can have.
    """
    row = _used(token, Scope.READ)
    if row is None:
        return None
    most = row.role if row.scope == Scope.ACT else lower_role(row.role or "viewer", "viewer")
    if row.owner is not None:
        role, teams = lower_role(most, role_of(row.owner)), teams_of(row.owner)
        return Actor(row.owner.get_username(), role, address, request_id, teams, by_token=True)
    teams = frozenset({row.team.name} if row.team is not None else ())
    return Actor(f"service {row.name}", most, address, request_id, teams, by_token=True)


def _used(token: str, scope: str) -> WorkerToken | None:
    now = timezone.now()
    row: WorkerToken | None = (
        valid(now)
        .filter(digest=digest_of(token), scope__in=_OPENS.get(scope, (scope,)))
        .select_related("owner", "team")
        .first()
    )
    if row is None or (row.owner is not None and not role_of(row.owner)):
        return None
    if row.last_used_at is None or now - row.last_used_at > datetime.timedelta(minutes=1):
        WorkerToken.objects.filter(pk=row.pk).update(last_used_at=now)
    return row


def bearer_of(header: str) -> str:
    """The token in an ``Authorization`` header; "" if there is none."""
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def valid(now: datetime.datetime | None = None) -> Any:
    """The tokens that are valid now."""
    moment = now or timezone.now()
    return WorkerToken.objects.filter(revoked_at=None).filter(Q(expires_at=None) | Q(expires_at__gt=moment))


def valid_ids() -> set[int]:
    """Ids of all tokens that are valid now."""
    return set(valid().values_list("pk", flat=True))
