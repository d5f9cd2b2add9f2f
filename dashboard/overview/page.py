"""The Overview, the wallboard and the help as the registry knows them."""

from __future__ import annotations

from dashboard.core.pages import Page
from dashboard.queues.page import first_queues

PAGES = (
    Page(
        "overview",
        ("attention", "gates", "queues", "leaders", "sequences", "workers"),
        "Overview",
        "o",
        graphs=first_queues,
    ),
    Page("help"),
    Page("tv", ("tv",), graphs=first_queues),
)
