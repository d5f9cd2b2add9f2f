"""Promises about figures: unknown, zero and stale are told apart, for every number on every page.

Kept with storage really cut by tests/browser/test_stale.py; here no page and no figure is left out.
"""

from __future__ import annotations

import json
import re
from html import unescape

import pytest
from msgspec.structs import replace

from coordinator.realtime.protocol import ListenerStatus, WorkerState
from dashboard.core import pages
from dashboard.live import fragments
from dashboard.live.fleet import (
    Fleet,
    GateView,
    Headline,
    LeaderView,
    QueueView,
    SequenceView,
    StorageView,
    WorkerView,
)
from tests.unit.pages.fleets import NOW, full

# Without figures of the fleet: help, and what has no regions of its own.
PAGES = sorted(page.name for page in pages.registry().by_name.values() if page.fragments)
QUERY = {"queue": "name=orders"}
NUMBER = re.compile(r"\d+(?:[.,:\u202f]\d+)*")
# What no storage tells: presence, which the hub knows, and the price list.
ELSEWHERE = re.compile(
    r"(?:OK|Late|Lost|Workers|Owners) \d+|\d+ (?:OK|owners|waiting)|Standbys none|process \d+|Prices as of .*"
    r"|0 / 0 tasks, 0 in flight|(?<=not known )1$"
)


def words(page: str, fleet: Fleet) -> str:
    """What a reader sees of all regions: no tags, no moments, no choices, nothing for scripts."""
    drawn = fragments.render_each(page, fleet, "admin", QUERY.get(page, ""))
    del drawn["pulse"]
    html = re.sub(r"<(select|time|svg)\b.*?</\1>", " ", " ".join(drawn.values()), flags=re.DOTALL)
    return ELSEWHERE.sub("", " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split()))


def never_read(as_of: float | None = None) -> Fleet:
    """A worker has told the names of things; storage has not answered yet (or has, and all is nought)."""
    known = as_of is not None
    zero = 0 if known else None
    listener = WorkerState(listeners=(ListenerStatus("orders", 0, 0, 0),))
    return Fleet(
        taken_at=NOW,
        headline=Headline("idle" if known else "unknown", "why"),
        storage=StorageView(as_of),
        gates=(GateView("start", "closed" if known else "unknown", 0, as_of=as_of),),
        queues=(QueueView("orders", zero, zero, zero, zero, zero, zero, zero, zero, workers=1, as_of=as_of),),
        leaders=(LeaderView("report", "", 0, "available" if known else "unknown", as_of=as_of),),
        sequences=(SequenceView("invoices", zero, zero, zero, as_of=as_of),),
        workers=(WorkerView("w", "i", "h", 7, NOW, "kennel", "ok", NOW, listener),),
        requests_per_minute=zero,
    )


@pytest.mark.parametrize("page", PAGES)
def test_what_storage_never_told_is_shown_as_no_number_at_all(page: str) -> None:
    shown = words(page, never_read())
    assert NUMBER.findall(shown) == [], shown
    assert "No leader" not in shown
    assert "nobody" not in shown.lower()


@pytest.mark.parametrize("page", ["overview", "queue", "queues", "sequences", "cost", "tv"])
def test_nought_is_a_number_where_unknown_is_none(page: str) -> None:
    unknown, nought = words(page, never_read()), words(page, never_read(NOW))
    assert nought.count("not known") < unknown.count("not known")
    assert len(re.findall(r"(?<![\d.])0", nought)) > len(re.findall(r"(?<![\d.])0", unknown))


@pytest.mark.parametrize("page", PAGES)
def test_when_storage_goes_every_number_stays_and_the_page_says_since_when(page: str) -> None:
    before = full(age=30)
    cut = replace(before, storage=StorageView(before.storage.as_of, NOW - 20, "connection refused"))
    assert "Storage unreachable since" in words(page, cut)
    banner = fragments.render_each(page, cut, "admin")["storage"]
    assert "last read at" in banner
    # Where the page says the fleet's state in words it may change; its numbers do not.
    assert NUMBER.findall(words(page, cut)) == NUMBER.findall(words(page, before))
    old, new = (json.loads(_script(page, fleet)) for fleet in (before, cut))
    assert old["as_of"] == new["as_of"]
    assert old["points"] == new["points"]
    assert max(at for name, at in new["as_of"].items() if name != "workers" and at is not None) <= NOW - 30


def test_the_scripts_of_a_page_are_told_of_no_age_and_no_point_that_is_not_known() -> None:
    pulse = json.loads(_script("queues", never_read()))
    assert pulse["points"] == {}
    assert {name: at for name, at in pulse["as_of"].items() if at is not None} == {"workers": NOW}


def _script(page: str, fleet: Fleet) -> str:
    html = fragments.render_each(page, fleet, "admin", QUERY.get(page, ""))["pulse"]
    return re.sub(r"<[^>]*>", "", html)
