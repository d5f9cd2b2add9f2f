"""Named parts of the pages that change while somebody looks: one template each for page, htmx answer and socket push.

A region depends on the fleet, the role, the teams and the page's query, never on the person, so one rendering serves every
viewer of that role and those teams. How old the figures are is not in the regions but in `pulse`, so that a region's text changes only when its
content does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from django.http import HttpRequest, QueryDict
from django.template import engines
from django.template.backends.django import Template
from django.template.context import make_context
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from dashboard.core.pages import registry
from dashboard.core.permissions import Permissions
from dashboard.live import view_models
from dashboard.live.fleet import Fleet

log = logging.getLogger(__name__)

COMMON = ("pulse", "status", "storage", "nav", "announce")


class UnknownPage(LookupError):
    """There is no such page; the message lists those there are."""


def fragments_of(page: str) -> tuple[str, ...]:
    """The regions of a page, the common ones first; raises `UnknownPage` for a page that does not exist."""
    known = registry().by_name
    if page not in known:
        raise UnknownPage(f"no page {page!r}; there are {', '.join(sorted(known))}")
    return COMMON + known[page].fragments


def context_of(
    page: str, fleet: Fleet, role: str, query: str = "", permissions: Permissions | None = None
) -> dict[str, Any]:
    """What every region and page may read; what costs something is made when it is used.

    `query` is the page's query string, without "?"; `permissions` what the readers may do where, by default all that their
    role allows.
    """
    pages, asked = registry(), QueryDict(query)
    when_used: dict[str, Callable[[], Any]] = {
        "pulse": lambda: view_models.pulse(fleet, pages.by_name[page].graphs(fleet, asked)),
        "counts": lambda: view_models.counts(fleet),
        "announcement": lambda: view_models.announcement(fleet),
        **{name: partial(make, fleet, asked) for name, make in pages.context.items()},
    }
    return {
        "page": page,
        "section": pages.by_name[page].part_of or page,
        "navigation": pages.navigation,
        "fleet": fleet,
        "role": role,
        "may_act": role in ("operator", "admin"),
        "is_admin": role == "admin",
        "permissions": permissions or Permissions(role),
        "query": asked,
        **{name: _Once(make) for name, make in when_used.items()},
    }


class _Once:
    """Makes a value when a template first calls for it: templates do so at each mention."""

    __slots__ = ("_make", "_value")

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make

    def __call__(self) -> Any:
        if self._make is not None:
            self._value, self._make = self._make(), None
        return self._value


def render_each(
    page: str, fleet: Fleet, role: str, query: str = "", permissions: Permissions | None = None
) -> dict[str, str]:
    """Every region of a page by name: the full state, read once for all of them."""
    context = {**context_of(page, fleet, role, query, permissions), "oob": True}
    return {name: _drawn_or_said(page, name, context) for name in fragments_of(page)}


def draw(template: Template, context: dict[str, Any], request: HttpRequest | None = None) -> SafeString:
    """The text of a template. Nothing of its context waits for the garbage collector, which stops all threads.

    Django's contexts and what is pushed onto them refer to each other: some three hundred objects a page.
    """
    made = make_context(context, request)
    try:
        text: SafeString = template.template.render(made)
        return text
    finally:
        made.dicts.clear()
        made.render_context.dicts.clear()


def _drawn_or_said(page: str, name: str, context: dict[str, Any]) -> str:
    """The region; one that cannot be drawn says so, and the others go on."""
    try:
        return str(draw(_template(page, name), context))
    except Exception as error:
        log.exception("The region %s of %s could not be drawn", name, page)
        return unreadable(name, error, oob=True)


def unreadable(name: str, error: Exception, *, oob: bool) -> SafeString:
    """Shown in place of a region that cannot be drawn."""
    return format_html(
        '<div id="region-{}"{}><p class="banner tone-red" role="alert">{}</p></div>',
        name,
        mark_safe(' hx-swap-oob="morph"') if oob else "",
        f"unreadable: {type(error).__name__}. This part cannot be drawn; see the dashboard's log.",
    )


def render_all(
    page: str, fleet: Fleet, role: str, query: str = "", permissions: Permissions | None = None
) -> SafeString:
    """Every region of a page, as one text."""
    return mark_safe("\n".join(render_each(page, fleet, role, query, permissions).values()))


@cache
def _template(page: str, region: str) -> Template:
    source = "live/common.html" if region in COMMON else registry().by_name[page].template
    engine = engines["django"]
    template: Template = engine.get_template(f"{source}#{region}")  # type: ignore[assignment]
    return template
