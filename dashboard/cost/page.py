"""The Cost page as the registry knows it."""

from __future__ import annotations

from collections.abc import Iterable

from django.http import QueryDict

from dashboard.core.pages import ExportTable, Page
from dashboard.live import spending
from dashboard.live.fleet import Fleet
from dashboard.live.spending import Line


def _lines(fleet: Fleet, query: QueryDict) -> Iterable[tuple[str, Line]]:
    bill = spending.current(fleet)
    for by, rows in (("operation", bill.lines), ("queue", bill.queues), ("worker", bill.workers)):
        for line in rows:
            yield by, line


PAGES = (
    Page(
        "cost",
        ("cost",),
        "Cost",
        "c",
        context={"bill": lambda fleet, query: spending.current(fleet)},
        tables={
            "cost": ExportTable(
                _lines,
                {
                    "by": lambda each: each[0],
                    "name": lambda each: each[1].operation,
                    "requests": lambda each: each[1].requests,
                    "share": lambda each: round(each[1].share, 6),
                    "dollars": lambda each: round(each[1].dollars, 8),
                },
            )
        },
    ),
)
