"""Days of load against rules for the number of instances: what is late, instance hours, turns, distance to the oracle.

    python benchmarks/scaling.py [--seed 1] [--day diurnal] [--json]

Kennel's figures come from its own observer and its own decision on a simulated pool (`scaling_pool.py`), the rest from
`scaling_rules.py`. KEDA's azure-queue rule gets the `queueLength` that is best for that day, found by trying them all.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.scaling_oracle import best_plan
from benchmarks.scaling_pool import Day, Pool, read_days
from benchmarks.scaling_rules import Keda, Kennel, Rule, StepTable, policy_for

# queueLength as seconds of work of one instance: from one that keeps hardly any waiting to one that fills the target.
LENGTHS = (0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.3)


@dataclass(frozen=True)
class Outcome:
    """A day under one rule. `turns`: how often the direction changed."""

    day: str
    rule: str
    late_share: float
    hours: float
    changes: int
    turns: int


def simulate(day: Day, name: str, make: Callable[[Pool], Rule]) -> Outcome:
    pool = Pool(day)
    rule = make(pool)
    for _ in range(day.seconds):
        rule.step(pool)
        pool.step()
    overdue = sum(
        count for since, count in pool.waiting if day.seconds - since > day.target_seconds and count
    )
    signs = [after > before for _, before, after in pool.changes]
    turns = sum(first != second for first, second in itertools.pairwise(signs))
    late = (pool.late + overdue) / max(1, pool.arrived)
    return Outcome(day.name, name, round(late, 5), round(pool.instance_seconds / 3600, 2), len(signs), turns)


def best_keda(day: Day) -> Outcome:
    """The fewest late (within a thousandth), then the fewest hours."""
    lengths = [max(1, round(day.rate(0) * day.target_seconds * share)) for share in LENGTHS]
    tried = [
        simulate(day, f"KEDA, queueLength {length}", lambda pool, n=length: Keda(n)) for length in lengths
    ]
    least = min(each.late_share for each in tried)
    return min((each for each in tried if each.late_share <= least + 0.001), key=lambda each: each.hours)


def oracle(day: Day) -> Outcome:
    """Knows what will come; what it has late, nobody could have done in time."""
    hours, late = best_plan(day)
    return Outcome(day.name, "oracle", round(late / max(1, sum(day.arrivals)), 5), round(hours, 2), 0, 0)


def compare(day: Day) -> list[Outcome]:
    return [
        simulate(day, "Kennel", lambda pool: Kennel(pool, policy_for(day))),
        best_keda(day),
        simulate(day, "step table", lambda pool: StepTable()),
        oracle(day),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--day", default="", help="only this one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for day in read_days(options.seed, options.day):
        outcomes = compare(day)
        if options.json:
            print(json.dumps([asdict(outcome) for outcome in outcomes]))
            continue
        print(f"{day.name}: {sum(day.arrivals):,} items, at least {day.least_hours:.1f} h")
        for each in outcomes:
            print(
                f"  {each.rule:24} {each.late_share:8.2%} late {each.hours:8.1f} h {each.hours / day.least_hours:6.2f} {each.changes:6} changes {each.turns:6} turns"
            )


if __name__ == "__main__":
    main()
