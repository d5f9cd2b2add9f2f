"""Days that nobody has looked at: each is drawn from its seed, pool and load, and held to the bounds of the documentation.

python benchmarks/scaling_unseen.py --first 5000 --count 20
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.scaling import Outcome, best_keda, oracle, simulate
from benchmarks.scaling_pool import Day, make_day
from benchmarks.scaling_rules import Kennel, policy_for

HOURS = 6
Parts = list[dict[str, Any]]


def _diurnal(rng: random.Random, peak: float) -> Parts:
    return [
        {
            "kind": "diurnal",
            "peak": peak,
            "from_hour": 0.5,
            "to_hour": HOURS - 0.5,
            "wobble": rng.choice((0, 0.2)),
        }
    ]


def _bursts(rng: random.Random, peak: float) -> Parts:
    size, count = round(peak * rng.uniform(60, 200)), rng.randint(2, 8)
    return [
        {
            "kind": "bursts",
            "count": count,
            "size": size,
            "seconds": 20,
            "from_hour": 0.5,
            "to_hour": HOURS - 0.5,
        }
    ]


def _steps(rng: random.Random, peak: float) -> Parts:
    return [
        {"kind": "steps", "rates": [peak / 10, peak], "minutes": [15, 60], "from_hour": 0.5, "to_hour": HOURS}
    ]


def _steady(rng: random.Random, peak: float) -> Parts:
    return [{"kind": "steady", "rate": peak}]


def _drift(rng: random.Random, peak: float) -> Parts:
    return [
        {"kind": "steady", "rate": peak / 3},
        {"kind": "drift", "factors": [1, *(rng.uniform(0.7, 3) for _ in range(4))]},
    ]


def _outage(rng: random.Random, peak: float) -> Parts:
    at, minutes = rng.uniform(1, HOURS - 2), rng.randint(3, 12)
    return [*_diurnal(rng, peak), {"kind": "outage", "from_hour": at, "minutes": minutes}]


def _gate(rng: random.Random, peak: float) -> Parts:
    at, minutes = rng.uniform(1, HOURS - 2), rng.randint(5, 25)
    return [{"kind": "steady", "rate": peak / 2}, {"kind": "gate", "from_hour": at, "minutes": minutes}]


KINDS: dict[str, Callable[[random.Random, float], Parts]] = {
    "diurnal": _diurnal,
    "bursts": _bursts,
    "mixed": lambda rng, peak: [*_diurnal(rng, peak / 2), *_bursts(rng, peak / 2)],
    "steps": _steps,
    "steady": _steady,
    "drift": _drift,
    "outage": _outage,
    "gate": _gate,
}


def unseen(seed: int) -> Day:
    """The day of that seed: eight kinds by turns, of 8 to 30 busy instances at the peak, in a pool of up to three times as many."""
    rng = random.Random(f"unseen {seed}")
    kind = list(KINDS)[seed % len(KINDS)]
    handler_seconds = rng.choice((0.25, 1, 2, 20, 45))
    slots = rng.choice((4, 10, 20))
    busy = rng.randint(8, 30)
    # An item that takes long cannot be agreed to be done at once, nor before an instance could have begun.
    boot = rng.choice((15, 30, 60))
    target = max(rng.choice((60, 120, 300, 600)), round(3 * boot), round(5 * handler_seconds))
    told = {
        "name": f"{kind}-{seed}",
        "hours": HOURS,
        "target_seconds": target,
        "boot_seconds": boot,
        "maximum": round(busy * rng.uniform(1.3, 3)),
        "slots": slots,
        "handler_seconds": handler_seconds,
        "parts": KINDS[kind](rng, busy * slots / handler_seconds),
    }
    return make_day(told, seed)


def misses(day: Day, ours: Outcome, keda: Outcome) -> list[str]:
    """Which bounds that day is beyond."""
    found = []
    if ours.late_share > keda.late_share:
        found.append(f"{ours.late_share - keda.late_share:.3%} later than KEDA")
    if ours.hours > (most := max(0.9 * keda.hours, 1.1 * day.least_hours)):
        found.append(f"{ours.hours / most - 1:.1%} more hours than agreed")
    # Cheap first: the oracle takes longer than all else, and needs no fewer than the work itself, but for what is left over.
    if ours.hours > 1.25 * day.least_hours and ours.hours > 1.25 * (best := oracle(day).hours):
        found.append(f"{ours.hours / best:.2f} of the oracle")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--step", type=int, default=1)
    options = parser.parse_args()
    kept = 0
    for seed in range(options.first, options.first + options.count * options.step, options.step):
        day = unseen(seed)
        ours = simulate(day, "Kennel", lambda pool, day=day: Kennel(pool, policy_for(day)))
        keda = best_keda(day)
        missed = misses(day, ours, keda)
        kept += not missed
        print(
            f"{day.name:14} late {ours.late_share:7.3%} KEDA {keda.late_share:7.3%}   hours {ours.hours:7.2f} "
            f"KEDA {keda.hours:7.2f} least {day.least_hours:7.2f}   turns {ours.turns:3} KEDA {keda.turns:3}   "
            f"{'; '.join(missed) or 'kept'}",
            flush=True,
        )
    print(f"{kept} of {options.count} days within all bounds")


if __name__ == "__main__":
    main()
