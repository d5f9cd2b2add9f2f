"""What a pool takes in a day, beside what KEDA's rule would have taken; and what last week says."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from benchmarks.scaling import simulate
from benchmarks.scaling_pool import read_days
from benchmarks.scaling_rules import Keda, policy_for
from coordinator.scaling.decision import AgentState, Observation, decide
from coordinator.scaling.policy import ScalingPolicy
from coordinator.scaling.usage import DAY_SECONDS, WEEK_SECONDS, Usage, count_usage, expected_per_second

MIDNIGHT = 20_000 * DAY_SECONDS
POLICY = ScalingPolicy(maximum=20, target_seconds=60, boot_seconds=30, instance_per_second=10)


def seen(at: float, actual: int, arrived: float) -> Observation:
    return Observation(MIDNIGHT + at, actual, 0, 0, arrived=arrived)


def course(
    start: float, seconds: float, *, per_second: float, actual: int, before: Usage | None = None
) -> tuple[Usage, list[Usage]]:
    """A load without change, looked at every 15 s."""
    usage, ended = before, []
    for at in itertools.takewhile(lambda at: at <= start + seconds, itertools.count(start, 15)):
        usage, over = count_usage(usage, POLICY, seen(at, actual, per_second * 15))
        ended += [over] if over else []
    assert usage is not None
    return usage, ended


def test_instance_hours_and_arrivals_are_counted_by_hour() -> None:
    usage, ended = course(8 * 3600, 7200, per_second=2.0, actual=3)
    assert usage.instance_seconds == 3 * 7200
    assert usage.arrived[8] == pytest.approx(7200, rel=0.01)
    assert usage.arrived[9] == pytest.approx(7200, rel=0.01)
    assert not ended


def test_a_day_that_ends_is_complete_and_the_next_begins_at_nothing() -> None:
    usage, ended = course(DAY_SECONDS - 605, 1200, per_second=2.0, actual=3)
    (day,) = ended
    assert (day.day, day.at, day.instance_seconds) == (MIDNIGHT, MIDNIGHT + DAY_SECONDS, 3 * 605)
    assert usage.day == MIDNIGHT + DAY_SECONDS
    assert usage.instance_seconds == 3 * (usage.at - usage.day)
    assert (sum(usage.arrived[1:]), day.arrived[23] > 0) == (0.0, True)


def test_the_hours_while_no_agent_ran_are_counted_as_its_successor_finds_the_pool() -> None:
    usage, _ = course(3600, 15, per_second=0.0, actual=2)
    usage, _ = count_usage(usage, POLICY, seen(3600 + 15 + 600, 2, 0))
    assert usage.instance_seconds == 2 * 615


def test_under_keda_s_rule_a_burst_holds_its_instances_for_five_minutes_and_idling_ends_them() -> None:
    """3,000 at once: ten are wished for at 300 each; four or twice as many are added at a time."""
    usage, _ = course(0, 0, per_second=0, actual=0)
    usage, _ = count_usage(usage, POLICY, seen(1, 0, 3000))
    numbers = []
    for at in range(15, 1200, 15):
        usage, _ = count_usage(usage, POLICY, seen(at, 0, 0))
        numbers.append(usage.keda.instances)
    assert numbers[:3] == [5, 10, 10]
    assert numbers[10] == 10, "it went down before 300 s were over"
    assert numbers[-1] == 0
    assert usage.keda_seconds / 3600 == pytest.approx(10 * 350 / 3600, rel=0.35)


@pytest.mark.parametrize("name", ["steady", "bursts"])
def test_the_hours_under_keda_s_rule_are_near_those_of_a_pool_that_follows_it(name: str) -> None:
    """And rather too few than too many."""
    (day,) = read_days(7, name)
    policy = policy_for(day)
    length = day.rate(0) * day.target_seconds / 2
    followed = simulate(day, "KEDA", lambda pool: Keda(length)).hours
    usage = None
    for second in range(0, day.seconds, 15):
        arrived = sum(day.arrivals[max(0, second - 15) : second])
        look = msgspec.structs.replace(seen(second, 0, arrived), item_seconds=day.handler_seconds[second])
        usage, _ = count_usage(usage, policy, look)
    assert usage is not None
    assert 0.75 * followed <= usage.keda_seconds / 3600 <= 1.1 * followed


def test_last_week_s_hour_says_what_to_expect_a_little_before_it_begins() -> None:
    last_week = Usage(MIDNIGHT - WEEK_SECONDS, MIDNIGHT, arrived=(0.0,) * 8 + (36_000.0,) + (0.0,) * 15)
    days = {last_week.day: last_week}
    at = MIDNIGHT + 8 * 3600
    assert expected_per_second(days, at - 100, 45) == 0.0
    assert expected_per_second(days, at - 40, 45) == 10.0
    assert expected_per_second(days, at + 3590, 45) == 10.0
    assert expected_per_second(days, at + 3600, 45) == 0.0
    assert expected_per_second({last_week.day: None}, at, 45) is None


def test_what_is_expected_is_the_fewest_and_the_reason_says_it_is_a_forecast() -> None:
    idle = Observation(MIDNIGHT, 0, 0, 0, most_per_second=0.0, expected_per_second=35.0)
    up = decide(POLICY, idle, AgentState(0))
    assert (up.wanted, up.reason) == (4, "4 because 35/s arrived at this hour a week ago (forecast)")
    later = msgspec.structs.replace(idle, at=MIDNIGHT + 900, actual=9)
    down = decide(POLICY, later, AgentState(9))
    assert (down.wanted, down.reason) == (4, up.reason)
    kept = decide(POLICY, later, AgentState(4))
    assert (kept.wanted, kept.reason) == (4, up.reason)
    none = decide(POLICY, msgspec.structs.replace(later, expected_per_second=None), AgentState(9))
    assert (none.wanted, "forecast" in none.reason) == (0, False)
    much = decide(POLICY, msgspec.structs.replace(idle, expected_per_second=1e6), AgentState(0))
    assert much.wanted == POLICY.maximum
