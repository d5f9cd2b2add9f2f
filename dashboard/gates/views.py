"""Gates: what they hold and how each opening goes; unleash, leash, make."""

from __future__ import annotations

from datetime import UTC, datetime

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.core.guard import requires
from dashboard.core.views import act, cards_query, show, text
from dashboard.gates import actions


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
    """Open a gate: now, or `at` a moment (UTC), for all or a `share`. Pressing twice opens once."""
    page = text(request, "page")
    back = reverse("gates") if page == "gates" else reverse("overview")
    try:
        at = _moment(text(request, "at"))
        share = float(text(request, "share") or 1)
    except (ValueError, OverflowError):
        messages.error(
            request,
            "Nothing changed: the time or the share is not valid. Write the time as 2026-07-31 18:00:00.",
        )
        return redirect(back)
    how = f"{name} opens at {at:%Y-%m-%d %H:%M:%S} UTC." if at else f"Unleashed {name}."
    return act(
        request,
        lambda actor: actions.unleash(
            actor, name, reason=text(request, "reason"), at=at.timestamp() if at else None, share=share
        ),
        how,
        back=back,
        page=page,
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


def _moment(written: str) -> datetime | None:
    if not written:
        return None
    at = datetime.fromisoformat(written)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
