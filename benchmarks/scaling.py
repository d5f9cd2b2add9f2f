"""A day of load against rules for the number of instances: late items, instance-hours, money, changes of direction.

    python benchmarks/scaling.py [--seed 1] [--days 1] [--quick] [--json]

The day is the source's: idle for 16 hours and for most of the others, then bursts of up to 100,000 transactions that
must be done within an agreed time. It is simulated in steps of five seconds; nothing runs and nothing is sent. All rules
start instances that take the same time to boot and work at the same rate. The fixed fleet is the smallest that is
never late; KEDA's azure-queue rule is given its default and the best of a row of queue lengths.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordinator.scaling.decision import Memory, Observation, decide
from coordinator.scaling.policy import ScalingPolicy

STEP = 5.0
DAY = 86_400.0
MIDNIGHT = datetime(2026, 3, 4, tzinfo=UTC).timestamp()
RATE = 40.0  # items per second and instance
BOOT = 60.0
TARGET = 600.0  # seconds in which each item must be done
MOST = 40
DOLLARS_PER_HOUR = 0.096
AGENT_SECONDS = 15.0


def arrivals(seed: int) -> list[float]:
    """Items that arrive in each step of a day: a trickle in office hours, and bursts."""
    rng = random.Random(seed)
    steps = [0.0] * int(DAY / STEP)
    for step in range(int(8 * 3600 / STEP), int(16 * 3600 / STEP)):
        steps[step] += 2.0 * STEP * rng.uniform(0.5, 1.5)
    for _ in range(6):
        size = rng.choice((20_000, 50_000, 100_000))
        start = int(rng.uniform(8 * 3600, 15.5 * 3600) / STEP)
        length = int(rng.uniform(30, 300) / STEP)
        for step in range(start, start + length):
            steps[step] += size / length
    return steps


@dataclass
class Pool:
    """Instances that boot, work, and leave; and the items that wait, by when they arrived."""

    ready: int = 0
    booting: deque[float] = field(default_factory=deque)
    waiting: deque[list[float]] = field(default_factory=deque)
    depth: float = 0.0
    late: float = 0.0
    seconds: float = 0.0
    changes: list[tuple[float, int]] = field(default_factory=list)

    @property
    def actual(self) -> int:
        return self.ready + len(self.booting)

    def scale(self, wanted: int, now: float) -> None:
        if wanted != self.actual:
            self.changes.append((now, wanted - self.actual))
        while self.actual < wanted:
            self.booting.append(now + BOOT)
        while self.actual > wanted:
            if self.booting:
                self.booting.pop()
            else:
                self.ready -= 1

    def step(self, now: float, arrived: float) -> None:
        while self.booting and self.booting[0] <= now:
            self.booting.popleft()
            self.ready += 1
        if arrived:
            self.waiting.append([now, arrived])
            self.depth += arrived
        capacity = self.ready * RATE * STEP
        while capacity > 0 and self.waiting:
            at, count = self.waiting[0]
            done = min(capacity, count)
            if now + STEP - at > TARGET:
                self.late += done
            capacity -= done
            self.depth -= done
            self.waiting[0][1] -= done
            if self.waiting[0][1] <= 1e-9:
                self.waiting.popleft()
        if not self.waiting:
            self.depth = 0.0
        self.seconds += self.actual * STEP

    def oldest(self, now: float) -> float:
        return now - self.waiting[0][0] if self.waiting else 0.0


Rule = Callable[[Pool, float], int]


@dataclass(frozen=True)
class Outcome:
    """A day under one rule. `quickest_turn_seconds` is the shortest time between two changes of direction (None: < 2)."""

    rule: str
    late_items: int
    late_share: float
    instance_hours: float
    dollars: float
    changes: int
    quickest_turn_seconds: float | None


def simulate(name: str, rule: Rule, days: list[list[float]], *, every: float, start: int = 0) -> Outcome:
    pool = Pool(ready=start)
    total = sum(sum(day) for day in days)
    now = MIDNIGHT
    for day in days:
        for arrived in day:
            if (now - MIDNIGHT) % every < STEP:
                pool.scale(rule(pool, now), now)
            pool.step(now, arrived)
            now += STEP
    late = pool.late + sum(count for at, count in pool.waiting if now - at > TARGET)
    signs = [(at, change > 0) for at, change in pool.changes]
    turns = [at for (_, before), (at, after) in itertools.pairwise(signs) if before != after]
    gaps = [later - earlier for earlier, later in itertools.pairwise(turns)]
    hours = pool.seconds / 3600
    return Outcome(
        name,
        round(late),
        round(late / total, 5),
        round(hours, 2),
        round(hours * DOLLARS_PER_HOUR, 2),
        len(pool.changes),
        min(gaps, default=None),
    )


def fixed(count: int) -> Rule:
    return lambda pool, now: count


class Keda:
    """KEDA's azure-queue trigger with its defaults: from 0 to 1 by itself, beyond by the autoscaler, which may double or
    add four each 15 s, goes down to the highest wish of the last 300 s, and to 0 after 300 s without a message."""

    def __init__(self, queue_length: float) -> None:
        self.queue_length = queue_length
        self.wishes: deque[tuple[float, int]] = deque()
        self.active_at = -math.inf

    def __call__(self, pool: Pool, now: float) -> int:
        if pool.depth > 0:
            self.active_at = now
        wish = min(MOST, math.ceil(pool.depth / self.queue_length))
        self.wishes.append((now, wish))
        while self.wishes[0][0] < now - 300:
            self.wishes.popleft()
        if now - self.active_at > 300:
            return 0
        stable = max(1, max(wish for _, wish in self.wishes))
        if wish > pool.actual:
            return min(max(1, wish), max(2 * pool.actual, pool.actual + 4))
        return min(pool.actual, stable) if pool.actual else 1


class Ours:
    """The agent's own decision, from what its observer can see. At `killed` (moments) the agent dies; its successor comes
    20 s later and has nothing but the record."""

    def __init__(self, policy: ScalingPolicy, killed: Sequence[float] = ()) -> None:
        self.policy = policy
        self.memory = Memory()
        self.killed = killed

    def __call__(self, pool: Pool, now: float) -> int:
        if any(at <= now < at + 20 for at in self.killed):
            return pool.actual
        seen = Observation(
            at=now,
            actual=pool.actual,
            visible=math.ceil(pool.depth),
            in_flight=0,
            oldest_seconds=pool.oldest(now),
        )
        decision = decide(self.policy, seen, self.memory)
        self.memory = decision.memory
        return decision.wanted


def compare(days: list[list[float]]) -> list[Outcome]:
    """The smallest fixed fleet that is never late, KEDA's rule, and ours."""
    count = next(
        (n for n in range(1, MOST + 1) if simulate("", fixed(n), days, every=DAY, start=n).late_items == 0),
        MOST,
    )
    outcomes = [simulate(f"fixed fleet of {count}", fixed(count), days, every=DAY, start=count)]
    outcomes.append(simulate("KEDA azure-queue, default (5)", Keda(5), days, every=15))
    tuned = [
        simulate(f"KEDA azure-queue, best of row ({length})", Keda(length), days, every=15)
        for length in (100, 500, 1000, 2000, 4000, 6000, 8000, 12_000, 16_000)
    ]
    outcomes.append(min(tuned, key=lambda each: (each.late_items, each.instance_hours)))
    policy = ScalingPolicy(
        minimum=0,
        maximum=MOST,
        target_seconds=TARGET * 0.9,
        boot_seconds=BOOT,
        instance_per_second=RATE,
        step_seconds=30,
        cooldown_seconds=180,
    )
    outcomes.append(simulate("Kennel", Ours(policy), days, every=AGENT_SECONDS))
    rng = random.Random(len(days))
    killed = [MIDNIGHT + rng.uniform(0, DAY * len(days)) for _ in range(50 * len(days))]
    name = "Kennel, its agent killed 50 times a day"
    outcomes.append(simulate(name, Ours(policy, killed), days, every=AGENT_SECONDS))
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--days", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one day")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    days = [arrivals(options.seed + day) for day in range(1 if options.quick else options.days)]
    outcomes = compare(days)
    if options.json:
        print(json.dumps([outcome.__dict__ for outcome in outcomes]))
        return
    base = outcomes[0].instance_hours
    print(f"{len(days)} days, {sum(sum(day) for day in days):,.0f} items, each due in {TARGET:g} s")
    print(
        f"{'rule':40} {'late':>8} {'hours':>8} {'of fixed':>9} {'dollars':>8} {'changes':>8} {'quickest turn':>14}"
    )
    for each in outcomes:
        turn = f"{each.quickest_turn_seconds:g} s" if each.quickest_turn_seconds else "-"
        print(
            f"{each.rule:40} {each.late_items:8,} {each.instance_hours:8.1f} {each.instance_hours / base:9.0%} "
            f"{each.dollars:8.2f} {each.changes:8} {turn:>14}"
        )


if __name__ == "__main__":
    main()
