"""What a pool takes in a day: instance hours, those that KEDA's rule would have taken, and what arrived in each hour. Pure."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
from msgspec import Meta

from coordinator.bounds import Count, Figure, Moment
from coordinator.scaling.decision import Observation
from coordinator.scaling.policy import ScalingPolicy

DAY_SECONDS, HOUR_SECONDS = 86_400.0, 3600.0
WEEK_SECONDS = 7 * DAY_SECONDS
# As KEDA and the autoscaler of Kubernetes document them.
_IDLE_SECONDS, _STABLE_SECONDS, _TOLERANCE, _MOST_ADDED = 300.0, 300.0, 0.1, 4
_MOST_WISHES = 50
_Hours = Annotated[tuple[Figure, ...], Meta(min_length=24, max_length=24)]


class KedaPool(msgspec.Struct, frozen=True):
    """The same pool under KEDA's azure-queue scaler: its instances, those of them that boot as (until, instances), what
    waits, and the wishes of the last 300 s as (at, instances), from high to low."""

    instances: Count = 0
    booting: Annotated[tuple[tuple[Moment, Count], ...], Meta(max_length=_MOST_WISHES)] = ()
    backlog: Figure = 0.0
    active_at: Moment = 0.0
    wishes: Annotated[tuple[tuple[Moment, Count], ...], Meta(max_length=_MOST_WISHES)] = ()


class Usage(msgspec.Struct, frozen=True):
    """A day (UTC, from `day`) up to `at`. `arrived` are items by hour; `keda_seconds` is an estimate."""

    day: Moment
    at: Moment
    instance_seconds: Figure = 0.0
    keda_seconds: Figure = 0.0
    arrived: _Hours = (0.0,) * 24
    keda: KedaPool = KedaPool()


def day_of(at: float) -> float:
    """The midnight (UTC) before."""
    return at // DAY_SECONDS * DAY_SECONDS


def count_usage(before: Usage | None, policy: ScalingPolicy, seen: Observation) -> tuple[Usage, Usage | None]:
    """The day with what was since the last look, and the day that has ended with it, if one has."""
    day = day_of(seen.at)
    if before is None or before.at > seen.at:
        return Usage(day, seen.at), None
    seconds = seen.at - before.at
    keda = _keda(before.keda, policy, seen, seconds)
    hours = list(before.arrived if before.day == day else (0.0,) * 24)
    hours[int((seen.at - day) // HOUR_SECONDS)] += seen.arrived
    counted = min(seconds, seen.at - day)  # of this day
    is_same = before.day == day
    now = Usage(
        day,
        seen.at,
        (before.instance_seconds if is_same else 0.0) + seen.actual * counted,
        (before.keda_seconds if is_same else 0.0) + keda.instances * counted,
        tuple(hours),
        keda,
    )
    if is_same:
        return now, None
    left = max(0.0, min(seconds, before.day + DAY_SECONDS - before.at))
    ended = msgspec.structs.replace(
        before,
        at=before.day + DAY_SECONDS,
        instance_seconds=before.instance_seconds + seen.actual * left,
        keda_seconds=before.keda_seconds + before.keda.instances * left,
    )
    return now, ended


def _keda(keda: KedaPool, policy: ScalingPolicy, seen: Observation, seconds: float) -> KedaPool:
    """Its next state; `queueLength` is half of what an instance does within the target time."""
    rate = seen.instance_per_second or policy.instance_per_second
    booting = tuple(each for each in keda.booting if each[0] > seen.at)
    ready = keda.instances - sum(each for _, each in booting)
    able = 0.0 if seen.held_by else rate * max(0, ready) * seconds
    work = keda.backlog + max(0.0, seen.arrived)
    done = min(able, work)
    backlog = work - done
    count = backlog + (done / seconds * (seen.item_seconds or 0.0) if seconds else 0.0)
    is_active = count >= 1 or seen.arrived > 0
    active_at = seen.at if is_active else keda.active_at
    lowest, highest, _ = policy.bounds(seen.at)
    length = max(1.0, rate * policy.target_seconds / 2)
    now = keda.instances
    if now and abs(count / length / now - 1) <= _TOLERANCE:
        wish = now
    else:
        wish = max(1, lowest, min(highest, math.ceil(count / length)))
    recent = [each for each in keda.wishes if each[0] > seen.at - _STABLE_SECONDS and each[1] > wish]
    wishes = (*recent, (seen.at, wish))[:_MOST_WISHES]
    if not is_active and seen.at - active_at >= _IDLE_SECONDS and not lowest:
        wanted, wishes = 0, ()
    elif not now:
        wanted = 1 if is_active or lowest else 0
    elif wish > now:
        wanted = min(wish, max(2 * now, now + _MOST_ADDED))
    else:
        wanted = min(now, wishes[0][1])
    if wanted > now:
        booting = (*booting, (seen.at + policy.boot_seconds, wanted - now))[-_MOST_WISHES:]
    return KedaPool(wanted, booting if wanted else (), backlog, active_at, wishes)


def expected_per_second(days: dict[float, Usage | None], at: float, ahead_seconds: float) -> float | None:
    """The higher mean rate of the hours of now and `ahead_seconds` from now, a week before; None if no such day is known.

    `days`: what was recorded, by the midnight at its start.
    """
    rates = []
    for moment in (at - WEEK_SECONDS, at - WEEK_SECONDS + ahead_seconds):
        if (usage := days.get(day_of(moment))) is not None:
            rates.append(usage.arrived[int((moment - usage.day) // HOUR_SECONDS)] / HOUR_SECONDS)
    return max(rates, default=None)
