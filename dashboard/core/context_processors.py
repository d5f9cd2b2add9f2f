"""What every template may use."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from dashboard.core.permissions import ACTIONS, role_may, role_of


def kennel(request: HttpRequest) -> dict[str, Any]:
    """`role`, and `can` with one entry per action (``can.gate_open``)."""
    user = getattr(request, "user", None)
    role = role_of(user) if user is not None else ""
    return {"role": role, "can": {name.replace(".", "_"): role_may(role, name) for name in ACTIONS}}
