"""The Alerts page as the registry knows it."""

from __future__ import annotations

from dashboard.core.csv import moment
from dashboard.core.pages import Badge, ExportTable, Page, attributes

PAGES = (
    Page(
        "alerts",
        ("alerts",),
        "Alerts",
        "e",
        (Badge("alerts", "firing", "red"),),
        icon="alert",
        tables={
            "alerts": ExportTable(
                lambda fleet, query: fleet.alerts,
                {
                    **attributes("id rule subject what level"),
                    "since": lambda each: moment(each.since),
                    "fired_at": lambda each: moment(each.fired_at),
                    "acknowledged_by": lambda each: each.acknowledged_by,
                },
            )
        },
    ),
    Page("rule", part_of="alerts"),
)
