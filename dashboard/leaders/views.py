"""Leaders: who leads what; step down, break."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.leaders import actions
from dashboard.leaders import queries as terms
from dashboard.leaders.page import OWN_ELECTION
from dashboard.pages import queries as selectors
from dashboard.pages.views import act, cards_query, confirm, is_confirmed, requires, show


@require_safe
@requires("page.view")
def leaders(request: HttpRequest) -> HttpResponse:
    """The terms are those of `election` (default: the first)."""
    known = [each.name for each in selectors.fleet().leaders]
    election = request.GET.get("election", "")[:63] or next(
        (name for name in known if name != OWN_ELECTION), known[0] if known else ""
    )
    return show(
        request,
        "leaders/leaders.html",
        "leaders",
        query=cards_query(request),
        election=election,
        terms=terms.newest(election) if election else None,
        now=selectors.fleet().taken_at,
    )


@require_POST
@requires("leader.step_down")
def step_down(request: HttpRequest, name: str) -> HttpResponse:
    return act(
        request,
        lambda actor: actions.step_down(actor, name),
        f"Asked the leader of {name} to step down.",
        back=reverse("leaders"),
        page="leaders",
    )


@require_http_methods(["GET", "HEAD", "POST"])
@requires("leader.break")
def break_lease(request: HttpRequest, name: str) -> HttpResponse:
    """Asks for the typed name, then breaks the lease and raises the epoch."""
    if is_confirmed(request, name):
        return act(
            request,
            lambda actor: actions.break_lease(actor, name),
            f"Lease of {name} force-released.",
            back=reverse("leaders"),
        )
    holder = next((leader.holder for leader in selectors.fleet().leaders if leader.name == name), "")
    return confirm(
        request,
        name,
        title=f"Force-release the lease of {name}?",
        verb="Force-release",
        consequences=(
            f"{holder or 'The holder'} loses leadership immediately, even in the middle of work.",
            "The epoch rises: fenced writes of the old leader are refused; unfenced writes are not.",
            "A standby takes over, or the old leader again.",
        ),
        back=reverse("leaders"),
    )
