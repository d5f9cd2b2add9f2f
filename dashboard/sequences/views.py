"""Sequences: the counters, and the ledger of ranges by owner."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard.core.guard import requires
from dashboard.core.views import query_of, show, whole_number
from dashboard.live import queries as selectors

ROWS = 50


@require_safe
@requires("page.view")
def sequences(request: HttpRequest) -> HttpResponse:
    """The ledger is of `sequence` (default: the first), of the range that holds `number`, of `owner`, `before` a number."""
    known = [each.name for each in selectors.fleet().sequences]
    sequence = request.GET.get("sequence", "") or (known[0] if known else "")
    number = whole_number(request.GET.get("number", ""))
    before = whole_number(request.GET.get("before", ""))
    owner = request.GET.get("owner", "").strip()[:200]
    ledger = (
        selectors.ledger(sequence, before=before, number=number, owner=owner, limit=ROWS)
        if sequence
        else None
    )
    return show(
        request,
        "sequences/sequences.html",
        "sequences",
        sequence=sequence,
        number=number,
        owner=owner,
        ledger=ledger,
        older=query_of(sequence=sequence, owner=owner, before=ledger.next) if ledger else "",
    )
