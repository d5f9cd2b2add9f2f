"""Pauses and prefetch, without waiting."""

from __future__ import annotations

import random

from coordinator.sequences.grants import SequenceConfig
from coordinator.sequences.pacing import (
    JAM_TRIES,
    LONGEST_WAIT_SECONDS,
    LONGEST_WINDOW_SECONDS,
    LOSERS_SHARE,
    ContentionBackoff,
)
from coordinator.sequences.prefetch import Consumption, RefillTime, next_range_size, numbers_needed


def test_a_lone_writer_never_pauses_and_never_reads() -> None:
    pace, now = ContentionBackoff(random.Random(1)), 0.0
    for _ in range(100):
        assert pace.before_try(now) == 0.0
        assert pace.trusts_last_write
        pace.won(pace.window_after(0.02, 0), now, now + 0.005)
        now += 1.0


def test_the_window_widens_with_lost_races_and_narrows_without_within_bounds() -> None:
    pace = ContentionBackoff(random.Random(1))
    assert pace.window_after(0.1, 0) < 0.1 < pace.window_after(0.1, 1) < pace.window_after(0.1, 5)
    assert pace.window_after(1e9, 3) <= LONGEST_WINDOW_SECONDS
    assert pace.window_after(-1.0, 0) > 0.0


def test_who_lost_stays_away_by_the_window_on_the_counter_whatever_it_met_before() -> None:
    def mean(window: float) -> float:
        return sum(ContentionBackoff(random.Random(seed)).lost(window) for seed in range(300)) / 300

    assert 0.45 < mean(0.5) / (0.5 * LOSERS_SHARE) < 0.55
    assert mean(1e9) <= LONGEST_WAIT_SECONDS


def longest_wait(pace: ContentionBackoff, window: float, times: int) -> float:
    return max(pace.lost(window, times) for _ in range(200))


def test_the_unluckiest_waits_least_and_never_longer_than_the_window_in_which_all_others_are_served() -> None:
    pace = ContentionBackoff(random.Random(1))
    assert 0.45 < longest_wait(pace, 1.0, 1) <= 0.5
    assert 0.9 < longest_wait(pace, 1.0, 3) <= 1.0
    assert 0.45 < longest_wait(pace, 1.0, 8) <= 0.5
    assert 0.25 < longest_wait(pace, 1.0, 25) <= 0.3


def test_a_crowd_that_starts_at_once_parts_before_anybody_has_won_as_its_tries_are_slow() -> None:
    pace = ContentionBackoff(random.Random(1))
    for _ in range(10):
        pace.lost_write(0.25)
    assert longest_wait(pace, 0.02, 1) <= 0.02
    assert 2.5 < longest_wait(pace, 0.02, 12) <= JAM_TRIES * 0.25
    for _ in range(50):
        pace.lost_write(5.0)
    assert longest_wait(pace, 0.02, 25) <= LONGEST_WAIT_SECONDS


def test_a_network_that_is_merely_slow_is_no_jam() -> None:
    pace = ContentionBackoff(random.Random(1))
    for _ in range(20):
        pace.won(0.02, 0.0, 0.05)
        pace.lost_write(0.06)
    assert longest_wait(pace, 0.5, 12) <= 0.5


def test_the_window_narrows_faster_when_the_crowd_has_gone() -> None:
    pace, window = ContentionBackoff(random.Random(1)), 4.0
    for writes in range(100):
        pace.saw_another()
        window = pace.window_after(window, 0)
        pace.won(window, float(writes), writes + 0.005)
        if window < 0.1:
            break
    assert writes < 40


def test_after_a_write_others_that_want_the_counter_go_first() -> None:
    pace = ContentionBackoff(random.Random(1))
    pace.saw_another()
    pace.won(0.1, 0.0, 0.005)
    assert 0.09 <= pace.before_try(0.005) <= 0.11


def test_after_a_loss_the_counter_is_read_before_it_is_written() -> None:
    pace = ContentionBackoff(random.Random(1))
    pace.lost(0.02)
    assert not pace.trusts_last_write
    for _ in range(10):
        pace.won(0.02, 1.0, 1.005)
    assert pace.trusts_last_write


def test_the_rate_to_prepare_for_is_the_recent_peak() -> None:
    rate = Consumption(0.0)
    rate.took(1000, 1.0)
    assert rate.now(1.0) == 1000
    rate.took(10, 2.0)
    assert rate.now(2.0) == 10
    assert 950 < rate.peak(2.0) < 1000
    assert 450 < rate.peak(31.5) < 550


def test_a_sequence_nobody_asks_slows_down_in_the_figures() -> None:
    rate = Consumption(0.0)
    rate.took(1000, 1.0)
    assert rate.now(60.0) == 0


def test_a_refill_is_expected_to_take_as_long_as_slow_ones_did() -> None:
    refill = RefillTime()
    for _ in range(50):
        refill.took(0.01)
    assert refill.seconds < 0.03
    refill.took(0.5)
    assert refill.seconds >= 0.5


def test_a_buffer_must_outlast_a_refill() -> None:
    assert numbers_needed(0.0, 0.1) == 1
    assert numbers_needed(100_000, 0.05) >= 100_000 * 0.05


def test_a_range_lasts_as_long_as_configured_and_grows_at_most_twofold() -> None:
    config = SequenceConfig(range_size=1000, max_range_size=50_000, range_seconds=10.0)
    assert next_range_size(config, 0.0, 1000) == 1000
    assert next_range_size(config, 100.0, 1000) == 1000
    assert next_range_size(config, 150.0, 1000) == 1500
    assert next_range_size(config, 1e6, 1000) == 2000
    assert next_range_size(config, 1e6, 40_000) == 50_000
