"""Workers: presence, what each does; drain, resume, stop."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.core.forms import query_of
from dashboard.pages import queries as selectors
from dashboard.pages.views import act, confirm, is_confirmed, requires, show
from dashboard.workers import actions


@require_safe
@requires("page.view")
def workers(request: HttpRequest) -> HttpResponse:
    given = request.GET
    query = query_of(
        q=given.get("q", "")[:63], presence=given.get("presence", "")[:10], after=given.get("after", "")[:200]
    )
    return show(request, "workers/workers.html", "workers", query=query)


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
    """Asks for the typed name, then tells the worker to end."""
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
