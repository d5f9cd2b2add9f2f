"""What the fleet's requests cost, and what fixed polling would have cost (S11). Pure but for `current`.

Estimates from list prices for planning; the bill has the truth. Storage itself, traffic and redundancy are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import msgspec
from django.conf import settings

from coordinator.errors import ConfigurationError
from coordinator.meter import Request
from coordinator.queues.cost import DEFAULT_PRICES, Budget, Prices, price_of
from dashboard.fleet import Fleet

PER = 10_000
MINUTES_A_DAY = 1440
POLLS_A_DAY = 86_400


@dataclass(frozen=True)
class Line:
    """One operation, queue or worker: its requests so far, their share of all, their cost so far in dollars."""

    operation: str
    requests: int
    share: float
    dollars: float


@dataclass(frozen=True)
class Bill:
    """All of it. What is per day is today's pace, if it went on; None means that the pace is not known.

    `today` is what was spent since `today_since` (midnight UTC, or the dashboard's start if later); `verdict` is "ok",
    "warn" or "over" of the daily budget, "" if there is none.
    """

    lines: tuple[Line, ...]
    requests: int
    dollars: float
    per_minute: float | None
    requests_a_day: float | None
    dollars_a_day: float | None
    polling_tasks: int | None
    polling_requests_a_day: float | None
    polling_dollars_a_day: float | None
    queues: tuple[Line, ...] = ()
    workers: tuple[Line, ...] = ()
    today: float | None = None
    today_since: float | None = None
    budget: float | None = None
    verdict: str = ""
    prices: Prices = DEFAULT_PRICES


@cache
def settled(prices: str, per_day: float) -> tuple[Prices, Budget | None]:
    """Prices and budget as the settings give them; raises `ConfigurationError` naming the fault."""
    try:
        table = msgspec.json.decode(prices, type=Prices)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigurationError(f"KENNEL_PRICES is not a table of prices: {error}") from error
    return table, Budget(per_day) if per_day else None


def current(fleet: Fleet) -> Bill:
    """The bill by the prices and the budget of this dashboard's settings."""
    return bill(fleet, *settled(settings.PRICES, settings.DAILY_BUDGET))


def bill(fleet: Fleet, prices: Prices | None = None, budget: Budget | None = None) -> Bill:
    """From what the dashboard has counted since it started, and the pace of the last minutes.

    Fixed polling is one request a second from each dequeue task that may run, day and night.
    """
    prices = prices or DEFAULT_PRICES
    total = sum(fleet.requests.values())
    lines = _lines(((name, number, spent({name: number}, prices)) for name, number in fleet.requests.items()))
    dollars = sum(line.dollars for line in lines)
    a_day = None if fleet.requests_per_minute is None else fleet.requests_per_minute * MINUTES_A_DAY
    known = [queue.total_tasks for queue in fleet.queues if queue.total_tasks is not None]
    tasks = sum(known) if known else None
    polling = None if tasks is None else float(tasks * POLLS_A_DAY)
    today = None if fleet.today is None else spent(fleet.today.requests, prices)
    return Bill(
        lines=lines,
        requests=total,
        dollars=dollars,
        per_minute=fleet.requests_per_minute,
        requests_a_day=a_day,
        dollars_a_day=None if a_day is None or not total else a_day * dollars / total,
        polling_tasks=tasks,
        polling_requests_a_day=polling,
        polling_dollars_a_day=None if polling is None else polling * prices.queue / PER,
        queues=_lines(
            (name, number, number * prices.queue / PER) for name, number in fleet.queue_requests.items()
        ),
        workers=_lines(
            (worker.name, sum(worker.state.requests.values()), spent(worker.state.requests, prices))
            for worker in fleet.workers
        ),
        today=today,
        today_since=fleet.today.since if fleet.today is not None else None,
        budget=budget.per_day if budget is not None else None,
        verdict=budget.verdict(today) if budget is not None and today is not None else "",
        prices=prices,
    )


def spent(requests: Mapping[str, int], prices: Prices) -> float:
    """Dollars for counts by ``service.Operation``."""
    return sum(
        number * price_of(Request(*name.partition(".")[::2], ""), prices) for name, number in requests.items()
    )


def _lines(counted: Iterable[tuple[str, int, float]]) -> tuple[Line, ...]:
    """The largest first."""
    rows = [row for row in counted if row[1]]
    total = sum(number for _, number, _ in rows)
    rows.sort(key=lambda row: (-row[1], row[0]))
    return tuple(Line(name, number, number / total, dollars) for name, number, dollars in rows)
