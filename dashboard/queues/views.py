"""Queues: depth, tasks, poison, messages, rules; create, send, requeue, clear, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.defaultfilters import pluralize
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from coordinator.errors import ConfigurationError
from coordinator.queues.envelope import poison_name
from coordinator.queues.rules import ScalingRule, Steps, TargetLatency
from dashboard.live.fleet import QueueView
from dashboard.pages import queries as selectors
from dashboard.pages.bulk import Act, act_on_each, allowed, selected
from dashboard.pages.views import act, confirm, is_confirmed, permissions_of, query_of, requires, show, text
from dashboard.queues import actions, queries


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
    rule = queries.stored(name)
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


@require_POST
@requires("queue.requeue")
def requeue_selected(request: HttpRequest) -> HttpResponse:
    """Asks for "requeue n" with the poison messages of each, then requeues them."""
    return _act_on_selected(
        request,
        "requeue",
        actions.requeue_poison,
        lambda queue: queue.poison,
        title=lambda n: f"Requeue the poison messages of {n} queue{pluralize(n)}?",
        line="{queue}: {count} poison messages",
        verb="Requeue all",
        done=lambda n: f"Requeueing the poison messages of {n} queue{pluralize(n)}.",
        consequences=("Requeueing resets the attempt count.",),
    )  # fmt: skip


@require_POST
@requires("queue.clear", back="queues")
def clear_selected(request: HttpRequest) -> HttpResponse:
    """Asks for "clear n" with what each queue holds, then deletes every message in them."""
    return _act_on_selected(
        request,
        "clear",
        actions.clear_queue,
        lambda queue: queue.depth,
        title=lambda n: f"Clear {n} queue{pluralize(n)}?",
        line="{queue}: about {count} to be deleted",
        verb="Clear all",
        done=lambda n: "1 queue was cleared." if n == 1 else f"{n} queues were cleared.",
        consequences=(
            "In-flight messages finish but will not be retried.",
            "This cannot be undone.",
        ),
    )  # fmt: skip


def _act_on_selected(
    request: HttpRequest,
    act: str,
    action: Act,
    count: Callable[[Any], int | None],
    *,
    title: Callable[[int], str],
    line: str,
    verb: str,
    done: Callable[[int], str],
    consequences: tuple[str, ...],
) -> HttpResponse:
    back = reverse("queues")
    ticked = [name for name in selected(request) if allowed(request, f"queue.{act}", name)]
    phrase = f"{act} {len(ticked)}"
    if not ticked or text(request, "typed").casefold() == phrase:
        return act_on_each(request, ticked, action, done, back=back)
    known = {queue.name: queue for queue in selectors.fleet().queues}
    lines = []
    for name in ticked:
        held = count(known[name]) if name in known else None
        lines.append(line.format(queue=name, count="an unknown number of" if held is None else f"{held:,}"))
    return confirm(
        request,
        phrase,
        names=ticked,
        title=title(len(ticked)),
        verb=verb,
        back=back,
        consequences=(*lines, *consequences),
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
    return act(request, lambda actor: actions.put_message(actor, name, body), "Message sent.", back=back)


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
            request, lambda actor: actions.clear_queue(actor, name), f"Queue {name} cleared.", back=back
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
                "An unknown number of messages will be deleted."
                if lost is None
                else f"About {lost:,} message{pluralize(lost)} will be deleted."
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
                "The queue and an unknown number of messages will be deleted."
                if found.depth is None
                else f"The queue and about {found.depth:,} message{pluralize(found.depth)} will be deleted."
            ),
            f"Workers that listen to this queue: {found.workers}. They fail until it exists again.",
            "The service refuses to create a queue of this name again for about 30 seconds.",
            "This cannot be undone.",
        ),
    )


STEPS = 4


@require_POST
@requires("queue.rule")
def rule(request: HttpRequest, name: str) -> HttpResponse:
    """`kind` is steps, target or own; the other fields are those of that rule."""
    back = f"{reverse('queue', args=[name])}#rule"
    try:
        wanted = _read(request)
    except (ValueError, ConfigurationError) as error:
        messages.error(request, f"The rule was not changed: {error}.")
        return redirect(back)
    done = f"{name} uses {'the workers’ default rule' if wanted is None else 'the new rule'} within seconds."
    return act(
        request,
        lambda actor: actions.store_rule(actor, name, wanted, reason=text(request, "reason")),
        done,
        back=back,
    )


def _read(request: HttpRequest) -> ScalingRule | None:
    kind = text(request, "kind")
    if kind == "own":
        return None
    if kind == "target":
        return TargetLatency(
            seconds=float(_number(request, "seconds")),
            minimum=int(_number(request, "minimum")),
            maximum=int(_number(request, "maximum")),
        )
    if kind != "steps":
        raise ValueError("choose a kind of rule")
    rows = ((text(request, f"below{n}"), text(request, f"tasks{n}")) for n in range(STEPS))
    steps = []
    for below, tasks in rows:
        if below or tasks:
            if not below.isdecimal() or not tasks.isdecimal():
                raise ValueError("each step needs a depth and a number of tasks")
            steps.append((int(below), int(tasks)))
    return Steps(steps=tuple(steps), beyond=int(_number(request, "beyond")))


def _number(request: HttpRequest, name: str) -> str:
    value = text(request, name, 12)
    try:
        float(value)
    except ValueError:
        raise ValueError(f"{name} must be a number, not {value!r}") from None
    return value


def _messages_page(name: str) -> str:
    return f"{reverse('queue-messages', args=[name])}?of=poison"


@require_POST
@requires("queue.requeue")
def retry_messages(request: HttpRequest, name: str) -> HttpResponse:
    """Puts the selected poison messages back."""
    back, ids = _messages_page(name), selected(request)
    if not ids:
        messages.warning(request, "Select at least one message.")
        return redirect(back)
    return act(
        request,
        lambda actor: actions.retry_messages(actor, name, ids),
        f"{len(ids)} message{pluralize(len(ids))} requeued.",
        back=back,
    )


@require_POST
@requires("queue.delete_messages")
def delete_messages(request: HttpRequest, name: str) -> HttpResponse:
    """Asks for "delete n", then deletes the selected poison messages."""
    back, ids = _messages_page(name), selected(request)
    phrase = f"delete {len(ids)}"
    if not ids:
        messages.warning(request, "Select at least one message.")
        return redirect(back)
    if text(request, "typed").casefold() == phrase:
        return act(
            request,
            lambda actor: actions.delete_messages(actor, name, ids),
            f"{len(ids)} message{pluralize(len(ids))} deleted.",
            back=back,
        )
    return confirm(
        request,
        phrase,
        names=ids,
        title=f"Delete {len(ids)} poison message{pluralize(len(ids))} of {name}?",
        verb="Delete",
        back=back,
        consequences=(
            "Only the selected messages are deleted, with their payloads.",
            "This cannot be undone.",
        ),
    )


@requires("queue.peek")
@require_safe
@never_cache
def peek(request: HttpRequest, name: str) -> HttpResponse:
    """`?of=poison` looks into the poison queue."""
    poison = request.GET.get("of") == "poison"
    look = queries.peek(name, poison=poison)
    return show(
        request,
        "queues/messages.html",
        "other",
        live=False,
        name=name,
        shown_queue=poison_name(name) if poison else name,
        poison=poison,
        look=look,
        most=queries.MOST_MESSAGES,
        may_delete=permissions_of(request).at("queue", name) == "admin",
    )
