"""A simulated day of bursts: everything in time, for a fraction of a fixed fleet, without flapping."""

from __future__ import annotations

import pytest

from benchmarks.scaling import Outcome, arrivals, compare


@pytest.fixture(scope="module", params=[1, 2])
def outcomes(request: pytest.FixtureRequest) -> list[Outcome]:
    return compare([arrivals(request.param)])


@pytest.mark.parametrize("place", [-2, -1], ids=["undisturbed", "its agent killed 50 times"])
def test_the_agent_meets_the_time_agreed_for_a_fraction_of_the_fixed_fleet(
    outcomes: list[Outcome], place: int
) -> None:
    ours, fixed = outcomes[place], outcomes[0]
    keda = [each for each in outcomes if each.rule.startswith("KEDA")]
    assert ours.rule.startswith("Kennel")
    assert (fixed.rule.startswith("fixed"), fixed.late_items, len(keda)) == (True, 0, 2)
    assert ours.late_items <= min(each.late_items for each in keda)
    assert ours.instance_hours <= 0.6 * fixed.instance_hours
    assert ours.quickest_turn_seconds is None or ours.quickest_turn_seconds >= 180
