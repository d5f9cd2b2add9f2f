"""How many instances, and why: a table, and what holds for every course of events."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.errors import ConfigurationError
from coordinator.scaling.decision import AgentState, Observation, decide
from coordinator.scaling.drivers import select_for_removal
from coordinator.scaling.policy import ScalingPolicy, Window, decode_policy, encode_policy

NOON = datetime(2026, 3, 4, 12, 0, tzinfo=UTC).timestamp()  # a Wednesday
POLICY = ScalingPolicy(
    minimum=0, maximum=20, target_seconds=60, boot_seconds=10, instance_per_second=10, slots=10
)


def seen(visible: int | None, **options: object) -> Observation:
    return Observation(**{"at": NOON, "actual": 0, "visible": visible, "in_flight": 0, **options})  # type: ignore[arg-type]


def had(
    wanted: int,
    direction: str = "none",
    *,
    step_ago: float = 1e6,
    turn_ago: float = 1e6,
    hold: float = 0.0,
    too_few: int = 0,
) -> AgentState:
    return AgentState(
        wanted,
        NOON - step_ago,
        direction,  # type: ignore[arg-type]
        NOON - turn_ago,
        hold,
        too_few=too_few,
    )


@pytest.mark.parametrize(
    ("observed", "memory", "wanted", "words"),
    [
        (seen(0), had(0), 0, "nothing to do"),
        (seen(1), had(0), 1, "1 to do"),
        (seen(1000), had(0), 3, "1000 to do at 10/s each within 56 s"),
        (seen(1000, oldest_seconds=20), had(0), 4, "within 36 s"),
        (seen(1000, oldest_seconds=400), had(0), 12, "within 0 s"),
        (seen(1000, instance_per_second=100.0), had(0), 1, "at 100/s each"),
        (seen(5, arrival_per_second=35.0), had(0), 4, "35/s arriving"),
        # Nothing would be late, but a standing backlog would delay what comes after an outage: it is worked off.
        (seen(1500, arrival_per_second=39.0, actual=4), had(4), 7, "1500 to do"),
        (seen(10, items_per_message=100), had(0), 3, "1000 to do"),
        (seen(100_000), had(0), 20, "limited to 0–20 (calculated "),
        (seen(None), had(7), 7, "depth is unknown"),
        (seen(0, in_flight=None, most_per_second=0.0), had(7), 7, "in flight is unknown"),
        (seen(0, in_flight=45, most_per_second=0.0), had(7), 5, "45 messages are in flight"),
        (seen(0, in_flight=45, most_per_second=0.0, slots=15), had(7), 3, "45 messages are in flight"),
        (seen(0, cpu=0.95), had(3), 4, "95% busy"),
        (seen(0, cpu=0.95), had(3, "up", step_ago=5), 3, "nothing to do"),
        (seen(9000, held_by="start"), had(2), 2, "kept while gate start holds them"),
        (seen(0, held_by="start"), had(30), 20, "are allowed now"),
        # A gate that stays closed: as many stay as must have begun when it opens, and no fewer than one.
        (seen(900, held_by="start", held_seconds=59), had(9), 9, "kept while gate start holds them"),
        (seen(900, held_by="start", held_seconds=60), had(9), 1, "900 wait for gate start, and the others"),
        (seen(10_500, held_by="start", held_seconds=60), had(20), 13, "10500 wait for gate start"),
        (seen(9_700, held_by="start", held_seconds=600), had(2), 5, "fewer would be late when it opens"),
        (seen(900, held_by="start", held_seconds=60, in_flight=5), had(9), 9, "kept while gate start holds them"),
        # Up at once, whatever came before.
        (seen(1000), had(1, "down", step_ago=1, turn_ago=1), 2, "1000 to do"),
        (seen(5000), had(0, "down", step_ago=15, turn_ago=15), 11, "5000 to do"),
        # Down when fewer surely suffice, and those asked for have had the time to begin.
        (seen(0), had(7), 7, "nothing to do"),
        (seen(0, most_per_second=0.0), had(7, "up", step_ago=9), 7, "asked for 9 s ago"),
        (seen(0, most_per_second=0.0), had(7, "up", step_ago=11), 0, "nothing to do"),
        (seen(0, most_per_second=0.0, idle_seconds=10), had(7), 1, "nothing to do"),
        (seen(0, most_per_second=39.9, idle_seconds=0), had(7), 4, "nothing to do"),
        (seen(0, most_per_second=40.1, idle_seconds=0), had(7), 5, "nothing to do"),
        (seen(0, most_per_second=1.0, arrival_per_second=1.0, idle_seconds=0), had(7, "down", step_ago=4), 7, "last step was 4 s ago"),
        # Six were too few: they are not tried again soon, but more than six may leave, and for another load fewer do.
        (seen(0, most_per_second=59.0, idle_seconds=0), had(7, "up", step_ago=40, turn_ago=40, hold=180, too_few=6), 7, "6 were not enough 40 s ago"),
        (seen(0, most_per_second=59.0, idle_seconds=0), had(7, "up", step_ago=190, turn_ago=190, hold=180, too_few=6), 6, "nothing to do"),
        (seen(0, most_per_second=59.0, idle_seconds=0), had(19, "up", step_ago=40, turn_ago=40, hold=180, too_few=6), 7, "7 because 6 were not enough 40 s ago"),
        (seen(0, most_per_second=59.0, idle_seconds=0), had(19, "up", step_ago=40, turn_ago=40, hold=180, too_few=5), 6, "6 because there is nothing"),
        (seen(0, most_per_second=45.0, idle_seconds=0), had(7, "up", step_ago=40, turn_ago=40, hold=180, too_few=6), 6, "6 because 6 were not enough"),
        (seen(0, most_per_second=0.0), had(7, "up", step_ago=40, turn_ago=40, hold=180, too_few=6), 0, "nothing to do"),
        # A little behind is no reason for more; to fall behind ever more is.
        (seen(100, arrival_per_second=40.5, most_per_second=41.0), had(4), 4, "40.5/s arriving"),
        (seen(500, arrival_per_second=43.0, most_per_second=43.0), had(4), 5, "43/s arriving"),
        (seen(3, delayed=5000), had(0), 1, "5000 not due"),
        # Where nothing waits, the instances do what arrives, whatever the estimate of it.
        (seen(0, arrival_per_second=43.0, most_per_second=43.0, idle_seconds=0), had(4), 4, "43/s arriving"),
        # Those that begin have all handlers free: in the 27 s after the boot each takes 200 at once and 200 after 20 s.
        (seen(1000, instance_per_second=10.0, item_seconds=20.0), had(0), 3, "within 37 s"),
        (seen(1111, instance_per_second=10.0, item_seconds=20.0), had(0), 4, "within 37 s"),
    ],
)  # fmt: skip
def test_decisions(observed: Observation, memory: AgentState, wanted: int, words: str) -> None:
    decision = decide(POLICY, observed, memory)
    assert (decision.wanted, words in decision.reason) == (wanted, True), decision.reason


def test_a_burst_fifteen_seconds_after_a_step_down_is_answered_at_once() -> None:
    memory = decide(POLICY, seen(0, actual=5, most_per_second=0.0), had(5)).memory
    assert (memory.wanted, memory.direction) == (0, "down")
    decision = decide(POLICY, seen(5000, at=NOON + 15), memory)
    assert decision.wanted == 11, decision.reason


def test_a_guess_of_the_time_of_an_item_that_leaves_none_is_not_believed() -> None:
    """Ten slots at 1/s would be items of 10 s, which the target of 10 s contradicts."""
    policy = ScalingPolicy(maximum=10, target_seconds=10, boot_seconds=0, instance_per_second=1)
    assert decide(policy, seen(35), had(0)).wanted == 4


def test_what_waits_is_due_by_its_own_age() -> None:
    """A thousand of which a tenth is old needs fewer than a thousand that are all as old."""
    some = decide(POLICY, seen(1000, oldest_seconds=40, ages=((40, 100), (5, 900))), had(0))
    all_old = decide(POLICY, seen(1000, oldest_seconds=40), had(0))
    assert (some.wanted, all_old.wanted) == (3, 12)


def test_those_that_boot_count_from_when_they_begin() -> None:
    """What was asked for ten seconds ago is not asked for again, and is no capacity before it works."""
    policy = ScalingPolicy(maximum=40, boot_seconds=30, instance_per_second=10)
    first = decide(policy, seen(2000), had(0))
    again = decide(
        policy, seen(2000, at=NOON + 10, actual=first.wanted, ready=0, oldest_seconds=10), first.memory
    )
    assert (first.wanted, again.wanted) == (8, 8)
    late = decide(policy, seen(2000, at=NOON + 10, actual=8, oldest_seconds=20), had(8, "up", step_ago=0))
    assert late.wanted > 8


def test_a_step_down_that_was_wrong_makes_the_next_wait_twice_as_long() -> None:
    memory, at, holds = had(5), NOON, []
    for _ in range(4):
        down = decide(POLICY, seen(0, at=at, actual=5, most_per_second=35.0, idle_seconds=0), memory)
        assert down.wanted == 4, down.reason
        up = decide(POLICY, seen(2500, at=at + 60, actual=4, arrival_per_second=48.0), down.memory)
        assert up.wanted > 4
        holds.append(up.memory.hold_seconds)
        memory = msgspec.structs.replace(up.memory, wanted=5)
        kept = decide(POLICY, seen(0, at=at + 60 + holds[-1] - 1, most_per_second=35.0), memory)
        assert kept.wanted == 5 and "4 were not enough" in kept.reason
        at += 60 + holds[-1]
    assert holds == [180, 360, 720, 1440]


def test_a_number_that_proves_too_few_again_while_it_is_held_counts_from_then() -> None:
    """Five were too few, then six, before the hold ended: six are not tried again until it has ended since."""
    up = seen(3000, at=NOON, actual=6, arrival_per_second=66.0)
    memory = had(6, "up", step_ago=30, turn_ago=30, hold=180, too_few=5)
    held = decide(POLICY, up, memory).memory
    assert (held.too_few, held.turned_at, held.hold_seconds) == (6, NOON, 180)
    over = had(6, "up", step_ago=30, turn_ago=200, hold=180, too_few=5)
    assert decide(POLICY, up, over).memory.too_few == 5
    burst = msgspec.structs.replace(up, arrival_per_second=1.0)
    assert decide(POLICY, burst, memory).memory.too_few == 5, "a burst proves nothing"


def test_while_more_and_more_arrives_nothing_waits_for_an_instance_that_will_be_busy() -> None:
    """At 95/s of 100, ten would be busy: 250 that wait are no chance. A steady load may wait for an eighth of the time."""
    steady = seen(250, arrival_per_second=95.0, most_per_second=95.0, actual=9)
    growing = msgspec.structs.replace(steady, is_growing=True)
    assert (decide(POLICY, steady, had(9)).wanted, decide(POLICY, growing, had(9)).wanted) == (9, 10)
    by_chance = msgspec.structs.replace(growing, visible=20)
    assert decide(POLICY, by_chance, had(9)).wanted == 9
    often_idle = msgspec.structs.replace(growing, arrival_per_second=89.0, actual=8)
    assert decide(POLICY, often_idle, had(9)).wanted == 9


def test_a_turn_comes_soon_where_some_may_leave_soon() -> None:
    assert decide(POLICY, seen(200, arrival_per_second=0.0), had(10)).next_seconds == 2.0
    assert decide(POLICY, seen(4000, arrival_per_second=0.0, ages=((1, 4000),)), had(10)).next_seconds == 40.0
    assert decide(POLICY, seen(0), had(0)).next_seconds is None
    held = seen(0, in_flight=45, most_per_second=0.0, item_seconds=20.0)
    assert decide(POLICY, held, had(7)).next_seconds == 5.0  # the jobs of the others end soon
    waits = seen(0, most_per_second=1.0, arrival_per_second=1.0, idle_seconds=0)
    assert (
        decide(POLICY, waits, had(7, "down", step_ago=2)).next_seconds == 3.0
    )  # then the step is five seconds old
    assert (
        decide(POLICY, waits, had(7, "up", step_ago=4)).next_seconds == 6.0
    )  # then those asked for have begun
    assert decide(POLICY, waits, had(7, "up", step_ago=9)).next_seconds == 2.0


def test_instances_that_left_while_a_gate_was_closed_are_no_wrong_step_down() -> None:
    closed = seen(900, held_by="start", held_seconds=60, arrival_per_second=50.0)
    down = decide(POLICY, closed, had(9, hold=180))
    opened = decide(POLICY, seen(2900, at=NOON + 40, actual=1, arrival_per_second=50.0), down.memory)
    assert (down.wanted, opened.memory.hold_seconds, opened.memory.turned_at) == (1, 180, NOON - 1e6)
    assert opened.wanted > 5


def test_hours_go_before_what_is_measured() -> None:
    window = Window("08:00", "18:00", days=("mon", "wed"), minimum=5, maximum=6, reason="office hours")
    policy = ScalingPolicy(maximum=20, windows=(window,))
    up = decide(policy, seen(0), had(0, "down", step_ago=1, turn_ago=1))
    assert (up.wanted, up.reason) == (5, "5 because 5…6 are allowed now (office hours)")
    assert decide(policy, seen(None), had(20)).wanted == 6
    assert decide(policy, seen(10**6), had(5)).wanted == 6
    assert decide(policy, seen(0, at=NOON + 86_400), had(0)).wanted == 0  # Thursday


@pytest.mark.parametrize(
    ("hour", "day", "covered"),
    [(23, 6, True), (2, 7, True), (2, 6, False), (23, 7, False), (6, 7, False), (21, 6, False)],
)
def test_a_window_over_midnight_belongs_to_the_day_it_begins(hour: int, day: int, covered: bool) -> None:
    window = Window("22:00", "06:00", days=("fri",), maximum=1)
    assert window.covers(datetime(2026, 3, day, hour, tzinfo=UTC)) is covered


def test_hours_are_local() -> None:
    policy = ScalingPolicy(
        windows=(Window("13:00", "14:00", minimum=3),), maximum=9, time_zone="Europe/Berlin"
    )
    assert policy.bounds(NOON) == (3, 9, "13:00-14:00")


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(0, 200_000)),
            st.one_of(st.none(), st.integers(0, 300)),
            st.one_of(st.none(), st.floats(0, 1000)),
            st.floats(0, 1),
            st.integers(1, 120),
        ),
        max_size=60,
    )
)
def test_whatever_happens_more_are_never_late_and_fewer_never_hasty(
    course: list[tuple[int | None, int | None, float | None, float, int]],
) -> None:
    """Up is never held back for messages; down never cuts what is in flight, nor those that had no time to begin.

    For busy processors one is added at a time, and the next only when that one works.
    """
    memory, at, wanted = AgentState(), NOON, 0
    went_up = -math.inf
    for visible, in_flight, oldest, cpu, pause in course:
        at += pause
        observation = Observation(
            at, wanted, visible, in_flight, oldest, None, None, cpu, most_per_second=0.0
        )
        decision = decide(POLICY, observation, memory)
        assert 0 <= decision.wanted <= 20
        assert decision.reason
        if decision.wanted < wanted:
            assert visible is not None and in_flight is not None
            assert decision.wanted * POLICY.slots >= min(in_flight, wanted * POLICY.slots)
            assert at - went_up >= POLICY.boot_seconds
        fresh = decide(POLICY, msgspec.structs.replace(observation, cpu=None), AgentState(wanted))
        assert decision.wanted >= fresh.wanted, "an earlier decision held an instance back"
        went_up = at if decision.wanted > wanted else went_up
        wanted, memory = decision.wanted, decision.memory


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_to_do_never_wants_fewer(first: int, second: int) -> None:
    fewer, more = sorted((first, second))
    assert decide(POLICY, seen(fewer), had(0)).wanted <= decide(POLICY, seen(more), had(0)).wanted


def test_the_idle_leave_first_then_the_newest_and_leaders_last() -> None:
    names = ["w-1", "w-2", "w-3", "w-4"]
    assert select_for_removal(names, 2, {"w-4"}, {}) == ["w-3", "w-2"]
    assert select_for_removal(names, 4, {"w-4", "w-1"}, {}) == ["w-3", "w-2", "w-4", "w-1"]
    assert select_for_removal(names, 2, {"w-4"}, {"w-3": 2, "w-2": 1}) == ["w-1", "w-2"]
    assert select_for_removal(names, 0, set(), {}) == []


def test_a_policy_is_stored_and_read() -> None:
    policy = ScalingPolicy(maximum=7, windows=(Window("08:00", "18:00", minimum=2),))
    assert decode_policy(encode_policy(policy)) == policy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"maximum":0}', "minimum <= maximum"),
        ('{"target_seconds":0}', "target_seconds must be positive"),
        ('{"time_zone":"Mars/Olympus"}', "IANA name"),
        ('{"windows":[{"start":"8","end":"18:00","minimum":1}]}', "use HH:MM"),
        ('{"windows":[{"start":"08:00","end":"18:00"}]}', "minimum or a maximum"),
        ('{"step_seconds":300}', "step_seconds must not be longer"),
        ('{"speed":1}', "not a scaling policy"),
        ("nonsense", "not a scaling policy"),
    ],
)
def test_a_policy_that_is_none_is_named(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        decode_policy(text)
