"""The same act on several ticked things: each is permitted, done and audited by itself; what stops work or destroys asks first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.defaultfilters import pluralize
from django.urls import reverse
from django.views.decorators.http import require_POST

from dashboard.core import audit
from dashboard.core.audit import ActionFailed
from dashboard.core.forms import text
from dashboard.core.permissions import Actor, decide
from dashboard.gates import actions as gate_actions
from dashboard.pages import queries as selectors
from dashboard.pages.views import actor_of, confirm, requires
from dashboard.queues import actions as queue_actions
from dashboard.workers import actions as worker_actions

MOST = 200
MOST_TOLD = 5

Act = Callable[[Actor, str], object]


@require_POST
@requires("gate.open")
def unleash(request: HttpRequest) -> HttpResponse:
    """Open every gate that is ticked, one after the other; pressing twice opens each once."""
    reason = text(request, "reason")
    return _each(
        request,
        _ticked(request),
        lambda actor, gate: gate_actions.unleash(actor, gate, reason=reason),
        lambda n: f"Unleashed {n} gate{pluralize(n)}.",
        back=reverse("gates"),
    )


@require_POST
@requires("worker.drain")
def drain(request: HttpRequest) -> HttpResponse:
    return _command(
        request,
        "drain",
        lambda n: (
            "1 worker finishes its current messages and takes no new ones."
            if n == 1
            else f"{n} workers finish their current messages and take no new ones."
        ),
    )


@require_POST
@requires("worker.resume")
def resume(request: HttpRequest) -> HttpResponse:
    return _command(request, "resume", lambda n: "1 worker resumed." if n == 1 else f"{n} workers resumed.")


@require_POST
@requires("worker.stop")
def stop(request: HttpRequest) -> HttpResponse:
    """Asks for "stop n", then tells each of them to end."""
    ticked = _ticked(request)
    names = {each.instance: each.name for each in selectors.fleet().workers}
    phrase = f"stop {len(ticked)}"
    if not ticked or text(request, "typed").casefold() == phrase:
        return _command(
            request,
            "stop",
            lambda n: "1 worker is stopping." if n == 1 else f"{n} workers are stopping.",
        )
    return confirm(
        request,
        phrase,
        names=ticked,
        title=f"Stop {len(ticked)} worker{pluralize(len(ticked))}?",
        verb="Stop all",
        back=reverse("workers"),
        consequences=(
            _some(names.get(instance, instance) for instance in ticked),
            "The workers finish or return their messages in flight; then their processes end.",
            "Standbys take over the elections they lead.",
            "This page cannot start them again; use the system that runs the workers.",
        ),
    )


@require_POST
@requires("queue.requeue")
def requeue(request: HttpRequest) -> HttpResponse:
    """Asks for "requeue n" with the poison messages of each, then requeues them."""
    return _queues(
        request,
        "requeue",
        queue_actions.requeue_poison,
        lambda queue: queue.poison,
        title=lambda n: f"Requeue the poison messages of {n} queue{pluralize(n)}?",
        line="{queue}: {count} poison messages",
        verb="Requeue all",
        done=lambda n: f"Requeueing the poison messages of {n} queue{pluralize(n)}.",
        consequences=("Requeueing resets the attempt count.",),
    )  # fmt: skip


@require_POST
@requires("queue.clear", back="queues")
def clear(request: HttpRequest) -> HttpResponse:
    """Asks for "clear n" with what each queue holds, then deletes every message in them."""
    return _queues(
        request,
        "clear",
        queue_actions.clear_queue,
        lambda queue: queue.depth,
        title=lambda n: f"Clear {n} queue{pluralize(n)}?",
        line="{queue}: about {count} messages are deleted",
        verb="Clear all",
        done=lambda n: "1 queue was cleared." if n == 1 else f"{n} queues were cleared.",
        consequences=(
            "In-flight messages finish but will not be retried.",
            "This cannot be undone.",
        ),
    )  # fmt: skip


def _queues(
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
    ticked = [name for name in _ticked(request) if _allowed(request, f"queue.{act}", name)]
    phrase = f"{act} {len(ticked)}"
    if not ticked or text(request, "typed").casefold() == phrase:
        return _each(request, ticked, action, done, back=back)
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


def _allowed(request: HttpRequest, action: str, target: str) -> bool:
    """Asked before anything is confirmed, so that nobody confirms what is then denied. A denial is audited and told."""
    actor = actor_of(request)
    if not decide(actor, action, target):
        return True
    audit.denied(actor, action, target)
    messages.error(request, f"You are not allowed to do this to {target}: {action}.")
    return False


def _command(request: HttpRequest, verb: str, done: Callable[[int], str]) -> HttpResponse:
    return _each(
        request,
        _ticked(request),
        lambda actor, instance: worker_actions.worker_command(actor, instance, verb),
        done,
        back=reverse("workers"),
    )


def _ticked(request: HttpRequest) -> list[str]:
    return list(dict.fromkeys(name[:200] for name in request.POST.getlist("name")[:MOST] if name))


def _each(
    request: HttpRequest, names: list[str], action: Act, done: Callable[[int], str], *, back: str
) -> HttpResponse:
    """Do it to each, whatever becomes of the others; tell how many, and what went wrong with which."""
    actor = actor_of(request)
    problems = []
    for name in names:
        try:
            action(actor, name)
        except ActionFailed as error:
            problems.append(str(error))
    if len(names) > len(problems):
        messages.success(request, done(len(names) - len(problems)))
    for problem in problems[:MOST_TOLD]:
        messages.error(request, problem)
    if len(problems) > MOST_TOLD:
        messages.error(request, f"{len(problems) - MOST_TOLD} more failed; see the audit.")
    if not names and not request.POST.getlist("name"):
        messages.warning(request, "Select at least one row.")
    return redirect(back)


def _some(names: Iterable[str]) -> str:
    given = list(names)
    shown = ", ".join(given[:20])
    return shown if len(given) <= 20 else f"{shown} and {len(given) - 20} more"
