"""Workers: presence, what each does; drain, resume, stop."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.defaultfilters import pluralize
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.live.conditions import first_of
from dashboard.pages import queries as selectors
from dashboard.pages.bulk import act_on_each, selected
from dashboard.pages.views import act, confirm, is_confirmed, query_of, requires, show, text
from dashboard.workers import actions

ENDED_ROWS = 25


@require_safe
@requires("page.view")
def workers(request: HttpRequest) -> HttpResponse:
    given = request.GET
    query = query_of(
        q=given.get("q", "")[:63], presence=given.get("presence", "")[:10], after=given.get("after", "")[:200]
    )
    before = _moment(given.get("ended_before", ""))
    ended = selectors.ended_workers(before=before, limit=ENDED_ROWS + 1)
    more = ended[ENDED_ROWS - 1].last_seen if len(ended) > ENDED_ROWS else None
    return show(
        request,
        "workers/workers.html",
        "workers",
        query=query,
        ended=ended[:ENDED_ROWS],
        ended_next=query_of(ended_before=more),
    )


def _moment(given: str) -> float | None:
    try:
        return float(given)
    except ValueError:
        return None


@require_http_methods(["GET", "HEAD", "POST"])
def do(request: HttpRequest, instance: str, verb: str) -> HttpResponse:
    return {"drain": drain, "resume": resume, "stop": stop}[verb](request, instance=instance)


@requires("worker.drain")
def drain(request: HttpRequest, instance: str) -> HttpResponse:
    return _command(
        request,
        instance,
        "drain",
        f"{_name_of(instance)} finishes its current messages and takes no new ones.",
    )


@requires("worker.resume")
def resume(request: HttpRequest, instance: str) -> HttpResponse:
    return _command(request, instance, "resume", f"{_name_of(instance)} resumed.")


@requires("worker.stop")
def stop(request: HttpRequest, instance: str) -> HttpResponse:
    """Asks for the typed name, then asks the worker to end."""
    name = _name_of(instance)
    if is_confirmed(request, name):
        return _command(request, instance, "stop", f"{name} is stopping.")
    return confirm(
        request,
        name,
        title=f"Stop {name}?",
        verb="Stop",
        consequences=(
            "The worker finishes or returns its messages in flight; then its process ends.",
            "A standby takes over the elections it leads.",
            "This page cannot start it again; use the system that runs the workers.",
        ),
        back=reverse("workers"),
    )


@require_POST
@requires("worker.drain")
def drain_selected(request: HttpRequest) -> HttpResponse:
    return _command_selected(
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
def resume_selected(request: HttpRequest) -> HttpResponse:
    return _command_selected(
        request, "resume", lambda n: "1 worker resumed." if n == 1 else f"{n} workers resumed."
    )


@require_POST
@requires("worker.stop")
def stop_selected(request: HttpRequest) -> HttpResponse:
    """Asks for "stop n", then asks each of them to end."""
    ticked = selected(request)
    names = {each.instance: each.name for each in selectors.fleet().workers}
    phrase = f"stop {len(ticked)}"
    if not ticked or text(request, "typed").casefold() == phrase:
        return _command_selected(
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
            first_of([names.get(instance, instance) for instance in ticked], 20),
            "The workers finish or return their messages in flight; then their processes end.",
            "Standbys take over the elections they lead.",
            "This page cannot start them again; use the system that runs the workers.",
        ),
    )


def _name_of(instance: str) -> str:
    return next((each.name for each in selectors.fleet().workers if each.instance == instance), instance)


def _command(request: HttpRequest, instance: str, verb: str, done: str) -> HttpResponse:
    if request.method != "POST":
        return redirect("workers")
    return act(
        request,
        lambda actor: actions.worker_command(actor, instance, verb),
        done,
        back=reverse("workers"),
        page="workers",
    )


def _command_selected(request: HttpRequest, verb: str, done: Callable[[int], str]) -> HttpResponse:
    return act_on_each(
        request,
        selected(request),
        lambda actor, instance: actions.worker_command(actor, instance, verb),
        done,
        back=reverse("workers"),
    )
