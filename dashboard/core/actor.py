"""Who does something, and from where."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django.http import HttpRequest

from dashboard.accounts import sessions
from dashboard.core.middleware import request_id_var
from dashboard.core.permissions import role_of, teams_of
from dashboard.core.teams import Rule, all_rules


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
            fresh=sessions.is_fresh(request.session),
        )

    @classmethod
    def of(cls, user: Any, *, address: str = "", request_id: str = "", fresh: bool = True) -> Actor:
        """The user as the database knows them now; anonymous may do nothing."""
        name = user.get_username() or "anonymous"
        return cls(name, role_of(user), address, request_id, teams_of(user), fresh=fresh)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The teams' rules, read once for each actor."""
        return all_rules()

    @cached_property
    def decisions(self) -> dict[tuple[str, str], str]:
        """What `dashboard.core.guard.decide` has decided."""
        return {}
