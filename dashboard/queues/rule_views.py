"""The scaling rule of a queue: put in force by depth or by target latency, or left to the workers again."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from coordinator.errors import ConfigurationError
from coordinator.queues.rules import ScalingRule, Steps, TargetLatency
from dashboard.core.guard import requires
from dashboard.core.views import act, text
from dashboard.queues import rules

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
        lambda actor: rules.store(actor, name, wanted, reason=text(request, "reason")),
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
