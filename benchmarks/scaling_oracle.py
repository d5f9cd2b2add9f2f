"""The fewest instance hours of any plan that knows what will come: the bound that no rule beats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from benchmarks.scaling_pool import Day

STEP = 15
_LATE = 1e9
_NEVER = math.inf
_PRICE = 10.0  # instance seconds for what one instance does in a quarter of a step, if it is late
_PARTS = 4
_AROUND = 60


def fewest_hours(day: Day, turns: int, late_share: float) -> float:
    """A bound: no plan with so many changes of direction, and no larger share late, takes fewer instance hours.

    The program of `best_plan`, with the direction and the turns beside the number of instances. What is late has a price;
    a plan within `late_share` pays at most the price of all of it, which is subtracted.
    """
    unit, boot = day.slots / max(day.handler_seconds) * STEP / _PARTS, float(day.boot_seconds)
    arrived = sum(day.arrivals)
    none = [[_NEVER] for _ in range(day.maximum + 1)]
    ups = [[[boot * count] for count in range(day.maximum + 1)], *(none for _ in range(turns))]
    downs = [none for _ in range(turns + 1)]
    for seconds, coming, most, does in _steps(day, unit):
        ups, downs = (
            [_turned(ups[used], downs[used - 1] if used else none, boot) for used in range(turns + 1)],
            [
                _turned(downs[used][::-1], (ups[used - 1] if used else none)[::-1], 0.0)[::-1]
                for used in range(turns + 1)
            ],
        )
        for plans in (*ups, *downs):
            for count, row in enumerate(plans):
                moved = _moved(row, coming - math.floor(count * does + 1e-9), most, _PRICE)
                plans[count] = [cost + count * seconds for cost in moved]
    best = min(min(row) for plans in (*ups, *downs) for row in plans)
    return (best - _PRICE * late_share * arrived / unit) / 3600


def best_plan(day: Day) -> tuple[float, float]:
    """Its instance hours, and how many items are late all the same.

    By dynamic programming over steps of 15 s, the number of instances, and the backlog in quarters of what one does.

    Each instance is paid while it boots; it is asked for in advance, so that it is ready in time, and leaves at no cost.
    Nothing is late unless no number of instances could help. What is late has to be done all the same, at full use.
    """
    takes = day.handler_seconds
    unit = day.slots / max(takes) * STEP / _PARTS
    rows: list[list[float]] = [[0.0] for _ in range(day.maximum + 1)]
    for count in range(1, len(rows)):
        rows[count] = [float(day.boot_seconds * count)]
    for seconds, coming, most, does in _steps(day, unit):
        rows = _chosen(rows, float(day.boot_seconds))
        rows = [
            [cost + count * seconds for cost in _moved(row, coming - math.floor(count * does + 1e-9), most)]
            for count, row in enumerate(rows)
        ]
    best = min(min(row) for row in rows)
    lost = math.floor(best / _LATE)
    late = lost * unit
    return (best - lost * _LATE + late / day.rate(0)) / 3600, late


def _steps(day: Day, unit: float) -> Iterator[tuple[int, int, int, float]]:
    """Each step: its seconds, the units that come, the most that may wait at its end in time, and what one instance does."""
    arrived, due_at, known = [0, *itertools.accumulate(day.arrivals)], _due(day), 0
    for start in range(0, day.seconds, STEP):
        end = min(start + STEP, day.seconds)
        coming = math.floor(arrived[end] / unit) - known
        known += coming
        most = max(0, known - math.floor(due_at[end] / unit))
        is_idle = day.is_out(start) or day.is_closed(start)
        yield end - start, coming, most, 0.0 if is_idle else day.rate(start) * (end - start) / unit


def _due(day: Day) -> list[int]:
    """How many items must be done by each second."""
    due = [0] * (day.seconds + 1)
    for second, count in enumerate(day.arrivals):
        by = math.ceil(day.due(second) - day.handler_seconds[second])
        if by <= day.seconds:
            due[by] += count
    return list(itertools.accumulate(due))


def _chosen(rows: list[list[float]], boot: float) -> list[list[float]]:
    """The cheapest way to each number of instances from any other."""
    fewer = [rows[-1]]
    for row in rows[-2::-1]:
        fewer.append(list(map(min, row, fewer[-1])))
    fewer.reverse()
    more = [fewer[0]]
    for row in fewer[1:]:
        more.append([min(here, below + boot) for here, below in zip(row, more[-1], strict=True)])
    return more


def hours_without_waiting(day: Day) -> float:
    """The hours of whole instances with which nothing ever waits, but for an outage; then all work until it is caught up with.

    For who does not know when an outage begins, and wants nothing to wait at that moment. An estimate: boots and the
    chance of single seconds are not counted, the arrivals are those of two minutes.
    """
    arrived = [0, *itertools.accumulate(day.arrivals)]
    total, waiting = 0, 0.0
    for second, coming in enumerate(day.arrivals):
        does = day.rate(second)
        if day.is_out(second) or waiting > 0:
            count = day.maximum
            waiting += coming - (0.0 if day.is_out(second) else count * does)
        else:
            start, end = max(0, second - _AROUND), min(day.seconds, second + _AROUND)
            mean = (arrived[end] - arrived[start]) / (end - start)
            count = min(day.maximum, math.ceil(mean / does - 1e-9))
        total += count
    return total / 3600


def _turned(rows: list[list[float]], others: list[list[float]], price: float) -> list[list[float]]:
    """The cheapest way to each number, in order: on in the same direction from the one before, or by a turn from others'."""
    size = max(len(row) for row in (*rows, *others))
    padded = [[*row, *[_NEVER] * (size - len(row))] for row in rows]
    turned = [[*row, *[_NEVER] * (size - len(row))] for row in others]
    found = [padded[0]]
    for row, before in zip(padded[1:], turned, strict=False):
        found.append([min(a, b + price, c + price) for a, b, c in zip(row, found[-1], before, strict=True)])
    return found


def _moved(row: list[float], change: int, most: int, price: float = _LATE) -> list[float]:
    """Costs by backlog after it changed by so much; what is beyond `most` is late."""
    if change >= 0:
        new = [_NEVER] * change + row
    else:
        new = [min(row[: 1 - change]), *row[1 - change :]]
    if len(new) > most + 1:
        beyond = [cost + price * over for over, cost in enumerate(new[most + 1 :], start=1)]
        new = [*new[:most], min(new[most], *beyond)]
    return new + [_NEVER] * (most + 1 - len(new))
