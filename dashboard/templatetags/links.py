"""From one page to the next: number → range → worker → its messages → its audit entries."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from django import template
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from dashboard.core.pages import Page
from dashboard.live.fleet import QueueView
from dashboard.pages.views import query_of
from dashboard.templatetags.kennel import figure, icon

register = template.Library()


@lru_cache(maxsize=1024)
def _page(name: str, *args: str) -> str:
    """Tables ask for the same addresses again and again, and finding one takes longer than a cell."""
    return reverse(name, args=args)


@register.simple_tag(takes_context=True)
def page_link(context: Mapping[str, Any], page: Page, counts: Mapping[str, int]) -> SafeString:
    """A page in the navigation, with how many of its things need attention."""
    badge = next((each for each in page.badges if counts[each.figure]), None)
    return format_html(
        '<a href="{}"{}{}>{}<span>{}</span>{}</a>',
        _page(page.name),
        format_html(' data-key="{}"', page.key) if page.key else "",
        mark_safe(' aria-current="page"') if context.get("section") == page.name else "",
        icon(page.icon or page.name),
        page.title,
        format_html(
            '<span class="count tone-{}"><span class="visually-hidden">: </span>{} <span class="count-word">{}</span></span>',
            badge.tone, figure(counts[badge.figure]), badge.word,
        )
        if badge
        else "",
    )  # fmt: skip


@register.filter
def address_of(name: str, thing: str) -> str:
    """The address of that name for a gate or queue: ``{{ "gate-unleash"|address_of:gate.name }}``."""
    return _page(name, thing)


@register.filter
def gate_url(name: str) -> str:
    """The gate of that name among the gates."""
    return f"{_page('gates')}?{query_of(q=name)}#gate-{name}"


@register.filter
def election_url(name: str) -> str:
    """The election of that name among the elections."""
    return f"{_page('leaders')}?{query_of(q=name)}#election-{name}"


@register.filter
def queue_url(name: str) -> str:
    """The page of a queue."""
    return _page("queue", name)


@register.simple_tag
def poison_count(queue: QueueView, may_act: bool) -> str:
    """How many messages of a queue are in poison; for those who may see them a link to them."""
    count = figure(queue.poison)
    if not queue.poison or not may_act:
        return count
    return format_html('<a href="{}">{}</a>', _page("queue-poison", queue.name), count)


@register.filter
def act_url(instance: str, verb: str) -> str:
    """Where a worker is sent that command."""
    return _page("worker-do", instance, verb)


@register.filter
def act_on_selected_url(verb: str) -> str:
    """Where the selected workers are sent that command."""
    return _page(f"workers-{verb}")


@register.filter
def worker_place(name: str) -> str:
    """The first row of that name among the workers."""
    return f"{_page('workers')}#worker-{quote(name, safe='/')}"


@register.filter
def worker_url(name: str) -> str:
    """The worker of that name among the workers."""
    return f"{_page('workers')}?{query_of(q=name)}"


@register.filter
def instance_url(instance: str) -> str:
    """The page of one worker process."""
    return f"{_page('workers')}{quote(instance, safe='')}/"


@register.filter
def ranges_url(owner: str, sequence: str) -> str:
    """The ranges of a sequence that an owner was granted."""
    return f"{_page('sequences')}?{query_of(sequence=sequence, owner=owner)}#ledger"


@register.filter
def ledger_csv_url(sequence: str, owner: str) -> str:
    """The ledger of a sequence as CSV, of one owner or of all."""
    return f"{_page('ledger-csv')}?{query_of(sequence=sequence, owner=owner)}"


@register.filter
def batch_url(pipeline: str, batch: str) -> str:
    """The details of a batch."""
    return f"{_page('batches')}?{query_of(pipeline=pipeline, batch=batch)}#detail"


@register.filter
def saga_url(saga: str, key: str) -> str:
    """The details of a saga."""
    return f"{_page('batches')}?{query_of(saga=saga, key=key)}#detail"


@register.filter
def audit_url(name: str) -> str:
    """The audit entries about it."""
    return f"{_page('audit')}?{query_of(q=name)}"


@register.filter
def target_url(target: str, action: str) -> str:
    """Where the target of an audited action is shown; "" if it has no page."""
    kind = action.partition(".")[0]
    first, _, second = target.partition("/")
    if not target:
        return ""
    match kind:
        case "gate":
            return gate_url(target)
        case "queue":
            return _page("queue", target) if second == "" else ""
        case "worker":
            return worker_url(target)
        case "leader":
            return f"{_page('leaders')}?{query_of(election=target)}#terms"
        case "batch" if second:
            return batch_url(first, second)
        case "saga" if second:
            return saga_url(first, second)
        case "scaling":
            return f"{_page('scaling')}?{query_of(pool=target)}"
        case "token" | "team":
            return _page("access")
        case _:
            return ""
