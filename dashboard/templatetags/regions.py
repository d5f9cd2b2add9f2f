"""A region within its page: one that cannot be drawn costs itself, not the page."""

from __future__ import annotations

import logging
from typing import Any

from django import template
from django.template.base import Parser, Token
from template_partials.templatetags.partials import partial_func

from dashboard.live.fragments import unreadable

register = template.Library()
log = logging.getLogger(__name__)


class RegionNode(template.Node):
    """Renders a named partial; if that fails, says so in its place."""

    def __init__(self, name: str, inner: template.Node) -> None:
        self.name, self.inner = name, inner

    def render(self, context: Any) -> Any:
        try:
            return self.inner.render(context)
        except Exception as error:
            log.exception("The region %s could not be drawn", self.name)
            return unreadable(self.name, error, oob=bool(context.get("oob")))


@register.tag
def region(parser: Parser, token: Token) -> RegionNode:
    """``{% region gates %}``: as ``{% partial gates %}``, but with something to show if it fails."""
    return RegionNode(token.split_contents()[1], partial_func(parser, token))


@register.tag
def guard(parser: Parser, token: Token) -> RegionNode:
    """``{% guard pulse %}…{% endguard %}``: what is within, or that it cannot be drawn."""
    within = parser.parse(("endguard",))
    parser.delete_first_token()
    return RegionNode(token.split_contents()[1], _Nodes(within))


class _Nodes(template.Node):
    def __init__(self, nodes: template.NodeList) -> None:
        self.nodes = nodes

    def render(self, context: Any) -> Any:
        return self.nodes.render(context)
