"""From one page to the next: number → range → worker → its messages → what people did to it."""

from __future__ import annotations

from functools import lru_cache

from django import template
from django.urls import reverse

from dashboard.core.views import query_of

register = template.Library()


@lru_cache(maxsize=1024)
def _page(name: str, *args: str) -> str:
    """Tables ask for the same addresses again and again, and finding one takes longer than a cell."""
    return reverse(name, args=args)


@register.filter
def gate_url(name: str) -> str:
    """The gate of that name among the gates."""
    return f"{_page('gates')}?{query_of(q=name)}#gate-{name}"


@register.filter
def queue_url(name: str) -> str:
    """The page of a queue."""
    return _page("queue", name)


@register.filter
def act_url(instance: str, verb: str) -> str:
    """Where a worker is told to drain, resume or stop."""
    return _page("worker-do", instance, verb)


@register.filter
def worker_url(name: str) -> str:
    """The worker of that name among the workers."""
    return f"{_page('workers')}?{query_of(q=name)}"


@register.filter
def ranges_url(owner: str, sequence: str) -> str:
    """The ranges of a sequence that an owner was granted."""
    return f"{_page('sequences')}?{query_of(sequence=sequence, owner=owner)}#ledger"


@register.filter
def audit_url(name: str) -> str:
    """What people did to it."""
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
            return reverse("queue", args=[target]) if second == "" else ""
        case "worker":
            return worker_url(target)
        case "leader":
            return f"{reverse('leaders')}?{query_of(election=target)}#terms"
        case "batch" if second:
            return f"{reverse('batches')}?{query_of(pipeline=first, batch=second)}#detail"
        case "saga" if second:
            return f"{reverse('batches')}?{query_of(saga=first, key=second)}#detail"
        case "scaling":
            return f"{reverse('scaling')}?{query_of(pool=target)}"
        case "token" | "team":
            return reverse("access")
        case _:
            return ""
