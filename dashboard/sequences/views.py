"""Sequences: the counters, and the ledger of ranges by owner."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator

from channels.db import database_sync_to_async
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from coordinator.spreadsheets import csv_text
from dashboard.core import csv
from dashboard.core.audit import ActionFailed
from dashboard.core.permissions import Actor
from dashboard.pages import queries as selectors
from dashboard.pages.views import actor_of, cards_query, query_of, requires, show, text, whole_number
from dashboard.sequences import queries
from dashboard.sequences.statements import Month, Statement, months

ROWS = 50
LEDGER_HEAD = (
    "first",
    "last",
    "owner",
    "state",
    "last_issued",
    "granted_at",
    "host",
    "pid",
    "started_at",
    "software",
    "heard_at",
)


@require_safe
@requires("page.view")
def sequences(request: HttpRequest) -> HttpResponse:
    """The ledger is of `sequence` (default: the first), of the range that holds `number`, of `owner`, `before` a number."""
    known = [each.name for each in selectors.fleet().sequences]
    sequence = request.GET.get("sequence", "") or (known[0] if known else "")
    number = whole_number(request.GET.get("number", ""))
    before = whole_number(request.GET.get("before", ""))
    owner = request.GET.get("owner", "").strip()[:200]
    account = queries.account(sequence) if sequence else None
    ledger = (
        queries.ledger(sequence, account, before=before, number=number, owner=owner, limit=ROWS)
        if sequence
        else None
    )
    return show(
        request,
        "sequences/sequences.html",
        "sequences",
        query=cards_query(request),
        sequence=sequence,
        number=number,
        owner=owner,
        ledger=ledger,
        older=query_of(sequence=sequence, owner=owner, before=ledger.next) if ledger else "",
        months=months(sequence),
        balance=queries.balance_of(account),
    )


@require_POST
@requires("sequence.statement")
def statement(request: HttpRequest) -> HttpResponse:
    """A month of `sequence` as `form` (csv or pdf), sealed by a row of the audit."""
    sequence, actor = text(request, "sequence", 1024), actor_of(request)
    try:
        made = Statement(sequence, Month.parse(text(request, "month")))
    except ActionFailed as error:
        messages.error(request, str(error))
        return redirect(f"{reverse('sequences')}?{query_of(sequence=sequence)}")
    name = f"{sequence}-{made.month}"
    if request.POST.get("form") != "pdf":
        return csv.streamed(f"{name}.csv", statement_parts(made, actor))
    deque(made.parts(), maxlen=0)
    answer = HttpResponse(made.pdf(made.seal(actor), actor), content_type="application/pdf")
    answer["Content-Disposition"] = f'attachment; filename="{re.sub("[^A-Za-z0-9_.-]", "", name)}.pdf"'
    return answer


async def statement_parts(made: Statement, actor: Actor) -> AsyncIterator[str]:
    """The file, each part made when the one before has been taken; at last its seal."""
    parts = made.parts()
    while part := await database_sync_to_async(next)(parts, None):
        yield part
    yield csv_text([[str(await database_sync_to_async(made.seal)(actor))]])


@require_safe
@requires("page.view")
def ledger_csv(request: HttpRequest) -> HttpResponse:
    """The whole ledger of `sequence`, newest first, holes included, in constant memory; `owner`, `before` as on the page."""
    sequence = request.GET.get("sequence", "")
    owner, before = request.GET.get("owner", "").strip()[:200], whole_number(request.GET.get("before", ""))
    if queries.ledger(sequence, queries.account(sequence), limit=1).problem not in ("", "unused"):
        if all(each.name != sequence for each in selectors.fleet().sequences):
            text, status = "no such sequence: ask for /ledger.csv?sequence=NAME\n", 404
        else:
            text, status = (
                f"the ledger of {sequence} has not been read yet: try again in a few seconds\n",
                503,
            )
        return HttpResponse(text, status=status, content_type="text/plain; charset=utf-8")
    return csv.streamed(f"ledger-{sequence}.csv", ledger_parts(sequence, before=before, owner=owner))


async def ledger_parts(sequence: str, *, before: int | None = None, owner: str = "") -> AsyncIterator[str]:
    """The file in parts of a thousand lines, each made when the one before has been taken."""
    parts = queries.ledger_lines(sequence, before=before, owner=owner)
    yield csv_text([LEDGER_HEAD])
    while part := await database_sync_to_async(next)(parts, None):
        yield csv_text(
            (g.first, g.last, g.owner, g.state, g.last_issued, csv.moment(g.granted_at), o.host, o.pid or None,
             csv.moment(o.started_at or None), o.software, csv.moment(g.heard_at))
            for g, o in part
        )  # fmt: skip
