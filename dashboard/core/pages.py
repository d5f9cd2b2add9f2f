"""The one registry of pages: navigation, keyboard keys, fragments and addresses follow from it.

A new page is a package with `urls.py` (its views and acts) and its template, and one entry here.
"""

from __future__ import annotations

from typing import NamedTuple


class Badge(NamedTuple):
    """A figure beside the page's name in the navigation: one of `view_models.counts`, shown if it is not 0."""

    figure: str
    word: str
    tone: str


class Page(NamedTuple):
    """One page. `package` below `dashboard` has it and its addresses; the template of its name draws it and its live fragments.

    With a `title` it is in the navigation, reached by `g` and then `key`; the first badge that counts something is
    shown. Without, it is `part_of` a page that is.
    """

    name: str
    package: str
    fragments: tuple[str, ...] = ()
    title: str = ""
    key: str = ""
    badges: tuple[Badge, ...] = ()
    part_of: str = ""
    icon: str = ""

    @property
    def template(self) -> str:
        """The template that draws it."""
        return f"{self.package}/{self.name}.html"


PAGES = (
    Page("overview", "overview", ("attention", "gates", "queues", "leaders", "sequences", "workers"), "Overview", "o"),
    Page("gates", "gates", ("gates",), "Gates", "g", (Badge("held", "held", "amber"),)),
    Page("queues", "queues", ("queues",), "Queues", "q", (Badge("poison", "poison", "red"),)),
    Page("queue", "queues", ("queue",), part_of="queues"),
    Page(
        "workers", "workers", ("workers",), "Workers", "w",
        (Badge("lost", "lost", "red"), Badge("late", "late", "amber")),
    ),
    Page("leaders", "leaders", ("leaders",), "Leaders", "l", (Badge("leaderless", "vacant", "red"),)),
    Page("sequences", "sequences", ("sequences",), "Sequences", "s", (Badge("sequence_problems", "wrong", "red"),)),
    Page(
        "batches", "batches", ("batches", "sagas", "batch", "saga"), "Batches", "b",
        (
            Badge("failed_batches", "failed", "red"),
            Badge("partial_batches", "partial", "amber"),
            Badge("late_batches", "late", "amber"),
        ),
    ),
    Page("scaling", "scaling", ("pools", "changes"), "Scaling", "n"),
    Page("cost", "cost", ("cost",), "Cost", "c"),
    Page("audit", "audit", title="Audit", key="a"),
    Page("access", "access", title="Access", icon="tokens"),
    Page("help", "overview"),
    Page("tv", "overview", ("tv",)),
    Page("other", "core"),
)  # fmt: skip
BY_NAME = {page.name: page for page in PAGES}
NAVIGATION = tuple(page for page in PAGES if page.title)
# The packages with addresses, in the order of their pages.
PACKAGES = tuple(dict.fromkeys(page.package for page in PAGES if page.package != "core"))
