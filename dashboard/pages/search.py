"""Search: from a name or an order number to its page."""

from __future__ import annotations

from typing import NamedTuple

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard import selectors
from dashboard.fleet import Fleet
from dashboard.pages.common import query_of, show, whole_number
from dashboard.permissions import requires

MOST = 50


class Hit(NamedTuple):
    """One thing that was found."""

    kind: str
    name: str
    url: str


@require_safe
@requires("page.view")
def search(request: HttpRequest) -> HttpResponse:
    """`q`: part of a name, or a whole order number. The only hit is opened at once."""
    q = request.GET.get("q", "").strip()[:200]
    hits = find(selectors.fleet(), q) if q else []
    exact = [hit for hit in hits if hit.name == q]
    if len(hits) == 1 or len(exact) == 1:
        return redirect((exact or hits)[0].url)
    return show(request, "search.html", "other", q=q, hits=hits[:MOST], more=max(0, len(hits) - MOST))


def find(fleet: Fleet, q: str) -> list[Hit]:
    """Everything whose name contains `q`, those that begin with it first; for a number the ranges that may hold it."""
    wanted = q.lower()
    hits = [Hit("Gate", gate.name, f"{reverse('gates')}#gate-{gate.name}") for gate in fleet.gates]
    hits += [Hit("Queue", queue.name, reverse("queue", args=[queue.name])) for queue in fleet.queues]
    hits += [
        Hit("Worker", worker.name, f"{reverse('workers')}?{query_of(q=worker.name)}")
        for worker in fleet.workers
    ]
    hits += [Hit("Election", leader.name, f"{reverse('leaders')}#{leader.name}") for leader in fleet.leaders]
    hits += [
        Hit("Sequence", sequence.name, f"{reverse('sequences')}?{query_of(sequence=sequence.name)}")
        for sequence in fleet.sequences
    ]
    found = sorted(
        (hit for hit in hits if wanted in hit.name.lower()),
        key=lambda hit: (not hit.name.lower().startswith(wanted), hit.kind, hit.name),
    )
    number = whole_number(q)
    if number is None:
        return found
    return [
        Hit(
            "Number",
            f"{number} of {sequence.name}",
            f"{reverse('sequences')}?{query_of(sequence=sequence.name, number=number)}#ledger",
        )
        for sequence in fleet.sequences
        if sequence.next_number is None or number < sequence.next_number
    ] + found
