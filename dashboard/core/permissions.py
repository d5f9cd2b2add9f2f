"""Who may do what: the least role for each action. `dashboard.core.guard` decides by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from dashboard.core.teams import KINDS, ROLES, Role, Rule, role_on
from dashboard.core.teams import RANK as _RANK

# The least role for each action; an action that is not listed may be done by nobody.
ACTIONS: dict[str, Role] = {
    "page.view": "viewer",
    "audit.export": "viewer",
    "audit.prune": "admin",
    "gate.open": "operator",
    "gate.close": "operator",
    "gate.create": "operator",
    "queue.create": "operator",
    "queue.put": "operator",
    "queue.peek": "operator",
    "queue.requeue": "operator",
    "queue.rule": "operator",
    "scaling.policy": "operator",
    "cost.prices": "operator",
    "batch.retry": "operator",
    "batch.cancel": "operator",
    "saga.retry": "operator",
    "queue.clear": "admin",
    "queue.delete": "admin",
    "leader.step_down": "operator",
    "leader.break": "admin",
    "worker.drain": "operator",
    "worker.resume": "operator",
    "worker.stop": "operator",
    "token.create": "admin",
    "token.revoke": "admin",
    "team.rule": "admin",
    "team.member": "admin",
    "session.end": "admin",
    "session.end_own": "viewer",
    "token.create_own": "viewer",
    "token.revoke_own": "viewer",
}

# What destroys: it needs a recent sign-in besides.
FRESH = frozenset({"queue.clear", "queue.delete", "leader.break"})

WANTS_FACTOR = "kennel_wants_factor"
"""Attribute of a user whose role demands a second factor that they have not set up: until then they have no role."""


def role_of(user: Any) -> Role:
    """The highest role of a user; "" for nobody, inactive users and users in none of the groups."""
    if not getattr(user, "is_authenticated", False) or not user.is_active:
        return ""
    if getattr(user, WANTS_FACTOR, False):
        return ""
    if user.is_superuser:
        return "admin"
    names = _groups(user)
    return next((role for role in reversed(ROLES) if role in names), "")


def teams_of(user: Any) -> frozenset[str]:
    """The names of the teams of a user: their groups that are not roles."""
    if not getattr(user, "is_authenticated", False):
        return frozenset()
    return _groups(user) - set(ROLES)


def _groups(user: Any) -> frozenset[str]:
    """Asks the database once for each user object, and not at all if its groups were prefetched."""
    known: frozenset[str] | None = getattr(user, "_kennel_groups", None)
    if known is None:
        known = frozenset(group.name for group in user.groups.all())
        user._kennel_groups = known
    return known


def lower_role(one: str, other: str) -> Role:
    """The lesser of two roles; "" if either is none."""
    return cast(Role, min(one, other, key=lambda role: _RANK.get(role, 0)))


def role_may(
    role: str,
    action: str,
    target: str = "",
    teams: frozenset[str] = frozenset(),
    rules: Callable[[], tuple[Rule, ...]] = tuple,
) -> bool:
    """Whether a role allows an action on a target to members of these teams; False for unknown roles and actions.

    `rules` is called for acts on gates and queues, except by administrators. With no target: whether there can be one.
    """
    needed = ACTIONS.get(action)
    if needed is None:
        return False
    kind = action.partition(".")[0]
    if kind in KINDS and role in ROLES and role != "admin" and (target or teams):
        role = role_on(role, teams, kind, target, rules())
    return _RANK.get(role, 0) >= _RANK[needed]
