"""Reads of people and tokens."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
from allauth.mfa.models import Authenticator
from django.contrib.auth import get_user_model
from django.utils import timezone

from dashboard.core.permissions import ROLES, Allowance, decode_allowance
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


class PersonView(msgspec.Struct, frozen=True):
    """An account. `role` is "" for none; `last_sign_in` is None for never."""

    name: str
    role: str
    teams: tuple[str, ...]
    is_active: bool
    has_factor: bool
    last_sign_in: float | None


def people() -> tuple[PersonView, ...]:
    """All accounts by name."""
    factors = set(Authenticator.objects.values_list("user_id", flat=True))
    found = get_user_model().objects.prefetch_related("groups").order_by("username")
    return tuple(_person(user, has_factor=user.pk in factors) for user in found)


def _person(user: Any, *, has_factor: bool) -> PersonView:
    groups = {group.name for group in user.groups.all()}
    role = "admin" if user.is_superuser else next((role for role in reversed(ROLES) if role in groups), "")
    return PersonView(
        user.get_username(),
        role,
        tuple(sorted(groups - {*ROLES})),
        user.is_active,
        has_factor,
        user.last_login.timestamp() if user.last_login else None,
    )
