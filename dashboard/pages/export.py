"""Tables as CSV for spreadsheets."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from datetime import UTC, datetime
from io import StringIO

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import selectors
from dashboard.pages.common import whole_number
from dashboard.permissions import requires

MOST_ROWS = 10_000
PAGE = 500


@require_safe
@requires("audit.export")
def audit_csv(request: HttpRequest) -> HttpResponse:
    """The audit that `q` finds, newest first, at most 10,000 rows; `before` goes on where a file ended."""
    q, before = request.GET.get("q", "").strip()[:200], whole_number(request.GET.get("before", ""))
    rows: list[tuple[object, ...]] = []
    while len(rows) < MOST_ROWS:
        page = selectors.audit(q=q, before=before, limit=PAGE)
        rows += [
            (
                r.id,
                _moment(r.at),
                r.actor,
                r.address,
                r.action,
                r.target,
                r.outcome,
                r.reason,
                r.before,
                r.after,
            )
            for r in page.rows
        ]
        before = page.next
        if before is None:
            break
    head = ("id", "at", "actor", "address", "action", "target", "outcome", "reason", "before", "after")
    return _file("audit.csv", head, rows)


@require_safe
@requires("page.view")
def ledger_csv(request: HttpRequest) -> HttpResponse:
    """The ledger of `sequence`, newest first, at most 10,000 ranges; `owner` and `before` as on the page."""
    sequence = request.GET.get("sequence", "")
    owner, before = request.GET.get("owner", "").strip()[:200], whole_number(request.GET.get("before", ""))
    rows: list[tuple[object, ...]] = []
    while len(rows) < MOST_ROWS:
        page = selectors.ledger(sequence, before=before, owner=owner, limit=PAGE)
        if page.problem:
            return HttpResponse(page.problem, status=503, content_type="text/plain; charset=utf-8")
        rows += [(g.first, g.last, g.owner, g.state, g.last_issued, _moment(g.granted_at)) for g in page.rows]
        before = page.next
        if before is None:
            break
    return _file(
        f"ledger-{sequence}.csv", ("first", "last", "owner", "state", "last_issued", "granted_at"), rows
    )


def _moment(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def _cell(value: object) -> object:
    """A text that a spreadsheet would run as a formula is quoted."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _file(name: str, head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> HttpResponse:
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(head)
    writer.writerows([_cell(value) for value in row] for row in rows)
    answer = HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8")
    safe = "".join(letter for letter in name if letter.isalnum() or letter in "-_.")
    answer["Content-Disposition"] = f'attachment; filename="{safe}"'
    return answer
