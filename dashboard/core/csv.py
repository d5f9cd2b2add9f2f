"""Tables as CSV for spreadsheets."""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from io import StringIO
from typing import cast

from channels.db import database_sync_to_async
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.views.decorators.http import require_safe

from dashboard.core.guard import requires
from dashboard.core.views import whole_number
from dashboard.live import queries as selectors

_BLANK = " \t\r\n\v\f\x00\xa0\u1680\u180e\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
PAGE = 1000
AUDIT_HEAD = (
    "id", "at", "actor", "address", "action", "target", "outcome", "reason", "before", "after", "request_id",
)  # fmt: skip
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
)


@require_safe
@requires("audit.export")
def audit_csv(request: HttpRequest) -> HttpResponse:
    """Every row of the audit that `q` finds, newest first, in constant memory; `before` begins below an id."""
    q, before = request.GET.get("q", "").strip()[:200], whole_number(request.GET.get("before", ""))
    return _streamed("audit.csv", audit_parts(q, before=before))


async def audit_parts(q: str, *, before: int | None = None) -> AsyncIterator[str]:
    """The file in parts of a thousand lines, each read when the one before has been taken."""
    yield _lines([AUDIT_HEAD])
    more = True
    while more:
        page = await database_sync_to_async(selectors.audit)(q=q, before=before, limit=PAGE)
        yield _lines(
            (r.id, _moment(r.at), r.actor, r.address, r.action, r.target, r.outcome, r.reason, r.before, r.after,
             r.request_id)
            for r in page.rows
        )  # fmt: skip
        before, more = page.next, page.next is not None


@require_safe
@requires("page.view")
def ledger_csv(request: HttpRequest) -> HttpResponse:
    """The whole ledger of `sequence`, newest first, holes included, in constant memory; `owner`, `before` as on the page."""
    sequence = request.GET.get("sequence", "")
    owner, before = request.GET.get("owner", "").strip()[:200], whole_number(request.GET.get("before", ""))
    if selectors.ledger(sequence, limit=1).problem:
        text = f"the ledger of {sequence or 'no sequence'} has not been read yet\n"
        return HttpResponse(text, status=503, content_type="text/plain; charset=utf-8")
    return _streamed(f"ledger-{sequence}.csv", ledger_parts(sequence, before=before, owner=owner))


async def ledger_parts(sequence: str, *, before: int | None = None, owner: str = "") -> AsyncIterator[str]:
    """The file in parts of a thousand lines, each made when the one before has been taken."""
    parts = selectors.ledger_lines(sequence, before=before, owner=owner)
    yield _lines([LEDGER_HEAD])
    while part := await database_sync_to_async(next)(parts, None):
        yield _lines(
            (g.first, g.last, g.owner, g.state, g.last_issued, _moment(g.granted_at), o.host, o.pid or None,
             _moment(o.started_at or None), o.software)
            for g, o in part
        )  # fmt: skip


def _moment(at: float | None) -> str:
    if at is None:
        return ""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError, TypeError):
        return "unreadable"


def cell(value: object) -> object:
    """A text that a spreadsheet would run as a formula is quoted.

    Spreadsheets skip what is blank before it, and take a full-width sign for the plain one.
    """
    if not isinstance(value, str) or not value:
        return value
    shown = value.lstrip(_BLANK)
    first = unicodedata.normalize("NFKC", shown[:1])[:1]
    return f"'{value}" if value[0] in "\t\r\n" or (first and first in "=+-@") else value


def _lines(rows: Iterable[tuple[object, ...]]) -> str:
    text = StringIO()
    csv.writer(text).writerows([cell(value) for value in row] for row in rows)
    return text.getvalue()


def _streamed(name: str, parts: AsyncIterator[str]) -> HttpResponse:
    answer = StreamingHttpResponse(parts, content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{_safe(name)}"'
    return cast(HttpResponse, answer)  # all that decorators and middleware ask of it


def _safe(name: str) -> str:
    return "".join(letter for letter in name if letter.isalnum() or letter in "-_.")
