"""What every template may use."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest

from dashboard.core.permissions import role_of


def kennel(request: HttpRequest) -> dict[str, Any]:
    """`role`: the highest role of the signed-in user; `has_tour`: whether pages show the demo's guided tour."""
    user = getattr(request, "user", None)
    return {"role": role_of(user) if user is not None else "", "has_tour": settings.TOUR}
