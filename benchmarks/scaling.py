"""Days of load against rules for the number of instances: what is late, instance hours, turns, distance to the oracle.

    python benchmarks/scaling.py [--seed 1] [--day diurnal] [--json | --table] [--graph docs/images/scaling-day.svg]
    python benchmarks/scaling.py --day steady --turns 6

Kennel's figures come from its own observer and its own decision on a simulated pool (`scaling_pool.py`), the rest from
`scaling_rules.py`. KEDA's azure-queue rule gets the `queueLength` that is best for that day, found by trying many.
`--table` prints the table of `docs/scaling.md`, `--graph` draws one day.
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

from benchmarks.scaling_graph import Course, draw
from benchmarks.scaling_oracle import best_plan, fewest_hours, hours_without_waiting
from benchmarks.scaling_pool import Day, Pool, read_days
from benchmarks.scaling_rules import Keda, Kennel, Rule, StepTable, policy_for

# queueLength as a share of what one instance does in the time agreed: from hardly any waiting to more than fits.
LENGTHS = (0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.3)
HEADING = "| day | late: Kennel | KEDA | steps | hours: least | oracle | Kennel | KEDA | steps | turns: Kennel | KEDA | agent killed 50 times a day |"


@dataclass(frozen=True)
class Outcome:
    """A day under one rule. `turns`: how often the direction changed."""

    day: str
    rule: str
    late_share: float
    hours: float
    changes: int
    turns: int


def simulate(
    day: Day, name: str, make: Callable[[Pool], Rule], *, watch: Callable[[Pool], None] | None = None
) -> Outcome:
    pool = Pool(day)
    rule = make(pool)
    for _ in range(day.seconds):
        rule.step(pool)
        if watch is not None:
            watch(pool)
        pool.step()
    overdue = sum(count for arrived, count in pool.waiting if day.seconds > day.due(arrived))
    signs = [after > before for _, before, after in pool.changes]
    turns = sum(first != second for first, second in itertools.pairwise(signs))
    late = (pool.late + overdue) / max(1, pool.arrived)
    hours = round(pool.instance_seconds / 3600, 2)
    return Outcome(day.name, name, round(late, 5), hours, len(signs), turns)


def queue_lengths(day: Day) -> list[int]:
    """The settings of KEDA that are tried."""
    return [max(1, round(day.rate(0) * day.target_seconds * share)) for share in LENGTHS]


def best_keda(day: Day) -> Outcome:
    """The fewest late (within a thousandth), then the fewest hours."""
    tried = [
        simulate(day, f"KEDA, queueLength {length}", lambda pool, n=length: Keda(n))
        for length in queue_lengths(day)
    ]
    least = min(each.late_share for each in tried)
    return min((each for each in tried if each.late_share <= least + 0.001), key=lambda each: each.hours)


def oracle(day: Day) -> Outcome:
    """Knows what will come; what it has late, nobody could have done in time."""
    hours, late = best_plan(day)
    return Outcome(day.name, "oracle", round(late / max(1, sum(day.arrivals)), 5), round(hours, 2), 0, 0)


def disturbed(day: Day) -> Outcome:
    """Kennel, whose agent is killed 50 times in 24 hours."""
    return simulate(day, "Kennel, killed", lambda pool: Kennel(pool, policy_for(day), dies_every=1728))


def compare(day: Day) -> list[Outcome]:
    return [
        simulate(day, "Kennel", lambda pool: Kennel(pool, policy_for(day))),
        best_keda(day),
        simulate(day, "step table", lambda pool: StepTable()),
        oracle(day),
        disturbed(day),
    ]


def row(day: Day, outcomes: list[Outcome]) -> str:
    """A row of the table in the documentation."""
    ours, keda, steps, best, killed = outcomes
    length = keda.rule.rpartition(" ")[2]
    return (
        f"| {day.name} | {ours.late_share:.2%} | {keda.late_share:.2%} ({length}) | {steps.late_share:.2%} "
        f"| {day.least_hours:.1f} | {best.hours:.1f} | {ours.hours:.1f} | {keda.hours:.1f} | {steps.hours:.1f} "
        f"| {ours.turns} | {keda.turns} | {killed.late_share:.2%}, {killed.hours:.1f} h |"
    )


def graph(day: Day) -> str:
    """That day under Kennel and under KEDA at its best."""
    kennel, keda, best = Course(), Course(), best_keda(day)
    length = int(best.rule.rpartition(" ")[2])
    simulate(day, "Kennel", lambda pool: Kennel(pool, policy_for(day)), watch=kennel.see)
    simulate(day, best.rule, lambda pool: Keda(length), watch=keda.see)
    return draw(
        f"The {day.name} day: {sum(day.arrivals):,} items, each due in {day.target_seconds:g} s",
        kennel,
        keda,
        best.rule,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--day", default="", help="only this one")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--graph", type=Path, help="draw the day into this file, and do nothing else")
    parser.add_argument(
        "--turns", type=int, help="print the fewest hours of any plan with so many turns, only"
    )
    options = parser.parse_args()
    days = read_days(options.seed, options.day)
    if options.graph:
        chosen = next(day for day in days if day.name == (options.day or "diurnal"))
        options.graph.write_text(graph(chosen))
        return
    if options.turns is not None:
        for day in days:
            bound = fewest_hours(day, options.turns, best_keda(day).late_share)
            free = hours_without_waiting(day)
            print(f"{day.name}: {bound:.2f} h with {options.turns} turns and as much late as KEDA has")
            print(f"{day.name}: {free:.2f} h if nothing may wait at any moment")
        return
    if options.table:
        print(HEADING, "|---|---|---|---|---|---|---|---|---|---|---|---|", sep="\n")
    for day in days:
        outcomes = compare(day)
        if options.json:
            print(json.dumps([asdict(outcome) for outcome in outcomes]))
        elif options.table:
            print(row(day, outcomes), flush=True)
        else:
            print(f"{day.name}: {sum(day.arrivals):,} items, at least {day.least_hours:.1f} h")
            for each in outcomes:
                print(
                    f"  {each.rule:24} {each.late_share:8.2%} late {each.hours:8.1f} h "
                    f"{each.hours / day.least_hours:6.2f} {each.changes:6} changes {each.turns:6} turns"
                )


if __name__ == "__main__":
    main()
