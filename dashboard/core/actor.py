"""Who does something, and from where."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from django.http import HttpRequest

from dashboard.accounts import sessions
from dashboard.core.middleware import request_id_var
from dashboard.core.permissions import role_of, teams_of


@dataclass(frozen=True)
class Actor:
    """Who does something, and from where."""

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
        made = cls.of(
            request.user, address=request.META.get("REMOTE_ADDR") or "", request_id=request_id_var.get()
        )
        return replace(made, fresh=sessions.is_fresh(request.session))

    @classmethod
    def of(cls, user: Any, *, address: str = "", request_id: str = "") -> Actor:
        """The user as the database knows them now; None and anonymous may do nothing."""
        name = user.get_username() if user is not None else ""
        role = role_of(user) if user is not None else ""
        return cls(name or "anonymous", role, address, request_id, teams_of(user))
