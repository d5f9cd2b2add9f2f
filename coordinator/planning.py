"""What a load needs of Azure Storage and of workers: accounts, queues, partitions, instances, requests, money. Pure.

`plan` looks for the smallest layout that `simulate` puts a whole day through: no published limit exceeded in any step, and
nothing late. The requests of an order are those that Kennel's benchmarks measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from coordinator.cost import DAY_SECONDS, DEFAULT_PRICES, Prices
from coordinator.errors import ConfigurationError

STEP_SECONDS = 10.0
_GETS = 1 / 32
"""A busy listener receives 32 messages a request."""
_RANGE_SECONDS = 12.0
_USUAL_RANGE = 1000
_VERIFY_SECONDS = 60.0
_REPORT_SECONDS = 10.0
_HUB_WORKERS = 5_000
_IDLE_REQUESTS = 264.0
"""Of an idle worker with push, a day."""
_BASE64 = 4 / 3
_MOST = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Requests a second that the service's pages give as targets, and the share of them that a plan uses.

    A request for a message, an entity or a blob of 1 KiB is meant; the share leaves room for larger ones, for retries, and
    for what else uses the account.
    """

    queue: float = 2_000.0
    account: float = 20_000.0
    partition: float = 2_000.0
    blob: float = 500.0
    message_bytes: int = 65_536
    share: float = 0.7
    as_of: str = "2026-11"
    source: str = "learn.microsoft.com/azure/storage: scalability targets of queues, tables, blobs and standard accounts"


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Load:
    """What is asked of the fleet.

    Attributes:
        orders_per_day: Items a day.
        item_bytes: Size of one.
        workers: Processes that run and listen.
        latency_seconds: How soon after its arrival an item is to be done.
        handler_seconds: How long a handler takes for one.
        slots: Handlers that a worker runs at a time.
        peak: Busiest moment, as a multiple of the mean of the day.
        rows: Table rows written for an item.
        items_per_message: Items that a producer puts into one message.

    Raises:
        ConfigurationError: A value is out of bounds.
    """

    orders_per_day: float
    item_bytes: int = 1000
    workers: int = 1
    latency_seconds: float = 60.0
    handler_seconds: float = 0.1
    slots: int = 10
    peak: float = 2.5
    rows: float = 1.0
    items_per_message: int = 1

    def __post_init__(self) -> None:
        for name in ("orders_per_day", "latency_seconds", "handler_seconds"):
            if not 0 < getattr(self, name) <= 1e12:
                raise ConfigurationError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("item_bytes", "workers", "slots", "items_per_message"):
            if not 1 <= getattr(self, name) <= 1e9:
                raise ConfigurationError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 1 <= self.peak <= 100 or not 0 <= self.rows <= 100:
            raise ConfigurationError("a plan needs a peak of 1 to 100 and 0 to 100 rows for an order")
        if self.latency_seconds <= self.handler_seconds:
            raise ConfigurationError(
                f"nothing can be done within {self.latency_seconds:g} s if a handler takes {self.handler_seconds:g} s"
            )

    def per_second(self, second: float) -> float:
        """Items that arrive at that second of the day: a half-sine by day, over an even rest where the peak is low."""
        mean = self.orders_per_day / DAY_SECONDS
        part = min(1.0, math.pi / (2 * self.peak))
        height = (self.peak - 1) / (1 - 2 / math.pi) if part == 1.0 else self.peak
        rest = self.peak - height
        start = (1 - part) / 2 * DAY_SECONDS
        place = (second - start) / (part * DAY_SECONDS)
        return mean * (rest + (height * math.sin(math.pi * place) if 0 < place < 1 else 0.0))


@dataclass(frozen=True)
class Layout:
    """What there is: how many of each."""

    accounts: int = 1
    queues: int = 1
    partitions: int = 1
    instances: int = 1


@dataclass(frozen=True)
class Course:
    """A day under a layout: the busiest use of each limit, as a share of it, and the longest wait in seconds."""

    account: float
    queue: float
    partition: float
    longest_seconds: float


@dataclass(frozen=True)
class Plan:
    """A layout that suffices, and what its day takes.

    `range_size`: order numbers that a worker reserves at a time. `requests` are those of a day, by kind. `notes` say what
    else to change. `peak_per_second` are items.
    """

    load: Load
    layout: Layout
    course: Course
    peak_per_second: float
    range_size: int
    requests: dict[str, float]
    dollars: float
    instance_hours: float
    notes: tuple[str, ...]


def simulate(load: Load, layout: Layout, limits: Limits = DEFAULT_LIMITS) -> Course:
    """A day, step by step.

    Messages beyond a limit wait, as do those for which no handler is free.
    """
    queue_each, account_each = _each(load, limits)
    can = {
        "account": layout.accounts * limits.account * limits.share,
        "queue": layout.queues * limits.queue * limits.share,
        "partition": layout.partitions * limits.partition * limits.share,
    }
    steady = _steady_per_second(load)
    able = layout.instances * load.slots / load.handler_seconds
    able = min(able, can["queue"] / queue_each, max(0.0, can["account"] - steady) / account_each)
    if load.rows:
        able = min(able, can["partition"] / load.rows)
    arrivals = _arrivals(load)
    most = max(arrivals)
    backlog = largest = 0.0
    if most > able:  # else nothing ever waits
        for arriving in arrivals:
            backlog += (arriving - able) * STEP_SECONDS
            if backlog < 0.0:
                backlog = 0.0
            elif backlog > largest:
                largest = backlog
    longest = 0.0 if most <= able else largest / able if able else math.inf
    return Course(
        account=(most * account_each + steady) / can["account"],
        queue=most * queue_each / can["queue"],
        partition=most * load.rows / can["partition"],
        longest_seconds=longest + load.handler_seconds,
    )


def plan(load: Load, limits: Limits = DEFAULT_LIMITS, prices: Prices = DEFAULT_PRICES) -> Plan:
    """The smallest layout with which the day is within every limit, and in time."""
    layout = Layout(_MOST, _MOST, _MOST, _MOST)
    for name in ("accounts", "queues", "partitions", "instances"):
        layout = _smallest(load, layout, name, limits)
    # One queue, and one partition, is in one account.
    layout = replace(
        layout,
        queues=max(layout.queues, layout.accounts),
        partitions=max(layout.partitions, layout.accounts) if load.rows else 0,
    )
    peak = max(_arrivals(load))
    workers = max(layout.instances, load.workers)
    seconds = max(_RANGE_SECONDS, workers / (limits.blob * limits.share))
    range_size = max(_USUAL_RANGE, math.ceil(peak / workers * seconds))
    requests = _requests(load, range_size, limits)
    dollars = (
        requests["queue"] * prices.queue
        + requests["table"] * prices.table
        + requests["blob reads"] * prices.blob_read
        + requests["blob writes"] * prices.blob_write
    ) / 10_000
    hours = load.orders_per_day * load.handler_seconds / load.slots / 3600
    course = simulate(load, replace(layout, partitions=max(1, layout.partitions)), limits)
    return Plan(
        load, layout, course, peak, range_size, requests, dollars, hours, _notes(load, layout, limits)
    )


@lru_cache(maxsize=8)
def _arrivals(load: Load) -> tuple[float, ...]:
    """Items a second in each step of the day."""
    return tuple(
        load.per_second((step + 0.5) * STEP_SECONDS) for step in range(round(DAY_SECONDS / STEP_SECONDS))
    )


def _smallest(load: Load, layout: Layout, name: str, limits: Limits) -> Layout:
    """With as few of that as suffice; a number that suffices does so with more."""
    fewest, enough = 1, _MOST
    if not _suffices(load, layout, limits):
        raise ConfigurationError(f"not even {_MOST:,} {name} are enough for this load")
    while fewest < enough:
        middle = (fewest + enough) // 2
        if _suffices(load, replace(layout, **{name: middle}), limits):
            enough = middle
        else:
            fewest = middle + 1
    return replace(layout, **{name: enough})


def _suffices(load: Load, layout: Layout, limits: Limits) -> bool:
    course = simulate(load, layout, limits)
    is_within = max(course.account, course.queue, course.partition) <= 1 + 1e-9
    return is_within and course.longest_seconds <= load.latency_seconds


def _is_large(load: Load, limits: Limits) -> bool:
    return load.item_bytes * load.items_per_message * _BASE64 > limits.message_bytes


def _each(load: Load, limits: Limits) -> tuple[float, float]:
    """Requests for one item: to a queue (put, receive, delete), and to the account (payload and rows as well)."""
    queue = (2 + _GETS) / load.items_per_message
    blobs = 3 / load.items_per_message if _is_large(load, limits) else 0.0
    return queue, queue + blobs + load.rows


def _steady_per_second(load: Load) -> float:
    """What workers ask for besides messages: ranges with their ledger, gates, reports."""
    return load.workers * (2 / _RANGE_SECONDS + 1 / _VERIFY_SECONDS + 1 / _REPORT_SECONDS)


def _requests(load: Load, range_size: int, limits: Limits) -> dict[str, float]:
    """A day's requests, by kind."""
    messages = load.orders_per_day / load.items_per_message
    is_large = _is_large(load, limits)
    grants = load.orders_per_day / range_size
    reports = load.workers * DAY_SECONDS / _REPORT_SECONDS
    return {
        "queue": messages * (2 + _GETS) + load.workers * _IDLE_REQUESTS,
        "table": load.orders_per_day * load.rows + grants + reports,
        "blob reads": (messages if is_large else 0.0) + load.workers * DAY_SECONDS / _VERIFY_SECONDS,
        "blob writes": (messages if is_large else 0.0) + grants,
    }


def _notes(load: Load, layout: Layout, limits: Limits) -> tuple[str, ...]:
    found = []
    if layout.instances > load.workers:
        found.append(
            f"{load.workers:,} workers are too few: run {layout.instances:,}, or more handlers in each"
        )
    if layout.queues > 1:
        found.append(f"use storage.sharded_queue(name, shards={layout.queues})")
    if layout.accounts > 1:
        found.append("a Storage object is one account: divide the queues between so many")
    if _is_large(load, limits):
        found.append("messages do not fit into 64 KiB: each payload is a blob as well")
    elif load.items_per_message == 1:
        fit = int(limits.message_bytes / _BASE64 / load.item_bytes)
        if fit > 1:
            found.append(f"up to {fit} items fit into a message: a put of several costs one request")
    if load.workers > _HUB_WORKERS:
        hubs = math.ceil(load.workers / _HUB_WORKERS)
        found.append(
            f"run {hubs} dashboard processes over Redis, one for each {_HUB_WORKERS:,} workers: docs/capacity.md"
        )
    if load.workers / _VERIFY_SECONDS > limits.blob * limits.share:
        found.append("so many workers read a gate too often: raise GateConfig(verify_seconds=)")
    return tuple(found)
