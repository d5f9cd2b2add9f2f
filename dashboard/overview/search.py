"""Search: from a name or an order number to its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard.core.pages import registry
from dashboard.live.fleet import Fleet
from dashboard.overview.saved_views import views_of
from dashboard.pages import queries as selectors
from dashboard.pages.views import query_of, requires, show, whole_number
from dashboard.templatetags.links import election_url, gate_url, queue_url, worker_url

MOST = 50
LISTED = 10


class HasName(Protocol):
    @property
    def name(self) -> str: ...


class Hit(NamedTuple):
    """One thing that was found."""

    kind: str
    name: str
    url: str


@require_safe
@requires("page.view")
def search(request: HttpRequest) -> HttpResponse:
    """`q`: part of a name, or a whole order number. The only hit is opened at once; with `list`, all are only listed."""
    q = request.GET.get("q", "").strip()[:200]
    hits, total = find(selectors.fleet(), q) if q else ([], 0)
    saved = (
        [Hit("View", view.name, view.address) for view in views_of(request.user).filter(name__icontains=q)]
        if q
        else []
    )
    hits, total = saved + hits, len(saved) + total
    if "list" in request.GET:
        begun = [hit for hit in _pages() if hit.name.lower().startswith(q.lower()) and hit not in hits]
        hits, total = begun + hits, len(begun) + total
        most = hits[:LISTED]
        return render(request, "overview/search.html#hits", {"q": q, "hits": most, "more": total - len(most)})
    exact = [hit for hit in hits if hit.name == q]
    if total == 1 or len(exact) == 1:
        return redirect((exact or hits)[0].url)
    return show(request, "overview/search.html", "other", q=q, hits=hits, more=total - len(hits))


def find(fleet: Fleet, q: str) -> tuple[list[Hit], int]:
    """The first 50 whose name contains `q`, those that begin with it first, and how many there are; for a number also the
    ranges that may hold it, and pages by title or address."""
    wanted = q.lower()
    named: tuple[tuple[str, Sequence[HasName], Callable[[str], str]], ...] = (
        ("Gate", fleet.gates, gate_url),
        ("Queue", fleet.queues, queue_url),
        ("Worker", fleet.workers, worker_url),
        ("Election", fleet.leaders, election_url),
        ("Sequence", fleet.sequences, lambda name: f"{reverse('sequences')}?{query_of(sequence=name)}"),
    )  # fmt: skip
    found = sorted(
        (name != wanted, not name.startswith(wanted), kind, thing.name, place)
        for place, (kind, things, _) in enumerate(named)
        for thing in things
        if wanted in (name := thing.name.lower())
    )
    hits = [Hit(kind, name, named[place][2](name)) for _, _, kind, name, place in found[:MOST]]
    pages = [hit for hit in _pages() if _names_page(hit, wanted)]
    number = whole_number(q)
    if number is None:
        return pages + hits, len(pages) + len(found)
    numbers = [
        Hit(
            "Number",
            f"{number} of {sequence.name}",
            f"{reverse('sequences')}?{query_of(sequence=sequence.name, number=number)}#ledger",
        )
        for sequence in fleet.sequences
        if sequence.next_number is None or number < sequence.next_number
    ]
    return numbers + hits, len(numbers) + len(found)


def _pages() -> list[Hit]:
    titled = [(page.title, reverse(page.name)) for page in registry().navigation]
    return [
        Hit("Page", title, url)
        for title, url in (*titled, ("Wallboard", reverse("tv")), ("Help", reverse("help")))
    ]


def _names_page(page: Hit, wanted: str) -> bool:
    """An address is meant with its slash: a queue may be called as a page is."""
    return wanted == page.name.lower() or (
        wanted.startswith("/") and wanted.rstrip("/") == page.url.rstrip("/")
    )
