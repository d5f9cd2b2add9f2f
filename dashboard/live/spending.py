"""What the fleet's requests cost, and what fixed polling would have cost. Pure but for `current`.

Estimates from list prices for planning; the bill has the truth. Storage itself, traffic and redundancy are not in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import msgspec

from coordinator.azure.metering import TRAFFIC, Request
from coordinator.cost import DAY_SECONDS, DEFAULT_PRICES, Budget, Prices, price_of
from dashboard.core import prices as pricing
from dashboard.live.fleet import Fleet

PER = 10_000
MINUTES_A_DAY = 1440
LEAST_PER_SECOND = 0.01
POLLS_A_DAY = 86_400
GET = "queue.GetMessages"


class Line(msgspec.Struct, frozen=True, gc=False):
    """One operation, queue or worker: its requests so far, their share of all, their cost so far in dollars."""

    operation: str
    requests: int
    share: float
    dollars: float


class Metered(Line, frozen=True, gc=False):
    """A queue or worker: also the bytes of bodies, claims included, and the requests for claims, large payloads in blobs.

    A queue's cost holds its claims', its `requests` are those to the queue service alone. None: nobody reported.
    """

    bytes_sent: int | None = None
    bytes_received: int | None = None
    claim_writes: int | None = None
    claim_reads: int | None = None
    claim_deletes: int | None = None


@dataclass(frozen=True)
class PoolHours:
    """Instance hours of a pool since midnight (UTC), and those that KEDA's rule would have taken; dollars: None without a
    price."""

    pool: str
    hours: float
    keda_hours: float
    dollars: float | None
    keda_dollars: float | None


@dataclass(frozen=True)
class Bill:
    """All of it. Figures per day are today's pace, if it went on; None means that the pace is not known.

    `today` is what was spent since `today_since` (midnight UTC, or the dashboard's start if later); `verdict` is "ok",
    "warn" or "over" of the daily budget, "" if there is none. Fixed polling does the same work: `work_requests_a_day` are
    in both, all requests but those that ask a queue for messages. `dollars_a_thousand` messages that leave their queues, at the present
    pace, with all that idles meanwhile; None if next to nothing leaves. `own` is what of it this dashboard asked itself, one sample every
    `sampled_every` seconds.
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
    work_requests_a_day: float | None = None
    dollars_a_thousand: float | None = None
    queues: tuple[Metered, ...] = ()
    workers: tuple[Metered, ...] = ()
    today: float | None = None
    today_since: float | None = None
    budget: float | None = None
    verdict: str = ""
    own: Line | None = None
    sampled_every: float | None = None
    prices: Prices = DEFAULT_PRICES
    pools: tuple[PoolHours, ...] = ()


class SpendingToday(NamedTuple):
    """What was spent today, in dollars, beside the daily budget. None: not known, or no budget."""

    today: float | None
    budget: float | None
    verdict: str


def spending(fleet: Fleet) -> SpendingToday:
    """By the current prices and budget; cheap, unlike the whole bill: for figures that are calculated many times a second."""
    now = pricing.current_prices()
    return _spending(fleet, now.prices, now.budget)


def _spending(fleet: Fleet, prices: Prices, budget: Budget | None) -> SpendingToday:
    today = None if fleet.today is None else spent(fleet.today.requests, prices)
    if budget is None:
        return SpendingToday(today, None, "")
    return SpendingToday(today, budget.per_day, "" if today is None else budget.verdict(today))


def current(fleet: Fleet) -> Bill:
    """The bill by the current prices and budget."""
    now = pricing.current_prices()
    return bill(fleet, now.prices, now.budget)


def bill(fleet: Fleet, prices: Prices | None = None, budget: Budget | None = None) -> Bill:
    """From what the dashboard has counted since it started, and the pace of the last minutes.

    Fixed polling is one request a second from each dequeue task that may run, day and night, and the work: what workers
    put, delete and write is the same however they ask for messages. Without a known pace, the work is not known either.
    """
    prices = prices or DEFAULT_PRICES
    total = sum(fleet.requests.values())
    lines = _lines(((name, number, spent({name: number}, prices)) for name, number in fleet.requests.items()))
    dollars = sum(line.dollars for line in lines)
    a_day = None if fleet.requests_per_minute is None else fleet.requests_per_minute * MINUTES_A_DAY
    known = [queue.total_tasks for queue in fleet.queues if queue.total_tasks is not None]
    tasks = sum(known) if known else None
    work, work_dollars, gets = _work_a_day(fleet, prices, a_day, total)
    polls = None if tasks is None or gets is None else max(float(tasks * POLLS_A_DAY), gets)
    spending = _spending(fleet, prices, budget)
    dollars_a_day = None if a_day is None or not total else a_day * dollars / total
    return Bill(
        lines=lines,
        requests=total,
        dollars=dollars,
        per_minute=fleet.requests_per_minute,
        requests_a_day=a_day,
        dollars_a_day=dollars_a_day,
        polling_tasks=tasks,
        polling_requests_a_day=None if polls is None or work is None else polls + work,
        polling_dollars_a_day=None
        if polls is None or work_dollars is None
        else polls * prices.queue / PER + work_dollars,
        work_requests_a_day=work,
        dollars_a_thousand=_a_thousand(fleet, dollars_a_day),
        queues=_queues(fleet, prices),
        workers=_workers(fleet, prices),
        today=spending.today,
        today_since=fleet.today.since if fleet.today is not None else None,
        budget=spending.budget,
        verdict=spending.verdict,
        prices=prices,
        own=_own(fleet, prices, total),
        sampled_every=fleet.sampled_every,
        pools=_pools(fleet, prices),
    )


def _a_thousand(fleet: Fleet, dollars_a_day: float | None) -> float | None:
    per_second = sum(queue.out_per_second or 0.0 for queue in fleet.queues)
    if dollars_a_day is None or per_second < LEAST_PER_SECOND:
        return None
    return 1000 * dollars_a_day / (per_second * DAY_SECONDS)


def _pools(fleet: Fleet, prices: Prices) -> tuple[PoolHours, ...]:
    """Pools of which an agent has counted today."""
    today = fleet.taken_at // DAY_SECONDS * DAY_SECONDS
    found = []
    for latest in (pool.latest for pool in fleet.work.pools):
        if latest.day != today:
            continue
        hours, keda = latest.instance_seconds / 3600, latest.keda_seconds / 3600
        price = prices.instance_hour
        found.append(
            PoolHours(
                latest.pool, hours, keda, hours * price if price else None, keda * price if price else None
            )
        )
    return tuple(found)


def _work_a_day(
    fleet: Fleet, prices: Prices, a_day: float | None, total: int
) -> tuple[float | None, float | None, float | None]:
    """The requests of a day that are no questions for messages, their cost, and those that are; None is unknown."""
    if a_day is None or not total:
        return None, None, None
    work = {name: number for name, number in fleet.requests.items() if name != GET}
    share = a_day / total
    return sum(work.values()) * share, spent(work, prices) * share, fleet.requests.get(GET, 0) * share


def _own(fleet: Fleet, prices: Prices, total: int) -> Line | None:
    number = sum(fleet.own_requests.values())
    return Line("", number, number / total, spent(fleet.own_requests, prices)) if number and total else None


def spent(requests: Mapping[str, int], prices: Prices) -> float:
    """Dollars for counts by ``service.Operation``."""
    return sum(number * _price(name, prices) for name, number in requests.items())


@lru_cache(1024)
def _price(name: str, prices: Prices) -> float:
    service, _, operation = name.partition(".")
    return price_of(Request(service, operation, ""), prices)


def _queues(fleet: Fleet, prices: Prices) -> tuple[Metered, ...]:
    traffic = _by_queue(fleet.queue_traffic)

    def cost(name: str, number: int) -> float:
        claims = traffic.get(name, {})
        blobs = claims.get("claim_writes", 0) * prices.blob_write
        blobs += claims.get("claim_reads", 0) * prices.blob_read  # deletes are free
        return (number * prices.queue + blobs) / PER

    lines = _lines((name, number, cost(name, number)) for name, number in fleet.queue_requests.items())
    return tuple(_metered(line, traffic.get(line.operation)) for line in lines)


def _workers(fleet: Fleet, prices: Prices) -> tuple[Metered, ...]:
    traffic: dict[str, Counter[str]] = {}
    requests: dict[str, Mapping[str, int]] = {}
    for worker in fleet.workers:
        name, counted = worker.name, worker.state.requests
        # Of a thousand workers nearly each has a name of its own.
        requests[name] = Counter(requests[name]) + Counter(counted) if name in requests else counted
        if worker.state.queue_traffic:
            for each in _by_queue(worker.state.queue_traffic).values():
                traffic.setdefault(name, Counter()).update(each)
    prices_of = {name: _price(name, prices) for sent in requests.values() for name in sent}
    rows = []
    for name, sent in requests.items():
        number, dollars = 0, 0.0
        # A loop: of a thousand workers, sums of generators take most of the page's time.
        for operation, times in sent.items():
            number += times
            dollars += times * prices_of[operation]
        rows.append((name, number, dollars))
    return tuple([_metered(line, traffic.get(line.operation)) for line in _lines(rows)])


def _by_queue(traffic: Mapping[str, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for key, number in traffic.items():
        queue, _, what = key.rpartition("/")
        if what in TRAFFIC:  # a newer worker may report more
            found.setdefault(queue, {})[what] = number
    return found


def _metered(line: Line, traffic: Mapping[str, int] | None) -> Metered:
    if not traffic:
        return Metered(line.operation, line.requests, line.share, line.dollars)
    counted = {what: traffic.get(what, 0) for what in TRAFFIC}
    return Metered(line.operation, line.requests, line.share, line.dollars, **counted)


def _lines(counted: Iterable[tuple[str, int, float]]) -> tuple[Line, ...]:
    """The largest first."""
    rows = [row for row in counted if row[1]]
    total = sum(number for _, number, _ in rows)
    rows.sort(key=lambda row: (-row[1], row[0]))
    return tuple([Line(name, number, number / total, dollars) for name, number, dollars in rows])
