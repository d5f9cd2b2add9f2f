"""The tables of the pages as files: CSV for spreadsheets, JSON for programs; filtered and sorted as the page is."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.utils.timezone import now
from django.views.decorators.http import require_safe

from coordinator.spreadsheets import csv_text
from dashboard.core.pages import ExportTable, Unread, registry
from dashboard.live.fleet import Fleet
from dashboard.pages import queries as selectors
from dashboard.pages.views import requires

log = logging.getLogger(__name__)

Row = dict[str, object]


@require_safe
@requires("page.view")
def table(request: HttpRequest, name: str, form: str) -> HttpResponse:
    """All rows that the page of that query would show, on however many pages. None is unknown, in CSV an empty cell."""
    tables = registry().tables
    if name not in tables:
        raise Http404(f"no table {name}; there are {', '.join(sorted(tables))}")
    try:
        rows = list(rows_of(tables[name], selectors.fleet(), request.GET))
    except Unread as error:
        return HttpResponse(f"{error}\n", status=503, content_type="text/plain; charset=utf-8")
    file = f"{name}-{now():%Y%m%dT%H%M%SZ}.{form}"
    if form == "csv":
        answer = HttpResponse(_as_csv(rows, tables[name].columns), content_type="text/csv; charset=utf-8")
    else:
        answer = HttpResponse(msgspec.json.encode(rows), content_type="application/json")
    answer["Content-Disposition"] = f'attachment; filename="{file}"'
    return answer


def rows_of(table: ExportTable, fleet: Fleet, query: QueryDict) -> Iterable[Row]:
    """A row for each; what cannot be written costs its own row, which says so."""
    for each in table.rows(fleet, query):
        try:
            made = {name: value(each) for name, value in table.columns.items()}
            msgspec.json.encode(made)
            yield made
        except Exception as error:
            log.exception("A row of a file could not be written")
            named = (
                str(getattr(each, "name", "") or getattr(each, "key", "")).encode(errors="replace").decode()
            )
            yield {"problem": f"unreadable: {type(error).__name__} {named[:200]}".rstrip()}


def _as_csv(rows: list[Row], head: Iterable[str]) -> str:
    # A row that could not be read has a column of its own.
    columns = list(dict.fromkeys((*head, *(name for row in rows for name in row))))
    return csv_text([columns, *([row.get(name) for name in columns] for row in rows)])
