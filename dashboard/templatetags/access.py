"""What templates ask about teams: `reach` is in every page's and region's context."""

from __future__ import annotations

from django import template

from dashboard.core.teams import Reach

register = template.Library()


@register.filter
def acts_on_gate(reach: Reach, name: str) -> bool:
    """Whether these people may open and close this gate."""
    return reach.at("gate", name) in ("operator", "admin")


@register.filter
def teams_of_gate(reach: Reach, name: str) -> str:
    """The teams that a gate belongs to, for reading; "" if it is everybody's."""
    return ", ".join(reach.whose("gate", name))


@register.filter
def teams_of_queue(reach: Reach, name: str) -> str:
    """The teams that a queue belongs to, for reading; "" if it is everybody's."""
    return ", ".join(reach.whose("queue", name))
