"""What handlers did, as pages and the API read it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from django.core.paginator import Page, Paginator

from dashboard.hub.runtime import current
from dashboard.live import fleet_memory, tallies
from dashboard.live.tallies import Throughput
from dashboard.pages.queries import fleet

A_PAGE = 50


class ThroughputSpan(NamedTuple):
    """What handlers did within so many seconds, and how many processes that ended then never said all that they did.

    `page` is the page of all listeners that the rows are of, None if they are of all.
    """

    seconds: float
    rows: tuple[Throughput, ...]
    unreported: int
    page: Page[tallies.Listener] | None = None


class Spark(NamedTuple):
    """One figure of all handlers: its mean of the last minutes, each minute of the last hour, and the mean of the same hour a week ago."""

    title: str
    is_time: bool
    value: float | None
    points: tuple[float | None, ...]
    before: float | None


FIGURES = (
    ("Done per minute", "done", False),
    ("Failed per minute", "failed", False),
    ("Retried per minute", "retried", False),
    ("Handler time p95", "handler_p95", True),
    ("Wait p95", "wait_p95", True),
)
RECENT = 5
SHOWN_SECONDS = 60 * tallies.MINUTE
UNKNOWN = tallies.Minute(None, None, None)


class _ReadMinutes(NamedTuple):
    """The minutes that were read: they do not change, so each is read once."""

    source: str = ""
    minutes: Mapping[int, tallies.Minute] = MappingProxyType({})
    before: tallies.Minute = UNKNOWN


_known = _ReadMinutes()
_past = tallies.PastSums()


def sparks() -> list[Spark]:
    """The figures of all handlers in the last hour, by whole minutes; none if no handler ended within it."""
    global _known
    now, source = time.time(), current().source
    end = int(now - tallies.SETTLED_SECONDS) // tallies.MINUTE * tallies.MINUTE
    first = end - SHOWN_SECONDS
    known = _known.minutes if _known.source == source else {}
    if end - tallies.MINUTE not in known:
        # Of pages that are asked for at once, two may read the same.
        since = max([first, *(at + tallies.MINUTE for at in known)])
        fresh = zip(range(since, end, tallies.MINUTE), tallies.minutes(source, since, end), strict=True)
        known = {at: minute for at, minute in [*known.items(), *fresh] if at >= first}
        _known = _ReadMinutes(source, known, tallies.a_minute_of(source, now - tallies.WEEK) or UNKNOWN)
    before, last = _known.before, [known[at] for at in sorted(known)]
    if not any(each.done or each.failed or each.retried for each in last):
        return []
    return [_spark(title, name, is_time, last, before) for title, name, is_time in FIGURES]


def _spark(title: str, name: str, is_time: bool, last: list[tallies.Minute], before: tallies.Minute) -> Spark:
    points = tuple(getattr(each, name) for each in last)
    recent = [point for point in points[-RECENT:] if point is not None]
    # Of times the longest counts, of numbers the mean.
    value = max(recent, default=None) if is_time else sum(recent) / RECENT
    return Spark(title, is_time, value, points, getattr(before, name))


def throughput(seconds: float, *, before: float = tallies.WEEK, page: str | None = None) -> ThroughputSpan:
    """Each listener's handlers over the last `seconds`, beside the same `before` seconds earlier; with `page` those of a page."""
    now, source = time.time(), current().source
    # The lost are noted in the database when they are shown no more.
    shown = sum(each.presence == "lost" and each.last_seen >= now - seconds for each in fleet().workers)
    lost = shown + fleet_memory.lost_since(source, now - seconds)
    those: Page[tallies.Listener] | None = None
    if page is not None:
        those = Paginator(tallies.listeners(source, seconds, now), A_PAGE).get_page(page)
    only = None if those is None else frozenset(those)
    rows = tallies.throughput(source, seconds, now, before=before, only=only, past=_past)
    return ThroughputSpan(seconds, rows, lost, those)
