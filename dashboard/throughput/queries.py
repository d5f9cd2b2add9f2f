"""What handlers did, as pages and the API read it."""

from __future__ import annotations

import time
from typing import NamedTuple

from dashboard.hub.runtime import current
from dashboard.live import fleet_memory, tallies
from dashboard.live.tallies import Throughput
from dashboard.pages.queries import fleet


class Span(NamedTuple):
    """What handlers did within so many seconds, and how many processes that ended then never said all that they did."""

    seconds: float
    rows: tuple[Throughput, ...]
    unreported: int


def throughput(seconds: float, *, before: float = tallies.WEEK) -> Span:
    """Each listener's handlers over the last `seconds`, beside the same `before` seconds earlier."""
    now, source = time.time(), current().source
    # The lost are noted in the database when they are shown no more.
    shown = sum(each.presence == "lost" and each.last_seen >= now - seconds for each in fleet().workers)
    lost = shown + fleet_memory.lost_since(source, now - seconds)
    return Span(seconds, tallies.throughput(source, seconds, now, before=before), lost)
