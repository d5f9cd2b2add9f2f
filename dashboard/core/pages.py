"""The one registry of pages: navigation, keyboard keys, fragments, tables, addresses and the acts of sockets follow from it.

A page is a package with `page.py` (its entry here), `urls.py`, its views and acts, and a folder of templates of its name. The
packages are named here, in the order of the navigation, and imported when the registry is first asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple

PACKAGES = (
    "overview", "gates", "queues", "throughput", "workers", "leaders", "sequences", "batches", "scaling", "cost", "alerts", "audit", "access",
)  # fmt: skip


class Badge(NamedTuple):
    """A figure beside the page's name in the navigation: one of `view_models.counts`, shown if it is not 0."""

    figure: str
    word: str
    tone: str


class Unread(Exception):
    """Storage did not say what is in the file: no file is better than one without its rows."""


class ExportTable(NamedTuple):
    """A table of the page that can be exported: its rows for a fleet and the page's query, and its columns by name, in order."""

    rows: Callable[[Any, Any], Iterable[Any]]
    columns: Mapping[str, Callable[[Any], object]]


class Page(NamedTuple):
    """One page. The template of its name draws it and its live fragments; `package` is set by the registry.

    With a `title` it is in the navigation, reached by `g` and then `key`; the first badge that counts something is
    shown. Without, it is `part_of` a page that is. `context`: what templates, of whatever page, read by that name, from the
    fleet and the page's query, made when it is used. `graphs`: the queues whose graphs it shows. `tables`: what it
    exports, by the file's name. `acts`: what its operators may do by name over the socket, from actor, target and options.
    """

    name: str
    fragments: tuple[str, ...] = ()
    title: str = ""
    key: str = ""
    badges: tuple[Badge, ...] = ()
    part_of: str = ""
    icon: str = ""
    context: Mapping[str, Callable[[Any, Any], Any]] = {}
    graphs: Callable[[Any, Any], Iterable[Any]] = lambda fleet, query: ()
    tables: Mapping[str, ExportTable] = {}
    acts: Mapping[str, Callable[[Any, str, dict[str, Any]], Any]] = {}
    package: str = "core"

    @property
    def template(self) -> str:
        """The template that draws it."""
        return f"{self.package}/{self.name}.html"


class Registry(NamedTuple):
    """All pages, and what they bring."""

    by_name: dict[str, Page]
    navigation: tuple[Page, ...]
    context: dict[str, Callable[[Any, Any], Any]]
    tables: dict[str, ExportTable]
    acts: dict[str, Callable[[Any, str, dict[str, Any]], Any]]


@cache
def registry() -> Registry:
    """The pages of all packages."""
    pages = [
        page._replace(package=package)
        for package in PACKAGES
        for page in import_module(f"dashboard.{package}.page").PAGES
    ]
    return Registry(
        {page.name: page for page in [*pages, Page("other")]},
        tuple(page for page in pages if page.title),
        {name: make for page in pages for name, make in page.context.items()},
        {name: table for page in pages for name, table in page.tables.items()},
        {name: act for page in pages for name, act in page.acts.items()},
    )


def with_reason(action: Callable[..., Any]) -> Callable[[Any, str, dict[str, Any]], Any]:
    """An act of a socket that takes nothing but a reason."""
    return lambda actor, target, given: action(actor, target, reason=str(given.get("reason", "")))


def attributes(names: str) -> dict[str, Callable[[Any], Any]]:
    """Columns that are attributes of the same names."""
    return {name: attrgetter(name) for name in names.split()}


def joined(names: Iterable[object]) -> str:
    """Several names in one cell of a table."""
    return " ".join(str(name) for name in names)
