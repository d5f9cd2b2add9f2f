"""How much arrives, from the totals of earlier looks."""

from __future__ import annotations

import pytest

from coordinator.scaling.arrivals import Arrivals
from coordinator.scaling.decision import Observation
from coordinator.scaling.observing import combined


def after(*spans: tuple[int, float]) -> Arrivals:
    """What was seen in looks 15 s apart, for so many seconds at such a rate each."""
    arrivals, at = Arrivals(60.0), 0.0
    arrivals.add(at, 0.0)
    for seconds, rate in spans:
        for _ in range(seconds // 15):
            at += 15
            arrivals.add(at, 15 * rate)
    return arrivals


@pytest.mark.parametrize(
    ("spans", "is_growing"),
    [
        ([(600, 50.0)], False),
        ([(300, 50.0), (300, 51.5)], False),  # 450 more of 30,450: two and a half standard deviations
        ([(300, 50.0), (300, 52.0)], True),
        ([(300, 52.0), (300, 50.0)], False),
        ([(300, 0.0), (300, 0.03)], False),  # nine items are no trend
        ([(285, 50.0), (300, 90.0)], False),  # before ten minutes were seen
        ([(3000, 90.0), (300, 50.0), (300, 52.0)], True),
        ([(300, 0.0), (300, 0.0)], False),
    ],
)
def test_a_load_grows_when_chance_does_not_explain_it(
    spans: list[tuple[int, float]], is_growing: bool
) -> None:
    assert after(*spans).is_growing(sum(seconds for seconds, _ in spans)) is is_growing


def test_a_pool_of_which_one_queue_grows_does() -> None:
    steady, growing = Observation(0.0, 1, 0, 0), Observation(0.0, 1, 0, 0, is_growing=True)
    assert combined([steady, growing]).is_growing
    assert not combined([steady, steady]).is_growing
