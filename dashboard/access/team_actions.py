"""Who belongs to which team, and what teams act on."""

from __future__ import annotations

import json
import re

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group

from dashboard.core.audit import ActionFailed, audited
from dashboard.core.permissions import KINDS, ROLES, Actor
from dashboard.models import TeamRule

_TEAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,79}")
_PATTERN = re.compile(r"[a-z0-9*?\[\]!-]{1,80}")


def add_rule(actor: Actor, team: str, kind: str, pattern: str, role: str, *, reason: str = "") -> None:
    """Give a team a role on the gates or queues whose names match, and take it from all others but administrators.

    Makes the team if there is none of that name; a rule of the same team, kind and pattern is replaced.
    """
    with audited(actor, "team.rule", team, reason) as act:
        if kind not in KINDS:
            raise ActionFailed(
                "A rule is for {kinds}, not for {kind!r}.".format(kinds=" or ".join(KINDS), kind=kind[:40])
            )
        if role not in ROLES:
            raise ActionFailed(
                "A role is {roles}, not {role!r}.".format(roles=", ".join(ROLES), role=role[:40])
            )
        if not _PATTERN.fullmatch(pattern):
            raise ActionFailed(
                "A pattern is a name in which * matches any characters and ? matches one, such as orders-*."
            )
        group = _team(team)
        old = TeamRule.objects.filter(team=group, kind=kind, pattern=pattern).first()
        act.before = _described(old) if old is not None else ""
        row, _made = TeamRule.objects.update_or_create(
            team=group, kind=kind, pattern=pattern, defaults={"role": role}
        )
        act.after = _described(row)


def remove_rule(actor: Actor, rule_id: int, *, reason: str = "") -> None:
    """Take a rule away. Resources that no rule covers follow the roles again."""
    row = TeamRule.objects.select_related("team").filter(pk=rule_id).first()
    with audited(actor, "team.rule", row.team.name if row is not None else f"#{rule_id}", reason) as act:
        if row is None:
            raise ActionFailed("This rule no longer exists.")
        act.before = _described(row)
        row.delete()


def set_member(actor: Actor, team: str, user: str, *, member: bool, reason: str = "") -> None:
    """Add a user to a team, or remove one; it counts at once, on open sockets within seconds."""
    with audited(actor, "team.member", user, reason) as act:
        found = get_user_model().objects.filter(username=user).first()
        if found is None:
            raise ActionFailed(f"User {user[:80]!r} does not exist.")
        group = _team(team, make=member)
        act.before = json.dumps(sorted(found.groups.values_list("name", flat=True)))
        if member:
            found.groups.add(group)
        else:
            found.groups.remove(group)
        act.after = json.dumps(sorted(found.groups.values_list("name", flat=True)))


_SEEN_AS = str.maketrans({"0": "o", "1": "i", "l": "i", "|": "i", "3": "e", "5": "s", "4": "a", "7": "t"})


def _looks_like(name: str) -> str:
    """What people read when they see a name: case, separators and signs of like shape make no difference."""
    letters = re.sub(r"[^a-z]", "", name.casefold().translate(_SEEN_AS))
    return letters.replace("rn", "m").replace("vv", "w")


_RESERVED = {_looks_like(word + end) for word in (*ROLES, "administrator", "superuser") for end in ("", "s")}


def _team(name: str, *, make: bool = True) -> Group:
    if _looks_like(name) in _RESERVED:
        raise ActionFailed(f"{name} is a role or looks like one; choose another team name.")
    if not _TEAM.fullmatch(name):
        raise ActionFailed(
            "A team has a name of 1-80 letters, digits, spaces, dots, hyphens and underscores."
        )
    if make:
        return Group.objects.get_or_create(name=name)[0]
    found = Group.objects.filter(name=name).first()
    if found is None:
        raise ActionFailed(f"Team {name!r} does not exist.")
    return found


def _described(rule: TeamRule) -> str:
    return json.dumps({"kind": rule.kind, "pattern": rule.pattern, "role": rule.role})
