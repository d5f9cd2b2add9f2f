"""Which team acts on which gates and queues, by patterns of names.

Guarantees: with no rule every role counts everywhere. A name that a rule covers belongs to the teams of the rules that
cover it: their members have there the highest role such a rule gives them, whatever else they are, and all others only
look. Administrators act everywhere; who has no role at all does nothing anywhere. A queue of poison belongs with its queue.
Does not hide anything: whoever may look sees all names.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, cast

from dashboard.models import TeamRule

Role = Literal["admin", "operator", "viewer", ""]

ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
RANK: dict[str, int] = {"": 0, "viewer": 1, "operator": 2, "admin": 3}
KINDS = ("gate", "queue")
SHOWN_SECONDS = 2.0
_POISON = "-poison"


class Rule(NamedTuple):
    """One rule as the database has it."""

    team: str
    kind: str
    pattern: str
    role: str

    def covers(self, kind: str, name: str) -> bool:
        return kind == self.kind and (
            fnmatchcase(name, self.pattern) or fnmatchcase(name.removesuffix(_POISON), self.pattern)
        )


def role_on(role: str, teams: frozenset[str], kind: str, name: str, among: Iterable[Rule]) -> Role:
    """The role that counts on a gate or queue; with no name: the highest that it can be anywhere."""
    if RANK.get(role, 0) == 0 or role == "admin":
        return cast(Role, role if role == "admin" else "")
    mine = [rule for rule in among if rule.team in teams and rule.kind == kind]
    if not name:
        return _highest([role, *(rule.role for rule in mine)])
    covering = [rule for rule in among if rule.covers(kind, name)]
    if not covering:
        return cast(Role, role)
    return _highest(["viewer", *(rule.role for rule in covering if rule.team in teams)])


def all_rules() -> tuple[Rule, ...]:
    """All rules, from the database."""
    found = TeamRule.objects.order_by("kind", "pattern", "team__name")
    return tuple(Rule(*row) for row in found.values_list("team__name", "kind", "pattern", "role"))


def owning_teams(kind: str, name: str, among: Iterable[Rule]) -> tuple[str, ...]:
    """The teams that a gate or queue belongs to; none if it is everybody's."""
    return tuple(sorted({rule.team for rule in among if rule.covers(kind, name)}))


class Permissions(NamedTuple):
    """What somebody may do where, for the pages: they show by it, and decide nothing."""

    role: str
    teams: frozenset[str] = frozenset()
    rules: tuple[Rule, ...] = ()

    def at(self, kind: str, name: str) -> Role:
        """The role that counts there."""
        return role_on(self.role, self.teams, kind, name, self.rules)

    def owners(self, kind: str, name: str) -> tuple[str, ...]:
        """The teams it belongs to; none if it is everybody's."""
        return owning_teams(kind, name, self.rules)


_shown: tuple[float, tuple[Rule, ...]] = (float("-inf"), ())


def permissions_of(role: str, teams: frozenset[str]) -> Permissions:
    """By rules at most two seconds old: pages are drawn several times a second."""
    global _shown
    at, known = _shown
    if time.monotonic() - at > SHOWN_SECONDS:
        known = all_rules()
        _shown = (time.monotonic(), known)
    return Permissions(role, teams, known)


def _highest(roles: list[str]) -> Role:
    return cast(Role, max(roles, key=lambda role: RANK.get(role, 0)))
