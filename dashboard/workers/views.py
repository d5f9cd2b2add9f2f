"""Workers: presence, what each does; drain, resume, stop."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.defaultfilters import pluralize
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.live.conditions import first_of
from dashboard.pages import queries as selectors
from dashboard.pages.bulk import act_on_each, selected
from dashboard.pages.views import act, confirm, is_confirmed, query_of, requires, show, text
from dashboard.workers import timeline
from dashboard.workers.actions import COMMANDS, worker_command

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


@require_safe
@requires("page.view")
def worker(request: HttpRequest, instance: str) -> HttpResponse:
    """One worker process, also one that ended: its last report, and what it did when."""
    life = timeline.life(selectors.fleet(), instance)
    if life is None:
        raise Http404(instance)
    return show(request, "workers/worker.html", "other", live=False, life=life)


def _moment(given: str) -> float | None:
    try:
        return float(given)
    except ValueError:
        return None


@require_http_methods(["GET", "HEAD", "POST"])
def do(request: HttpRequest, instance: str, verb: str) -> HttpResponse:
    """Send a worker a command; one with consequences asks for the typed name first."""
    return requires(f"worker.{verb}")(_ask)(request, instance=instance, verb=verb)


def _ask(request: HttpRequest, instance: str, verb: str) -> HttpResponse:
    workers = selectors.fleet().workers
    name = next((each.name for each in workers if each.instance == instance), instance)
    command = COMMANDS[verb]
    if command.consequences and not is_confirmed(request, name):
        return confirm(
            request,
            name,
            title=f"{command.label} {name}?",
            verb=command.label,
            consequences=command.consequences,
            back=reverse("workers"),
        )
    if request.method != "POST":
        return redirect("workers")
    return act(
        request,
        lambda actor: worker_command(actor, instance, verb),
        command.one.format(name=name),
        back=reverse("workers"),
        page="workers",
    )


@require_POST
def do_to_selected(request: HttpRequest, verb: str) -> HttpResponse:
    """Send all selected workers a command; one with consequences asks for "VERB n" first."""
    return requires(f"worker.{verb}")(_ask_selected)(request, verb)


def _ask_selected(request: HttpRequest, verb: str) -> HttpResponse:
    instances, command = selected(request), COMMANDS[verb]
    phrase = f"{verb} {len(instances)}"
    if not command.consequences or not instances or text(request, "typed").casefold() == phrase:
        return act_on_each(
            request,
            instances,
            lambda actor, instance: worker_command(actor, instance, verb),
            lambda n: command.one.format(name="1 worker") if n == 1 else command.many.format(n=n),
            back=reverse("workers"),
        )
    names = {each.instance: each.name for each in selectors.fleet().workers}
    return confirm(
        request,
        phrase,
        names=instances,
        title=f"{command.label} {len(instances)} worker{pluralize(len(instances))}?",
        verb=f"{command.label} all",
        back=reverse("workers"),
        consequences=(
            first_of([names.get(instance, instance) for instance in instances], 20),
            *command.consequences,
        ),
    )
