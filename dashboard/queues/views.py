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
from coordinator.queues.rules import ScalingRule, Steps, TargetLatency
from dashboard.core.audit import ActionFailed
from dashboard.core.permissions import Actor
from dashboard.live.fleet import QueueView
from dashboard.models import BulkAct
from dashboard.pages import queries as selectors
from dashboard.pages.bulk import Act, act_on_each, allowed, selected
from dashboard.pages.views import (
    act,
    actor_of,
    confirm,
    is_confirmed,
    permissions_of,
    query_of,
    requires,
    show,
    text,
)
from dashboard.queues import actions, bulk_acts, poison, queries
from dashboard.queues.poison import Filter


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


def _poison_page(name: str, only: Filter) -> str:
    address = reverse("queue-poison", args=[name])
    return f"{address}?{only.query}" if only.query else address


def _addresses(name: str, only: Filter) -> dict[str, str]:
    """Where the page's forms go: they come back to the same messages."""
    query = f"?{only.query}" if only.query else ""
    every = f"?all=1&{only.query}" if only.query else "?all=1"
    retry, delete = (reverse(f"queue-messages-{verb}", args=[name]) for verb in ("retry", "delete"))
    return {
        "read": reverse("queue-poison-read", args=[name]) + query,
        "retry": retry + query,
        "delete": delete + query,
        "retry_all": retry + every,
        "delete_all": delete + every,
        "page": f"?{only.query}&page=" if only.query else "?page=",
    }


def _filter(request: HttpRequest) -> Filter:
    """What the address asks for; a time that is none is left out."""
    given = request.GET.dict()
    try:
        return Filter.of(given)
    except ValueError as error:
        messages.error(request, f"The filter was not applied: {error}.")
        return Filter.of(given | {"since": "", "until": ""})


@requires("queue.peek")
@require_safe
@never_cache
def poison_messages(request: HttpRequest, name: str) -> HttpResponse:
    """The poison queue by kind of failure, and the messages that fit the address."""
    only = _filter(request)
    # First whether an act runs: what is then found is at least as new.
    acts = bulk_acts.shown(name)
    found = poison.found(name)
    shown = poison.page(name, only, request.GET.get("page", ""))
    here = permissions_of(request).at("queue", name)
    view = next((queue for queue in selectors.fleet().queues if queue.name == name), None)
    return show(
        request,
        "queues/poison.html",
        "other",
        live=False,
        name=name,
        found=found,
        depth=view.poison if view is not None else None,
        only=only,
        shown=shown,
        errors=sorted({kind.error for kind in found.kinds if kind.error}),
        handlers=sorted({kind.handler for kind in found.kinds if kind.handler}),
        acts=acts,
        urls=_addresses(name, only),
        is_running=any(act.outcome == "running" for act in acts),
        may_delete=here == "admin",
    )


@requires("queue.peek")
@require_safe
@never_cache
def poison_message(request: HttpRequest, name: str, message_id: str) -> HttpResponse:
    """One poison message: payload, attempts, traces."""
    opened = poison.opened(name, message_id)
    if opened is None:
        messages.warning(request, "This message is not among those that were read. Read them again.")
        return redirect("queue-poison", name)
    return show(
        request,
        "queues/poison_message.html",
        "other",
        live=False,
        name=name,
        opened=opened,
        row=opened.row,
        may_delete=permissions_of(request).at("queue", name) == "admin",
    )


@require_POST
@requires("queue.peek", back="queues")
def read_poison(request: HttpRequest, name: str) -> HttpResponse:
    """Has all messages of the poison queue read."""
    return _bulk(
        request, name, lambda actor: bulk_acts.read(actor, name), back=_poison_page(name, _filter(request))
    )


@require_POST
@requires("queue.abort")
def abort(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Stops an act that is running."""
    return act(
        request,
        lambda actor: bulk_acts.abort(actor, name, number),
        "The act stops after the messages it is at.",
        back=_poison_page(name, _filter(request)),
    )


@require_POST
@requires("queue.requeue")
def retry_messages(request: HttpRequest, name: str) -> HttpResponse:
    """Puts the selected poison messages back; with `all`, asks for "retry n" and puts back all that fit the address."""
    only, ids = _filter(request), selected(request)
    back = _poison_page(name, only)
    if "all" in request.GET:
        return _act_on_all(request, name, only, "retry", bulk_acts.retry)
    if not ids:
        messages.warning(request, "Select at least one message.")
        return redirect(back)
    edited = text(request, "edited", poison.MOST_CHARACTERS)
    return act(
        request,
        lambda actor: actions.retry_messages(actor, name, ids[:1] if edited else ids, edited=edited),
        f"{len(ids)} message{pluralize(len(ids))} requeued.",
        back=back,
    )


@require_POST
@requires("queue.delete_messages")
def delete_messages(request: HttpRequest, name: str) -> HttpResponse:
    """Asks for "delete n", then deletes the selected poison messages; with `all`, those that fit the address."""
    only, ids = _filter(request), selected(request)
    back = _poison_page(name, only)
    if "all" in request.GET:
        return _act_on_all(request, name, only, "delete", bulk_acts.delete)
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


def _act_on_all(
    request: HttpRequest,
    name: str,
    only: Filter,
    verb: str,
    begin: Callable[[Actor, str, Filter], BulkAct],
) -> HttpResponse:
    count = only.rows(name).count()
    phrase, back = f"{verb} {count}", _poison_page(name, only)
    if not count:
        messages.warning(request, "No matching messages.")
        return redirect(back)
    if text(request, "typed").casefold() == phrase:
        # The kind is gone when all its messages are.
        return _bulk(request, name, lambda actor: begin(actor, name, only), back=_poison_page(name, Filter()))
    kinds = poison.found(name, only).kinds
    lines = [f"{kind.messages:,}: {kind.error} {kind.reason}".strip() for kind in kinds[:5]]
    more = (f"{len(kinds) - 5} more kinds",) if len(kinds) > 5 else ()
    last = "This cannot be undone." if verb == "delete" else "Requeueing resets the attempt count."
    return confirm(
        request,
        phrase,
        names=("all",),
        title=f"{verb.title()} {count:,} poison message{pluralize(count)} of {name}?",
        verb=f"{verb.title()} all",
        back=back,
        consequences=(*lines, *more, "Only messages that were read are acted on. You can abort.", last),
    )


def _bulk(request: HttpRequest, name: str, begin: Callable[[Actor], BulkAct], *, back: str) -> HttpResponse:
    try:
        done = begin(actor_of(request))
    except ActionFailed as error:
        messages.error(request, str(error))
    else:
        said = {"read": "read", "requeue": "requeued", "delete": "deleted"}[done.verb]
        if done.outcome == "failed":
            messages.error(request, done.problem)
        elif done.outcome == "running":
            messages.success(request, "Started. This page shows the progress.")
        else:
            messages.success(request, f"{done.done:,} message{pluralize(done.done)} {said}.")
    return redirect(back)


@requires("queue.peek")
@require_safe
@never_cache
def peek(request: HttpRequest, name: str) -> HttpResponse:
    """The first visible messages; `?of=poison`: to those of the poison queue."""
    if request.GET.get("of") == "poison":
        return redirect("queue-poison", name)
    return show(
        request,
        "queues/messages.html",
        "other",
        live=False,
        name=name,
        look=queries.peek(name),
        most=queries.MOST_MESSAGES,
    )
