"""The Scaling page as the registry knows it."""

from __future__ import annotations

from django.http import QueryDict

from dashboard.core.csv import moment
from dashboard.core.pages import ExportTable, Page
from dashboard.live.fleet import Fleet
from dashboard.live.workloads import Pool


def pool(fleet: Fleet, query: QueryDict) -> Pool | None:
    """The pool that the query asks for; the first without a name."""
    name = query.get("pool", "")
    return next((each for each in fleet.work.pools if not name or each.name == name), None)


PAGES = (
    Page(
        "scaling",
        ("pools", "changes"),
        "Scaling",
        "n",
        context={"pool": pool},
        tables={
            "pools": ExportTable(
                lambda fleet, query: fleet.work.pools,
                {
                    "pool": lambda each: each.latest.pool,
                    "wanted": lambda each: each.latest.wanted,
                    "actual": lambda each: each.latest.actual,
                    "reason": lambda each: each.latest.reason,
                    "agent": lambda each: each.latest.by,
                    "epoch": lambda each: each.latest.epoch,
                    "decided_at": lambda each: moment(each.latest.at),
                },
            )
        },
    ),
)
