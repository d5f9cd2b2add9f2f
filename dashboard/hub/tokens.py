"""Tokens of workers: made once, shown once, kept as a digest, revocable at once."""

from __future__ import annotations

import datetime
import hashlib
import secrets
from typing import Any

from django.db.models import Q
from django.utils import timezone

from dashboard.models import Scope, WorkerToken

PREFIX = "kw_"
SHOWN = 8


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
) -> str:
    """Keep a new token and return it: the only time that it can be seen. A given `token` must be long."""
    made = token or PREFIX + secrets.token_urlsafe(32)
    if len(made) < 24:
        raise ValueError(f"the token has {len(made)} characters; use at least 24")
    WorkerToken.objects.update_or_create(
        digest=digest_of(made),
        defaults={
            "name": name,
            "scope": scope,
            "start": made[:SHOWN],
            "created_by": by,
            "expires_at": expires_at,
            "revoked_at": None,
        },
    )
    return made


def check(token: str, scope: str = Scope.WORKER) -> int | None:
    """The id of a valid token of that scope, its use noted (to the minute); None if unknown, expired or revoked."""
    now = timezone.now()
    row = valid(now).filter(digest=digest_of(token), scope=scope).only("pk", "last_used_at").first()
    if row is None:
        return None
    if row.last_used_at is None or now - row.last_used_at > datetime.timedelta(minutes=1):
        WorkerToken.objects.filter(pk=row.pk).update(last_used_at=now)
    return int(row.pk)


def bearer_of(header: str) -> str:
    """The token in an ``Authorization`` header; "" if there is none."""
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def valid(now: datetime.datetime | None = None) -> Any:
    """The tokens that open the door now."""
    moment = now or timezone.now()
    return WorkerToken.objects.filter(revoked_at=None).filter(Q(expires_at=None) | Q(expires_at__gt=moment))


def valid_ids() -> set[int]:
    """Ids of all tokens that are valid now."""
    return set(valid().values_list("pk", flat=True))
