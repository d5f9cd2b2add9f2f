"""Simulated days: in time, for fewer hours than KEDA's rule with its best setting, and without flapping."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scaling import Outcome, best_keda, disturbed, oracle, simulate
from benchmarks.scaling_oracle import best_plan, fewest_hours
from benchmarks.scaling_pool import FOLDER, Day, read_days
from benchmarks.scaling_rules import Kennel, policy_for

SEED = 20260304
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
# 35/s at 10/s each need four: a seventh more than three and a half, and KEDA saves it by 78 turns in six hours.
WHOLE_NUMBERS = {"steady"}


def kennel(day: Day, **options: bool) -> Outcome:
    return simulate(day, "Kennel", lambda pool: Kennel(pool, policy_for(day), **options))


def the_day(name: str) -> Day:
    (day,) = read_days(SEED, name)
    return day


@pytest.mark.parametrize("push", [True, False], ids=["push", "polling"])
def test_the_diurnal_day_has_nothing_late_for_65_hours(push: bool) -> None:
    outcome = kennel(the_day("diurnal"), push=push)
    assert (outcome.late_share, outcome.hours <= 65) == (0.0, True), outcome


def test_a_day_whose_workers_report_nothing_has_nothing_late() -> None:
    assert kennel(the_day("steady"), reports=False).late_share == 0


@pytest.mark.parametrize("name", ["diurnal", "steps"])
def test_an_agent_killed_fifty_times_a_day_is_followed_without_delay_or_flap(name: str) -> None:
    day = the_day(name)
    killed, whole = disturbed(day), kennel(day)
    assert killed.late_share <= whole.late_share + 0.001
    assert killed.hours <= 1.15 * whole.hours
    assert killed.turns <= whole.turns + 20


def test_a_steady_load_has_two_turns_at_most_in_two_hours() -> None:
    outcome = kennel(the_day("steady"))
    assert (outcome.late_share, outcome.turns <= 2) == (0.0, True), outcome


def test_no_plan_with_two_turns_in_two_hours_keeps_the_bound_of_hours_on_the_steady_day() -> None:
    """That day's two bounds contradict each other, for who knows the future, too, and with as much late as KEDA has."""
    day = the_day("steady")
    hours = replace(
        day, seconds=7200, arrivals=day.arrivals[:7200], handler_seconds=day.handler_seconds[:7200]
    )
    assert fewest_hours(hours, turns=2, late_share=0.00104) > 1.1 * hours.least_hours
    assert best_plan(hours)[0] < 1.02 * hours.least_hours  # without the bound of turns it can be kept


def test_the_time_in_which_a_gate_is_closed_does_not_count() -> None:
    """For what came while it was closed, and for what waited when it was closed; not for what was late by then."""
    day = replace(the_day("gate"), closed=[(1000, 1300)], target_seconds=60)
    dues = [day.due(arrived) for arrived in (900, 939, 940, 990, 1000, 1299, 1300)]
    assert dues == [960, 999, 1000, 1350, 1360, 1360, 1360]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_day_is_as_timely_as_keda_at_its_best_and_cheaper(name: str) -> None:
    day = the_day(name)
    ours, keda = kennel(day), best_keda(day)
    assert ours.late_share <= keda.late_share + 0.001
    assert ours.hours <= 1.25 * oracle(day).hours
    bound = 1.2 if name in WHOLE_NUMBERS else 1.1
    assert ours.hours <= max(0.9 * keda.hours, bound * day.least_hours)
