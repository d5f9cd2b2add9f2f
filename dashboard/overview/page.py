"""The Overview, the wallboard and the help as the registry knows them."""

from __future__ import annotations

from dashboard.core.pages import Page
from dashboard.live.view_models import summary_queues
from dashboard.queues.page import sorted_queues

PAGES = (
    Page(
        "overview",
        ("attention", "gates", "queues", "leaders", "sequences", "workers"),
        "Overview",
        "o",
        context={"summary_queues": lambda fleet, query: summary_queues(fleet, 12)},
        graphs=sorted_queues,
    ),
    Page("help"),
    Page(
        "tv",
        ("tv",),
        context={"wall_queues": lambda fleet, query: summary_queues(fleet, 4)},
        graphs=sorted_queues,
    ),
)
