"""What answers prove about the storage service's clock."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.clock import ClockOffset, parse_date


def test_clocks_that_agree_are_left_alone() -> None:
    offset = ClockOffset()
    for moment in (100.0, 100.4, 100.99, 103.2):
        offset = offset.observed(sent=moment, received=moment + 0.01, date=float(math.floor(moment + 0.005)))
    assert offset.correction == 0.0
    assert offset.is_known


@given(true=st.floats(-3600, 3600), seed=st.integers(0, 10_000))
def test_the_truth_is_always_within_the_bounds_and_they_narrow(true: float, seed: int) -> None:
    rng, offset, now = random.Random(seed), ClockOffset(), 1_700_000_000.0
    for _ in range(40):
        now += rng.uniform(0.5, 4.0)
        sent, answered, received = now, now + rng.uniform(0, 0.02), now + 0.03
        offset = offset.observed(sent=sent, received=received, date=float(math.floor(answered + true)))
        slack = 1e-6
        assert offset.low - slack <= true <= offset.high + slack
    assert offset.high - offset.low < 0.5
    assert abs(offset.correction) <= abs(true) + 0.25


def test_a_clock_that_was_set_is_followed() -> None:
    offset = ClockOffset()
    for moment in range(100, 120):
        offset = offset.observed(sent=moment + 0.3, received=moment + 0.31, date=float(moment))
    assert offset.correction == 0.0
    offset = offset.observed(sent=1120.3, received=1120.31, date=120.0)
    assert -1001 <= offset.correction <= -999


@pytest.mark.parametrize(
    ("header", "expected"),
    [("Sat, 21 Nov 2026 08:00:00 GMT", 1795248000.0), ("", None), (None, None), ("tomorrow", None)],
)
def test_dates_are_read_or_left(header: str | None, expected: float | None) -> None:
    assert parse_date(header) == expected
