"""Reads of tokens."""

from __future__ import annotations

import datetime

import msgspec
from django.utils import timezone

from dashboard.core.permissions import Allowance, decode_allowance
from dashboard.models import Scope, WorkerToken


class TokenView(msgspec.Struct, frozen=True):
    """A token, never its secret. `state` is "valid", "revoked" or "expired"; moments are None for never."""

    id: int
    name: str
    start: str
    scope: str
    state: str
    created_at: float
    expires_at: float | None
    last_used_at: float | None
    owner: str = ""
    role: str = ""
    team: str = ""
    allowance: Allowance | None = None


def tokens(owner: str | None = None) -> tuple[TokenView, ...]:
    """All tokens, or those of one person, the newest first."""
    now = timezone.now()

    def moment(at: datetime.datetime | None) -> float | None:
        return at.timestamp() if at is not None else None

    def state(row: WorkerToken) -> str:
        if row.revoked_at is not None:
            return "revoked"
        return "expired" if row.expires_at is not None and row.expires_at <= now else "valid"

    rows = WorkerToken.objects.all() if owner is None else WorkerToken.objects.filter(owner__username=owner)
    return tuple(
        TokenView(
            row.pk, row.name, row.start, row.scope, state(row), row.created_at.timestamp(),
            moment(row.expires_at), moment(row.last_used_at),
            row.owner.get_username() if row.owner else "", row.role, row.team.name if row.team else "",
            decode_allowance(row.allowance) if row.scope == Scope.WORKER else None,
        )
        for row in rows.select_related("owner", "team").order_by("-pk")
    )  # fmt: skip
