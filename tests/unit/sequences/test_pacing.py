"""Turns and pauses, without waiting."""

from __future__ import annotations

import random

from coordinator.sequences.grants import SequenceConfig
from coordinator.sequences.pacing import LONGEST_TURN_WRITES, LONGEST_WINDOW_SECONDS, NO_TURN, Pace, Turn
from coordinator.sequences.prefetch import Consumption, RefillTime, next_range_size, numbers_needed


def test_a_lone_writer_never_pauses_and_never_reads() -> None:
    pace, now = Pace(random.Random(1)), 0.0
    for _ in range(100):
        assert pace.before_try(now) == 0.0
        assert pace.trusts_last_write(now)
        pace.won(pace.announce(0, now), now, now + 0.005)
        now += 1.0


def test_a_turn_is_announced_only_for_ranges_wanted_and_counts_down() -> None:
    pace = Pace(random.Random(1))
    assert pace.announce(0, 0.0).writes_left == 0
    assert pace.announce(3, 0.0).writes_left == 3
    turns, now = [], 0.0
    for _ in range(LONGEST_TURN_WRITES):
        turn = pace.announce(1000, now)
        turns.append(turn.writes_left)
        pace.won(turn, now, now + 0.005)
        now += 0.006
    assert turns == list(range(LONGEST_TURN_WRITES - 1, -1, -1))
    assert not pace.is_in_turn(now)


def test_a_turn_that_is_not_used_lapses() -> None:
    pace = Pace(random.Random(1))
    pace.won(Turn(5, 0.005), 0.0, 0.005)
    assert pace.is_in_turn(0.01)
    assert not pace.is_in_turn(1.0)


def test_who_meets_a_turn_stays_away_until_it_must_be_over() -> None:
    assert Pace(random.Random(1)).met_turn(Turn(10, 0.01)) >= 0.1


def test_a_turn_with_absurd_figures_holds_nobody_for_long() -> None:
    assert Turn(10**9, 10**9).seconds <= LONGEST_TURN_WRITES
    assert Turn(5, -1.0).seconds == 0.0


def mean_pause(*, losses_before: int, wins: int = 1) -> float:
    pauses = []
    for seed in range(300):
        pace = Pace(random.Random(seed))
        for _ in range(losses_before):
            pace.lost()
        for _ in range(wins):
            pace.won(NO_TURN, 0.0, 0.005)
        pauses.append(pace.lost())
    return sum(pauses) / len(pauses)


def test_a_crowded_counter_is_given_longer_pauses_and_a_quiet_one_shorter() -> None:
    assert mean_pause(losses_before=12) > 3 * mean_pause(losses_before=0)
    assert mean_pause(losses_before=12, wins=10) < mean_pause(losses_before=12) / 2
    assert mean_pause(losses_before=100) <= LONGEST_WINDOW_SECONDS


def test_who_has_met_many_turns_comes_sooner_after_the_next_than_who_comes_new() -> None:
    def mean_wait(met_before: int) -> float:
        waits = []
        for seed in range(300):
            pace = Pace(random.Random(seed))
            for _ in range(12):
                pace.lost()
            for _ in range(met_before):
                pace.met_turn(Turn(1, 0.005))
            waits.append(pace.met_turn(Turn(1, 0.005)))
        return sum(waits) / len(waits)

    assert mean_wait(6) < mean_wait(0) / 2


def test_after_a_turn_a_writer_lets_others_go_first() -> None:
    pace, now = Pace(random.Random(1)), 0.0
    while (turn := pace.announce(100, now)).writes_left:
        assert pace.before_try(now) == 0.0
        pace.won(turn, now, now + 0.005)
        now += 0.005
    pace.won(turn, now, now + 0.005)
    assert pace.before_try(now + 0.005) > 0.01


def test_after_a_loss_the_counter_is_read_before_it_is_written() -> None:
    pace = Pace(random.Random(1))
    pace.lost()
    assert not pace.trusts_last_write(1.0)
    for _ in range(10):
        pace.won(NO_TURN, 1.0, 1.005)
    assert pace.trusts_last_write(2.0)


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


def test_stock_must_outlast_a_refill() -> None:
    assert numbers_needed(0.0, 0.1) == 1
    assert numbers_needed(100_000, 0.05) >= 100_000 * 0.05


def test_a_range_lasts_as_long_as_configured_and_grows_at_most_twofold() -> None:
    config = SequenceConfig(range_size=1000, max_range_size=50_000, range_seconds=10.0)
    assert next_range_size(config, 0.0, 1000) == 1000
    assert next_range_size(config, 100.0, 1000) == 1000
    assert next_range_size(config, 150.0, 1000) == 1500
    assert next_range_size(config, 1e6, 1000) == 2000
    assert next_range_size(config, 1e6, 40_000) == 50_000
