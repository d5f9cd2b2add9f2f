"""Who acts, and what they may do: the least role for each action, the teams' rules, what the workers of a token may claim.

Guarantees: with no rule every role counts everywhere. A name that a rule covers belongs to the teams of the rules that
cover it: their members have there the highest role such a rule gives them, and all others may only view it. Administrators act
everywhere; a user without a role does nothing anywhere. A poison queue belongs with its queue. Users who may view see all names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, cast

import msgspec
from allauth.account.authentication import AUTHENTICATION_METHODS_SESSION_KEY
from django.conf import settings
from django.http import HttpRequest
from msgspec import Meta

from dashboard.core.middleware import request_id_var
from dashboard.models import TeamRule

Role = Literal["admin", "operator", "viewer", ""]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
RANK: dict[str, int] = {"": 0, "viewer": 1, "operator": 2, "admin": 3}
KINDS = ("gate", "queue")
SHOWN_SECONDS = 2.0
_POISON = "-poison"


class PermissionRule(NamedTuple):
    """One rule as the database has it."""

    team: str
    kind: str
    pattern: str
    role: str

    def covers(self, kind: str, name: str) -> bool:
        return kind == self.kind and (
            fnmatchcase(name, self.pattern) or fnmatchcase(name.removesuffix(_POISON), self.pattern)
        )


def role_on(role: str, teams: frozenset[str], kind: str, name: str, among: Iterable[PermissionRule]) -> Role:
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


def all_rules() -> tuple[PermissionRule, ...]:
    """All rules, from the database."""
    found = TeamRule.objects.order_by("kind", "pattern", "team__name")
    return tuple(PermissionRule(*row) for row in found.values_list("team__name", "kind", "pattern", "role"))


def owning_teams(kind: str, name: str, among: Iterable[PermissionRule]) -> tuple[str, ...]:
    """The teams that a gate or queue belongs to; none if it is everybody's."""
    return tuple(sorted({rule.team for rule in among if rule.covers(kind, name)}))


class Permissions(NamedTuple):
    """What somebody may do where, for the pages: they show by it, and decide nothing."""

    role: str
    teams: frozenset[str] = frozenset()
    rules: tuple[PermissionRule, ...] = ()

    def at(self, kind: str, name: str) -> Role:
        """The role that counts there."""
        return role_on(self.role, self.teams, kind, name, self.rules)

    def owners(self, kind: str, name: str) -> tuple[str, ...]:
        """The teams it belongs to; none if it is everybody's."""
        return owning_teams(kind, name, self.rules)


_shown: tuple[float, tuple[PermissionRule, ...]] = (float("-inf"), ())


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


# The least role for each action; an action that is not listed may be done by nobody.
ACTIONS: dict[str, Role] = {
    "page.view": "viewer",
    "wallboard.view": "viewer",
    "audit.export": "viewer",
    "audit.prune": "admin",
    "sequence.statement": "viewer",
    "gate.open": "operator",
    "gate.close": "operator",
    "gate.create": "operator",
    "queue.create": "operator",
    "queue.put": "operator",
    "queue.peek": "operator",
    "queue.requeue": "operator",
    "queue.abort": "operator",
    "queue.rule": "operator",
    "scaling.policy": "operator",
    "cost.prices": "operator",
    "batch.retry": "operator",
    "batch.cancel": "operator",
    "saga.retry": "operator",
    "saga.repair": "operator",
    "queue.delete_messages": "admin",
    "queue.clear": "admin",
    "queue.delete": "admin",
    "leader.step_down": "operator",
    "leader.break": "admin",
    "worker.drain": "operator",
    "worker.resume": "operator",
    "worker.stop": "operator",
    "alert.acknowledge": "operator",
    "alert.silence": "operator",
    "alert.rule": "admin",
    "alert.channel": "admin",
    "alert.test": "admin",
    "token.create": "admin",
    "token.revoke": "admin",
    "team.rule": "admin",
    "team.member": "admin",
    "person.add": "admin",
    "person.role": "admin",
    "person.disable": "admin",
    "person.enable": "admin",
    "person.reset_password": "admin",
    "person.reset_factor": "admin",
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
    return cast(Role, min(one, other, key=lambda role: RANK.get(role, 0)))


def role_may(
    role: str,
    action: str,
    target: str = "",
    teams: frozenset[str] = frozenset(),
    rules: Callable[[], tuple[PermissionRule, ...]] = tuple,
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
    return RANK.get(role, 0) >= RANK[needed]


@dataclass(frozen=True)
class Actor:
    """Who does something, and from where. Created for each request, frame or command, so that rights are those of now."""

    name: str
    role: str
    address: str = ""
    request_id: str = ""
    teams: frozenset[str] = frozenset()
    by_token: bool = field(default=False, compare=False)
    """Whether a token acts, and not a person at a keyboard."""
    fresh: bool = field(default=True, compare=False)
    """Whether the sign-in behind it is recent enough for what destroys. Tokens and the command line have none to repeat."""

    @classmethod
    def from_request(cls, request: HttpRequest) -> Actor:
        return cls.of(
            request.user,
            address=request.META.get("REMOTE_ADDR") or "",
            request_id=request_id_var.get(),
            fresh=is_fresh(request.session),
        )

    @classmethod
    def of(cls, user: Any, *, address: str = "", request_id: str = "", fresh: bool = True) -> Actor:
        """The user as the database knows them now; anonymous may do nothing."""
        name = user.get_username() or "anonymous"
        return cls(name, role_of(user), address, request_id, teams_of(user), fresh=fresh)

    @cached_property
    def rules(self) -> tuple[PermissionRule, ...]:
        """The teams' rules, read once for each actor."""
        return all_rules()

    @cached_property
    def decisions(self) -> dict[tuple[str, str], str]:
        """What `dashboard.pages.views.decide` has decided."""
        return {}


Patterns = Annotated[
    str, Meta(min_length=1, max_length=200, pattern=r"\A[A-Za-z0-9._*?@:-]+( [A-Za-z0-9._*?@:-]+)*\Z")
]


class Allowance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Patterns are names with ``*`` and ``?``, several with a space between.

    `workers`: the names of its workers. `gates`, `queues`: what they may report, announce and receipt. `connections`:
    sockets open at once in one dashboard process. `instances`: starts of processes that are remembered at once, those
    that have gone within ten minutes among them. `per_second`: frames of one socket, in the long run.
    """

    workers: Patterns = "*"
    gates: Patterns = "*"
    queues: Patterns = "*"
    connections: Annotated[int, Meta(ge=1, le=20_000)] = 1_000
    instances: Annotated[int, Meta(ge=1, le=50_000)] = 2_000
    per_second: Annotated[int, Meta(ge=2, le=50)] = 50

    @property
    def is_usual(self) -> bool:
        return self == USUAL


USUAL = Allowance()
"""What a token made before allowances may claim, and one that a program keeps without saying more."""
NEW = Allowance(connections=100, instances=400)
"""What a token gets that is made by form, command or API, if its maker does not say otherwise."""


def matches(patterns: str, name: str) -> bool:
    """Whether one of the patterns covers the name."""
    return patterns == "*" or any(fnmatchcase(name, each) for each in patterns.split(" "))


def encode_allowance(allowance: Allowance) -> str:
    """As kept with the token; "" for the usual one."""
    return "" if allowance.is_usual else msgspec.json.encode(allowance).decode()


def decode_allowance(text: str) -> Allowance:
    """As kept. An allowance that cannot be read allows nothing by name, rather than everything."""
    if not text:
        return USUAL
    try:
        return msgspec.json.decode(text, type=Allowance)
    except msgspec.DecodeError:
        return Allowance(workers="-", gates="-", queues="-", connections=1, instances=1, per_second=2)


def is_fresh(session: Mapping[str, Any] | Any) -> bool:
    """Whether its person has shown password, code or provider within `settings.FRESH_SECONDS`."""
    records = session.get(AUTHENTICATION_METHODS_SESSION_KEY) or ()
    newest = max((float(record.get("at", 0.0)) for record in records), default=0.0)
    return time.time() - newest <= float(settings.FRESH_SECONDS)


def decide(actor: Actor, action: str, target: str = "") -> str:
    """Why the actor may not do this to that; "" if they may. Decided once for each actor."""
    key = (action, target)
    if key not in actor.decisions:
        actor.decisions[key] = _why_not(actor, action, target)
    return actor.decisions[key]


def _why_not(actor: Actor, action: str, target: str) -> str:
    if role_may(actor.role, action, target, actor.teams, lambda: actor.rules):
        return ""
    if not actor.role:
        return f"{actor.name} has no role; ask an administrator for one."
    owners = owning_teams(action.partition(".")[0], target, actor.rules)
    team = f", in the team {' or '.join(owners)} that {target} belongs to" if owners else ""
    return f"{actor.name} ({actor.role}) may not do this: {action} needs the role {ACTIONS.get(action, 'nobody')}{team}."
