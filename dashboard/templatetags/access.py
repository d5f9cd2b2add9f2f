"""What templates ask about teams: `permissions` (`Permissions`) is in every page's and region's context."""

from __future__ import annotations

from django import template

from dashboard.core.permissions import Permissions

register = template.Library()


@register.filter
def acts_on_gate(permissions: Permissions, name: str) -> bool:
    """Whether these people may open and close this gate."""
    return permissions.at("gate", name) in ("operator", "admin")


@register.filter
def teams_of_gate(permissions: Permissions, name: str) -> str:
    """The teams that a gate belongs to, for reading; "" if it is everybody's."""
    return ", ".join(permissions.owners("gate", name))


@register.filter
def teams_of_queue(permissions: Permissions, name: str) -> str:
    """The teams that a queue belongs to, for reading; "" if it is everybody's."""
    return ", ".join(permissions.owners("queue", name))
