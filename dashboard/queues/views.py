"""Queues: depth, tasks, poison; make, put, requeue, clear, delete."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from coordinator.queues.rules import Steps
from dashboard.core.guard import requires
from dashboard.core.views import act, confirm, is_confirmed, permissions_of, query_of, show, text
from dashboard.live import queries as selectors
from dashboard.live.fleet import QueueView
from dashboard.queues import actions, rules
from dashboard.queues.rule_views import STEPS


@require_http_methods(["GET", "HEAD", "POST"])
def queues(request: HttpRequest) -> HttpResponse:
    return create(request) if request.method == "POST" else index(request)


@requires("page.view")
def index(request: HttpRequest) -> HttpResponse:
    query = query_of(q=request.GET.get("q", "")[:63], sort=request.GET.get("sort", "")[:10])
    return show(request, "queues/queues.html", "queues", query=query)


@requires("queue.create")
def create(request: HttpRequest) -> HttpResponse:
    name = text(request, "name", 63)
    return act(
        request,
        lambda actor: actions.create_queue(actor, name),
        f"Queue {name} created.",
        back=reverse("queues"),
    )


@require_safe
@requires("page.view")
def queue(request: HttpRequest, name: str) -> HttpResponse:
    found = _find(name)
    rule = rules.stored(name)
    steps = rule.rule.steps if isinstance(rule.rule, Steps) else ()
    rows = [(n, *(steps[n] if n < len(steps) else ("", ""))) for n in range(STEPS)]
    here = permissions_of(request).at("queue", name)
    return show(
        request,
        "queues/queue.html",
        "queue",
        query=query_of(name=found.name),
        name=name,
        rule=rule,
        step_rows=rows,
        may_act=here in ("operator", "admin"),
        is_admin=here == "admin",
    )


def _find(name: str) -> QueueView:
    fleet = selectors.fleet()
    for each in fleet.queues:
        if each.name == name:
            return each
    if fleet.storage.as_of is None:
        return QueueView(name)  # nothing was read yet, so nothing is known to be missing
    raise Http404(name)


@require_http_methods(["GET", "HEAD", "POST"])
def do(request: HttpRequest, name: str, verb: str) -> HttpResponse:
    return {"put": put, "requeue": requeue, "clear": clear, "delete": delete}[verb](request, name=name)


@requires("queue.put")
def put(request: HttpRequest, name: str) -> HttpResponse:
    back = reverse("queue", args=[name])
    if request.method != "POST":
        return redirect(back)
    body = text(request, "body", 48_000)
    return act(
        request,
        lambda actor: actions.put_message(actor, name, body),
        "Message sent.",
        back=back,
    )


@requires("queue.requeue")
def requeue(request: HttpRequest, name: str) -> HttpResponse:
    back = reverse("queue", args=[name])
    if request.method != "POST":
        return redirect(back)
    return act(
        request,
        lambda actor: actions.requeue_poison(actor, name),
        f"Requeueing the poison messages of {name}.",
        back=back,
    )


@requires("queue.clear")
def clear(request: HttpRequest, name: str) -> HttpResponse:
    """Asks for the typed name, then deletes every message."""
    back = reverse("queue", args=[name])
    if is_confirmed(request, name):
        return act(
            request,
            lambda actor: actions.clear_queue(actor, name),
            f"Queue {name} cleared.",
            back=back,
        )
    lost = _find(name).depth
    return confirm(
        request,
        name,
        back=back,
        title=f"Clear {name}?",
        verb="Clear",
        consequences=(
            (
                "An unknown number of messages is deleted."
                if lost is None
                else f"About {lost:,} messages are deleted."
            ),
            "In-flight messages finish but will not be retried.",
            "This cannot be undone.",
        ),
    )


@requires("queue.delete")
def delete(request: HttpRequest, name: str) -> HttpResponse:
    """Asks for the typed name, then deletes the queue."""
    if is_confirmed(request, name):
        return act(
            request,
            lambda actor: actions.delete_queue(actor, name),
            f"Queue {name} deleted.",
            back=reverse("queues"),
        )
    found = _find(name)
    return confirm(
        request,
        name,
        back=reverse("queue", args=[name]),
        title=f"Delete {name}?",
        verb="Delete",
        consequences=(
            (
                "The queue and an unknown number of messages are deleted."
                if found.depth is None
                else f"The queue and about {found.depth:,} messages are deleted."
            ),
            f"{found.workers} workers listen to this queue; they fail until it exists again.",
            "The service refuses to create a queue of this name again for about 30 seconds.",
            "This cannot be undone.",
        ),
    )
