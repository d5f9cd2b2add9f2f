"""A simulated pool of instances, and the days it lives through; in steps of one second, nothing runs and nothing is sent.

A day is a file of `benchmarks/scaling_days`: what the pool is (``target_seconds``, ``boot_seconds``, ``maximum``, ``slots``,
``handler_seconds``) and `parts`, each of which adds load or disturbs: ``diurnal``, ``bursts``, ``steps``, ``steady``, ``drift``
(of the handlers' time), ``outage`` (nothing is done), ``gate`` (closed until it opens). What is random comes from the seed.
"""

from __future__ import annotations

import json
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("scaling_days")
MIDNIGHT = datetime(2026, 3, 4, tzinfo=UTC).timestamp()
REPORT_SECONDS = 10
_SLOW_SECONDS = 5


@dataclass(frozen=True)
class Day:
    """What arrives in each second, how long an item takes then, and when nothing is done or the gate is closed."""

    name: str
    seconds: int
    target_seconds: float
    boot_seconds: int
    maximum: int
    slots: int
    arrivals: list[int]
    handler_seconds: list[float]
    outages: list[tuple[int, int]] = field(default_factory=list)
    closed: list[tuple[int, int]] = field(default_factory=list)

    def rate(self, second: int) -> float:
        """Items a second and instance."""
        return self.slots / self.handler_seconds[second]

    @property
    def least_hours(self) -> float:
        """Work ÷ rate: the hours of instances that are never idle and boot in no time."""
        works = (count / self.rate(second) for second, count in enumerate(self.arrivals))
        return sum(works) / 3600

    def is_out(self, second: int) -> bool:
        return any(start <= second < end for start, end in self.outages)

    def is_closed(self, second: int) -> bool:
        return any(start <= second < end for start, end in self.closed)

    def due(self, arrived: int) -> float:
        """When an item has to be done: time in which the gate is closed does not count."""
        by = arrived + self.target_seconds
        for start, end in self.closed:
            if start < by and arrived < end:
                by += end - max(start, arrived)
        return by


Part = Callable[[dict[str, Any], random.Random, list[float], list[float], list[int]], None]


def _diurnal(
    part: dict[str, Any], rng: random.Random, load: list[float], takes: list[float], extra: list[int]
) -> None:
    start, end = int(part["from_hour"] * 3600), int(part["to_hour"] * 3600)
    wobble, phase = part.get("wobble", 0.0), rng.uniform(0, 6.283)
    for second in range(start, min(end, len(load))):
        height = math.sin(math.pi * (second - start) / (end - start))
        load[second] += part["peak"] * height * (1 + wobble * math.sin(second / 1700 + phase))


def _bursts(
    part: dict[str, Any], rng: random.Random, load: list[float], takes: list[float], extra: list[int]
) -> None:
    for _ in range(part["count"]):
        size = rng.choice(part["size"]) if isinstance(part["size"], list) else part["size"]
        at = int(rng.uniform(part["from_hour"], part["to_hour"]) * 3600)
        length = part["seconds"]
        for second in range(at, min(at + length, len(load))):
            extra[second] += size // length


def _steps(
    part: dict[str, Any], rng: random.Random, load: list[float], takes: list[float], extra: list[int]
) -> None:
    second = int(part["from_hour"] * 3600)
    while second < part["to_hour"] * 3600:
        rate = rng.uniform(*part["rates"])
        end = second + int(rng.uniform(*part["minutes"]) * 60)
        for at in range(second, min(end, len(load), int(part["to_hour"] * 3600))):
            load[at] += rate
        second = end


def _steady(
    part: dict[str, Any], rng: random.Random, load: list[float], takes: list[float], extra: list[int]
) -> None:
    for second in range(len(load)):
        load[second] += part["rate"]


def _drift(
    part: dict[str, Any], rng: random.Random, load: list[float], takes: list[float], extra: list[int]
) -> None:
    """The handlers' time goes from one factor to the next, evenly; the factors are spread over the day."""
    factors = part["factors"]
    span = len(takes) / (len(factors) - 1)
    for second in range(len(takes)):
        place, within = divmod(second / span, 1)
        here, there = factors[int(place)], factors[int(place) + 1]
        takes[second] *= here + (there - here) * within


def _nothing(
    part: dict[str, Any], rng: random.Random, load: list[float], takes: list[float], extra: list[int]
) -> None:
    """Outages and gates are no load."""


PARTS: dict[str, Part] = {
    "diurnal": _diurnal,
    "bursts": _bursts,
    "steps": _steps,
    "steady": _steady,
    "drift": _drift,
    "outage": _nothing,
    "gate": _nothing,
}


def make_day(told: dict[str, Any], seed: int) -> Day:
    """The day that a file describes, with what is random drawn from `seed`."""
    rng = random.Random(f"{told['name']} {seed}")
    seconds = int(told["hours"] * 3600)
    load, extra = [0.0] * seconds, [0] * seconds
    takes = [float(told["handler_seconds"])] * seconds
    for part in told["parts"]:
        PARTS[part["kind"]](part, rng, load, takes, extra)
    spans: dict[str, list[tuple[int, int]]] = {"outage": [], "gate": []}
    for part in told["parts"]:
        if part["kind"] in spans:
            start = int(part["from_hour"] * 3600)
            spans[part["kind"]].append((start, start + int(part["minutes"] * 60)))
    arrivals = [_poisson(rng, rate) + more for rate, more in zip(load, extra, strict=True)]
    return Day(
        told["name"],
        seconds,
        told["target_seconds"],
        told["boot_seconds"],
        told["maximum"],
        told["slots"],
        arrivals,
        takes,
        spans["outage"],
        spans["gate"],
    )


def read_days(seed: int, only: str = "") -> list[Day]:
    """The days of all files, by name."""
    told = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    return [make_day(each, seed) for each in told if only in ("", each["name"])]


def _poisson(rng: random.Random, mean: float) -> int:
    if mean <= 0:
        return 0
    if mean > 30:
        return max(0, round(rng.gauss(mean, math.sqrt(mean))))
    limit, count, product = math.exp(-mean), 0, rng.random()
    while product > limit:
        count += 1
        product *= rng.random()
    return count


@dataclass
class Instance:
    """One of the pool: when it is ready, and what each instance of the pool had done by then."""

    number: int
    ready_at: int
    share_before: float = 0.0
    share: float = 0.0
    left_at: int = 0


class Pool:
    """Instances that boot, work and leave when their jobs have ended; the items that wait, by when they arrived."""

    def __init__(self, day: Day, start: int = 0) -> None:
        self.day = day
        self.second = 0
        self.instances = [Instance(number, 0) for number in range(start)]
        self.ready = start
        self.waiting: deque[list[int]] = deque()
        self.depth = 0
        self.running: deque[tuple[float, int]] = deque()
        self.held = 0
        self.arrived = self.late = self.done = 0
        self.instance_seconds = 0
        self.changes: list[tuple[int, int, int]] = []
        self.credit = 0.0
        self.shares: deque[float] = deque([0.0], maxlen=REPORT_SECONDS + 1)
        self.left: deque[Instance] = deque(maxlen=100)
        self._born = start

    @property
    def actual(self) -> int:
        return len(self.instances)

    @property
    def in_flight(self) -> int:
        """How many are being processed at a moment; `held` are those of the whole last second."""
        takes = self.day.handler_seconds[min(self.second, self.day.seconds - 1)]
        return math.ceil(self.held * min(1.0, takes))

    @property
    def count(self) -> int:
        """What the service says of the queue: invisible messages included."""
        return self.depth + self.in_flight

    def scale(self, wanted: int) -> None:
        now = self.actual
        if wanted == now:
            return
        self.changes.append((self.second, now, wanted))
        while len(self.instances) < wanted:
            self.instances.append(Instance(self._born, self.second + self.day.boot_seconds))
            self._born += 1
        while len(self.instances) > wanted:  # the newest, so those that still boot, leave first
            gone = self.instances.pop()
            if len(self.instances) < self.ready:
                self.ready -= 1
                gone.share, gone.left_at = self.shares[-1], self.second
                self.left.append(gone)

    def step(self) -> None:
        """One second."""
        day, second = self.day, self.second
        while self.ready < len(self.instances) and self.instances[self.ready].ready_at <= second:
            instance = self.instances[self.ready]
            instance.share_before = self.shares[-1]
            self.ready += 1
        arrived = day.arrivals[second]
        if arrived:
            self.waiting.append([second, arrived])
            self.depth += arrived
            self.arrived += arrived
        is_out = day.is_out(second)
        ended = 0
        while self.running and self.running[0][0] <= second + 0.5 and not is_out:
            ended += self.running.popleft()[1]
        self.held -= ended
        self.done += ended
        if self.waiting and not is_out and not day.is_closed(second):
            self._take(second, day.handler_seconds[second])
        self.shares.append(self.shares[-1] + (ended / self.ready if self.ready else 0.0))
        draining = 0
        if day.handler_seconds[second] >= _SLOW_SECONDS:  # who leaves is paid until its jobs have ended
            draining = math.ceil(max(0, self.held - self.ready * day.slots) / day.slots)
        self.instance_seconds += self.actual + draining
        self.second += 1

    def _take(self, second: int, takes: float) -> None:
        slots = self.ready * self.day.slots
        if takes < _SLOW_SECONDS:  # in steps of a second, slots of short jobs are counted as a rate
            self.credit = min(self.credit + slots / takes, slots / takes + 1)
            free = int(self.credit)
        else:
            free = slots - self.held
        ends, taken = second + takes, 0
        while free > 0 and self.waiting:
            first = self.waiting[0]
            count = min(free, first[1])
            if ends > self.day.due(first[0]):
                self.late += count
            taken += count
            free -= count
            first[1] -= count
            if not first[1]:
                self.waiting.popleft()
        self.credit -= taken
        if taken:
            self.depth -= taken
            self.held += taken
            self.running.append((ends, taken))
