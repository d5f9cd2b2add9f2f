"""The same act on several selected rows: each is permitted, done and audited by itself."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from dashboard.core import audit
from dashboard.core.audit import ActionFailed
from dashboard.core.permissions import Actor, decide
from dashboard.pages.views import actor_of

MOST = 200
MOST_SHOWN = 5

Act = Callable[[Actor, str], object]


def allowed(request: HttpRequest, action: str, target: str) -> bool:
    """Asked before anything is confirmed, so that nobody confirms what is then denied. A denial is audited and reported."""
    actor = actor_of(request)
    if not decide(actor, action, target):
        return True
    audit.denied(actor, action, target)
    messages.error(request, f"You are not allowed to do this to {target}: {action}.")
    return False


def selected(request: HttpRequest) -> list[str]:
    """The names of the rows that are selected."""
    return list(dict.fromkeys(name[:200] for name in request.POST.getlist("name")[:MOST] if name))


def act_on_each(
    request: HttpRequest, names: list[str], action: Act, done: Callable[[int], str], *, back: str
) -> HttpResponse:
    """Do it to each, whatever becomes of the others; report how many, and what went wrong with which."""
    actor = actor_of(request)
    problems = []
    for name in names:
        try:
            action(actor, name)
        except ActionFailed as error:
            problems.append(str(error))
    if len(names) > len(problems):
        messages.success(request, done(len(names) - len(problems)))
    for problem in problems[:MOST_SHOWN]:
        messages.error(request, problem)
    if len(problems) > MOST_SHOWN:
        messages.error(request, f"{len(problems) - MOST_SHOWN} more failed; see the audit.")
    if not names and not request.POST.getlist("name"):
        messages.warning(request, "Select at least one row.")
    return redirect(back)
