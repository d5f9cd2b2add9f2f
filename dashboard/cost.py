"""What the fleet's requests cost, and what fixed polling would have cost (S11). Pure.

Estimates from list prices for planning; the bill has the truth. Storage itself, traffic and redundancy are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.fleet import Fleet

PER = 10_000
MINUTES_A_DAY = 1440
POLLS_A_DAY = 86_400
BLOB_READS = ("Get", "Peek", "Query")


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Dollars for 10,000 operations, by class; the defaults are list prices of locally redundant hot storage."""

    blob_write: float = 0.055
    blob_read: float = 0.0044
    queue: float = 0.004
    table: float = 0.00036

    def of(self, operation: str) -> float:
        """The price of an operation named ``service.Operation``."""
        service, _, name = operation.partition(".")
        if service == "queue":
            return self.queue
        if service == "table":
            return self.table
        return self.blob_read if name.startswith(BLOB_READS) else self.blob_write


@dataclass(frozen=True)
class Line:
    """One operation: how often so far, its share of all requests, its cost so far in dollars."""

    operation: str
    requests: int
    share: float
    dollars: float


@dataclass(frozen=True)
class Bill:
    """All of it. What is per day is today's pace, if it went on; None means that the pace is not known."""

    lines: tuple[Line, ...]
    requests: int
    dollars: float
    per_minute: float | None
    requests_a_day: float | None
    dollars_a_day: float | None
    polling_tasks: int | None
    polling_requests_a_day: float | None
    polling_dollars_a_day: float | None


def bill(fleet: Fleet, prices: Prices | None = None) -> Bill:
    """From what the dashboard has counted since it started, and the pace of the last minutes.

    Fixed polling is one request a second from each dequeue task that may run, day and night.
    """
    prices = prices or Prices()
    total = sum(fleet.requests.values())
    lines = tuple(
        Line(operation, number, number / total, number * prices.of(operation) / PER)
        for operation, number in sorted(fleet.requests.items(), key=lambda item: (-item[1], item[0]))
        if number
    )
    dollars = sum(line.dollars for line in lines)
    a_day = None if fleet.requests_per_minute is None else fleet.requests_per_minute * MINUTES_A_DAY
    known = [queue.total_tasks for queue in fleet.queues if queue.total_tasks is not None]
    tasks = sum(known) if known else None
    polling = None if tasks is None else float(tasks * POLLS_A_DAY)
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
    )
