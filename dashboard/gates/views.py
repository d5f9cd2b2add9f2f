"""Gates: what they hold and how each opening goes; unleash, leash, make."""

from __future__ import annotations

from datetime import UTC, datetime

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.template.defaultfilters import pluralize
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.core.middleware import request_id_var
from dashboard.gates import actions, undo
from dashboard.live.conditions import first_of
from dashboard.live.releases import OpeningPlan, written
from dashboard.pages import queries as selectors
from dashboard.pages.bulk import act_on_each, selected
from dashboard.pages.views import act, cards_query, confirm, is_confirmed, requires, show, text

SHOWN = 20
INVALID = "a time or the share is not valid. Write a time as 2026-07-31 18:00:00."


@require_http_methods(["GET", "HEAD", "POST"])
def gates(request: HttpRequest) -> HttpResponse:
    return create(request) if request.method == "POST" else index(request)


@requires("page.view")
def index(request: HttpRequest) -> HttpResponse:
    return show(request, "gates/gates.html", "gates", query=cards_query(request))


@requires("gate.create")
def create(request: HttpRequest) -> HttpResponse:
    name = text(request, "name", 63)
    return act(
        request,
        lambda actor: actions.create_gate(actor, name),
        f"Gate {name} created (closed).",
        back=reverse("gates"),
        page="gates",
    )


@require_POST
@requires("gate.open")
def unleash(request: HttpRequest, name: str) -> HttpResponse:
    """Open a gate: now or `at` a moment (UTC), `until` one, for all or a `share`. Pressing twice opens once.

    A user who has not seen what a schedule will do (no JavaScript) is shown it first.
    """
    page = text(request, "page")
    back = reverse("gates") if page == "gates" else reverse("overview")
    try:
        at, until, share = _schedule(request.POST)
    except (ValueError, OverflowError):
        messages.error(request, f"Nothing changed: {INVALID}")
        return redirect(back)
    done = f"Unleashed {name}."
    if (at, until, share) != (None, None, 1.0):
        planned = selectors.opening(name, at=at, until=until, share=share)
        if not (planned.problem or getattr(request, "htmx", None) or text(request, "seen")):
            return show(
                request,
                "gates/opening.html",
                "other",
                live=False,
                plan=planned,
                given=request.POST,
                back=back,
            )
        done = "" if planned.problem else _done(planned)
    return act(
        request,
        lambda actor: actions.unleash(
            actor, name, reason=text(request, "reason"), at=at, share=share, until=until
        ),
        done,
        back=back,
        page=page,
    )


@require_safe
@requires("page.view")
def opening(request: HttpRequest, name: str) -> HttpResponse:
    """What an opening would do: the same fields as `unleash`, which it is shown beside."""
    try:
        at, until, share = _schedule(request.GET)
    except (ValueError, OverflowError):
        return render(request, "gates/_plan.html", {"invalid": INVALID})
    return render(
        request, "gates/_plan.html", {"plan": selectors.opening(name[:63], at=at, until=until, share=share)}
    )


@require_POST
@requires("gate.close")
def leash(request: HttpRequest, name: str) -> HttpResponse:
    """Close a gate; asks for a reason."""
    page = text(request, "page")
    back = reverse("gates") if page == "gates" else reverse("overview")
    reason = text(request, "reason")
    if not reason:
        messages.error(request, f"{name} was not leashed: enter a reason. It is recorded in the audit log.")
        return redirect(back)
    return act(
        request,
        lambda actor: actions.leash(actor, name, reason=reason),
        f"Leashed {name}: workers finish their current messages and take no new ones.",
        back=back,
        page=page,
    )


@require_POST
@requires("gate.open")
def unleash_selected(request: HttpRequest) -> HttpResponse:
    """Open every gate that is selected, one after the other; pressing twice opens each once."""
    reason = text(request, "reason")
    return act_on_each(
        request,
        selected(request),
        lambda actor, gate: actions.unleash(actor, gate, reason=reason),
        lambda n: f"Unleashed {n} gate{pluralize(n)}.",
        back=reverse("gates"),
    )


@require_http_methods(["GET", "HEAD", "POST"])
@requires("gate.close")
def leash_all(request: HttpRequest) -> HttpResponse:
    """Asks for "leash everything", then closes every gate that is not closed."""
    back, phrase = reverse("gates"), "leash everything"
    names = [gate.name for gate in selectors.fleet().gates if gate.state in ("open", "armed")]
    if not names:
        messages.info(request, "No gate is open or armed.")
        return redirect(back)
    if is_confirmed(request, phrase):
        reason = text(request, "reason") or "leash everything"
        return act_on_each(
            request,
            names,
            lambda actor, gate: actions.leash(actor, gate, reason=reason),
            lambda n: format_html(
                'Leashed {}: {}. Workers finish their current messages. <a href="{}?{}">Undo…</a>',
                f"{n} gate{pluralize(n)}",
                first_of(names, 20),
                reverse("gates-undo"),
                urlencode({"act": request_id_var.get()}),
            ),
            back=back,
        )
    return confirm(
        request,
        phrase,
        title="Leash everything?",
        verb="Leash everything",
        back=back,
        consequences=(
            f"{len(names)} gate{pluralize(len(names))} will be closed: {first_of(names, 20)}.",
            "Workers finish their current messages and take no new ones.",
            "It can be undone: gates that nobody changes meanwhile are opened or armed again as they were.",
        ),
    )


@require_http_methods(["GET", "HEAD", "POST"])
@requires("gate.open")
def undo_leash(request: HttpRequest) -> HttpResponse:
    """Asks for "unleash again", then opens or arms the gates that the request `act` closed, as they were before."""
    back, phrase = reverse("gates"), "unleash again"
    closed = {gate.name: gate for gate in undo.closed_by(request.GET.get("act", "")[:64])}
    if not closed:
        messages.info(request, "Nothing to undo: the audit has no gates that were closed by this act.")
        return redirect(back)
    if is_confirmed(request, phrase):
        return act_on_each(
            request,
            list(closed),
            lambda actor, name: undo.reopen(actor, closed[name]),
            lambda n: f"{n} gate{pluralize(n)} opened or armed again.",
            back=back,
        )
    return confirm(
        request,
        phrase,
        title="Unleash again?",
        verb="Unleash again",
        back=back,
        consequences=(
            *(f"{gate.plan}." for gate in list(closed.values())[:SHOWN]),
            *((f"{len(closed) - SHOWN} more.",) if len(closed) > SHOWN else ()),
            "Gates that were changed since stay as they are.",
        ),
    )


def _done(plan: OpeningPlan) -> str:
    opened = f"{plan.gate} opens {written(plan.at)}" if plan.at is not None else f"Unleashed {plan.gate}"
    return f"{opened}." if plan.until is None else f"{opened}, closes {written(plan.until)}."


def _schedule(given: QueryDict) -> tuple[float | None, float | None, float]:
    """When a gate opens and closes (seconds since 1970) and for which share; raises `ValueError` for what is none."""
    at, until = _moment(given.get("at", "")), _moment(given.get("until", ""))
    share = float(given.get("share") or 1)
    if not 0 < share <= 1:
        raise ValueError(f"no share: {share}")
    return at, until, share


def _moment(given: str) -> float | None:
    if not given.strip():
        return None
    at = datetime.fromisoformat(given.strip())
    return (at.replace(tzinfo=UTC) if at.tzinfo is None else at).timestamp()
