"""Pieces of a page that are the same in most renderings: drawn once for each set of values that they depend on."""

from __future__ import annotations

from typing import Any

from django import template
from django.template.base import FilterExpression, Parser, Token

register = template.Library()

MOST = 1_000
"""Renderings kept of one piece: the rows of twenty pages."""


class MemoNode(template.Node):
    """What is within, drawn once for each set of values. Safe to be drawn by several threads at once."""

    def __init__(self, values: list[FilterExpression], within: template.NodeList) -> None:
        self.values = values
        self.nodelist = within
        self.drawn: dict[tuple[Any, ...], str] = {}

    def render(self, context: Any) -> Any:
        values = tuple([value.resolve(context) for value in self.values])
        text = self.drawn.get(values)
        if text is None:
            if len(self.drawn) >= MOST:
                self.drawn.clear()
            text = self.drawn[values] = self.nodelist.render(context)
        return text


@register.tag
def memo(parser: Parser, token: Token) -> MemoNode:
    """``{% memo worker.name may_act %}…{% endmemo %}``: everything that the text within depends on must be named.

    The values must be hashable and compare by what they say: texts, numbers, tuples and frozen structs of these.
    """
    values = [parser.compile_filter(bit) for bit in token.split_contents()[1:]]
    if not values:
        raise template.TemplateSyntaxError("memo needs the values that its text depends on")
    within = parser.parse(("endmemo",))
    parser.delete_first_token()
    return MemoNode(values, within)
