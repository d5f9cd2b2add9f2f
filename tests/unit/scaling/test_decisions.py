"""How many instances, and why: a table, and what holds for every course of events."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.errors import ConfigurationError
from coordinator.scaling.decision import Decision, Memory, Observation, decide
from coordinator.scaling.drivers import victims
from coordinator.scaling.policy import ScalingPolicy, Window, decode_policy, encode_policy

NOON = datetime(2026, 3, 4, 12, 0, tzinfo=UTC).timestamp()  # a Wednesday
POLICY = ScalingPolicy(
    minimum=0, maximum=20, target_seconds=60, boot_seconds=10, instance_per_second=10, slots=10
)


def seen(visible: int | None, **options: object) -> Observation:
    return Observation(**{"at": NOON, "actual": 0, "visible": visible, "in_flight": 0, **options})  # type: ignore[arg-type]


def had(wanted: int, direction: str = "none", *, step_ago: float = 1e6, turn_ago: float = 1e6) -> Memory:
    return Memory(wanted, NOON - step_ago, direction, NOON - turn_ago)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("observed", "memory", "wanted", "words"),
    [
        (seen(0), had(0), 0, "nothing to do"),
        (seen(1), had(0), 1, "1 to do"),
        (seen(1000), had(0), 2, "1000 to do at 10/s each within 50 s"),
        (seen(1000, oldest_seconds=40), had(0), 10, "within 10 s"),
        (seen(1000, oldest_seconds=400), had(0), 17, "within 6 s"),
        (seen(1000, instance_per_second=100.0), had(0), 1, "at 100/s each"),
        (seen(0, arrival_per_second=35.0), had(0), 4, "35/s arriving"),
        (seen(10, items_per_message=100), had(0), 2, "1000 to do"),
        (seen(100_000), had(0), 20, "is outside 0…20"),
        (seen(None), had(7), 7, "depth is unknown"),
        (seen(0, in_flight=None), had(7), 7, "in hand is unknown"),
        (seen(0, in_flight=45), had(7), 5, "45 messages are in hand"),
        (seen(0, cpu=0.95), had(3), 4, "95% busy"),
        (seen(9000, held_by="start"), had(2), 2, "kept while gate start holds them"),
        (seen(0, held_by="start"), had(30), 20, "are allowed now"),
        (seen(0), had(7, "up", step_ago=100), 7, "the last step up was 100 s ago"),
        (seen(0), had(7, "up", step_ago=200), 0, "nothing to do"),
        (seen(0), had(7, "down", step_ago=10), 7, "the last step was 10 s ago"),
        (seen(0), had(7, "down", step_ago=31), 0, "nothing to do"),
        (seen(1000), had(1, "down", step_ago=5, turn_ago=200), 2, "1000 to do"),
        (seen(1000), had(1, "down", step_ago=5, turn_ago=100), 1, "the direction changed 100 s ago"),
    ],
)
def test_decisions(observed: Observation, memory: Memory, wanted: int, words: str) -> None:
    decision = decide(POLICY, observed, memory)
    assert (decision.wanted, words in decision.reason) == (wanted, True), decision.reason


@pytest.mark.parametrize(
    ("observed", "memory", "decision"),
    [
        (seen(0), had(0), Decision(0, "0 because there is nothing to do", had(0))),
        (
            seen(0, arrival_per_second=0.05, instance_per_second=1.0),
            had(0),
            Decision(1, "1 because 0 to do at 1/s each within 50 s, 0.05/s arriving", Memory(1, NOON, "up", NOON - 1e6)),
        ),
        (
            seen(1000),
            had(0, "down"),
            Decision(2, "2 because 1000 to do at 10/s each within 50 s", Memory(2, NOON, "up", NOON)),
        ),
        (
            seen(1000),
            had(1, "up"),
            Decision(2, "2 because 1000 to do at 10/s each within 50 s", Memory(2, NOON, "up", NOON - 1e6)),
        ),
        (
            seen(100_000),
            had(20),
            Decision(20, "20 because 100000 to do at 10/s each within 50 s; 200 is outside 0…20", had(20)),
        ),
        (
            seen(400, in_flight=100),
            had(0),
            Decision(1, "1 because 500 to do at 10/s each within 50 s", Memory(1, NOON, "up", NOON - 1e6)),
        ),
        (
            seen(500, in_flight=1),
            had(0),
            Decision(2, "2 because 501 to do at 10/s each within 50 s", Memory(2, NOON, "up", NOON - 1e6)),
        ),
        (seen(None), Memory(None, 1.0, "up", 2.0), Decision(0, "0 kept because the depth is unknown", Memory(0, 1.0, "up", 2.0))),
        (
            seen(9, held_by="sale"),
            Memory(None, 1.0, "up", 2.0),
            Decision(0, "0 kept while gate sale holds them", Memory(0, 1.0, "up", 2.0)),
        ),
        (
            seen(0, actual=3, in_flight=30),
            Memory(None, 1.0, "up", 2.0),
            Decision(3, "3 because 30 messages are in hand (30 to do at 10/s each within 50 s)", Memory(3, 1.0, "up", 2.0)),
        ),
        (
            seen(0, actual=3),
            Memory(None, NOON - 180, "up", NOON - 180),
            Decision(0, "0 because there is nothing to do", Memory(0, NOON, "down", NOON)),
        ),
        (
            seen(0, actual=3),
            Memory(None, NOON - 179, "up", NOON - 180),
            Decision(
                3,
                "3 kept, though 0 because there is nothing to do: the last step up was 179 s ago",
                Memory(3, NOON - 179, "up", NOON - 180),
            ),
        ),
        (
            seen(0, actual=3),
            Memory(None, NOON - 30, "down", NOON - 1),
            Decision(0, "0 because there is nothing to do", Memory(0, NOON, "down", NOON - 1)),
        ),
        (
            seen(0, actual=30),
            Memory(None, 1.0, "none", 2.0),
            Decision(20, "20 because 0…20 are allowed now", Memory(20, NOON, "down", 2.0)),
        ),
        (seen(0, actual=3), Memory(None, NOON - 1, "none", NOON - 180), Decision(0, "0 because there is nothing to do", Memory(0, NOON, "down", NOON - 180))),
        (seen(0, actual=1, cpu=0.9), Memory(None, 0.0, "none", 0.0), Decision(0, "0 because there is nothing to do", Memory(0, NOON, "down", 0.0))),
        (
            seen(1000, in_flight=None),
            had(2),
            Decision(2, "2 because 1000 to do at 10/s each within 50 s", had(2)),
        ),
        (
            seen(1000),
            had(1, "up", step_ago=31, turn_ago=100),
            Decision(2, "2 because 1000 to do at 10/s each within 50 s", Memory(2, NOON, "up", NOON - 100)),
        ),
        # Less than a millionth of an instance is the error of floats.
        (
            seen(0, arrival_per_second=1.0000003, instance_per_second=1.0),
            had(1),
            Decision(1, "1 because 0 to do at 1/s each within 50 s, 1/s arriving", had(1)),
        ),
        (seen(500, actual=1, cpu=0.91), had(1), Decision(2, "2 because the processors are 91% busy", Memory(2, NOON, "up", NOON - 1e6))),
        (seen(1000, actual=1, cpu=0.91), had(1), Decision(2, "2 because 1000 to do at 10/s each within 50 s", Memory(2, NOON, "up", NOON - 1e6))),
    ],
)  # fmt: skip
def test_a_decision_says_why_and_remembers(observed: Observation, memory: Memory, decision: Decision) -> None:
    assert decide(POLICY, observed, memory) == decision


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
def test_whatever_happens_the_direction_changes_at_most_once_in_a_cool_down(
    course: list[tuple[int | None, int | None, float | None, float, int]],
) -> None:
    memory, at, wanted = Memory(), NOON, 0
    turns: list[float] = []
    last = 0
    for visible, in_flight, oldest, cpu, pause in course:
        at += pause
        observation = Observation(at, wanted, visible, in_flight, oldest, None, None, cpu)
        decision = decide(POLICY, observation, memory)
        assert 0 <= decision.wanted <= 20
        assert decision.reason
        change = (decision.wanted > wanted) - (decision.wanted < wanted)
        if change and last and change != last:
            turns.append(at)
        last, wanted, memory = change or last, decision.wanted, decision.memory
    gaps = [later - earlier for earlier, later in itertools.pairwise(turns)]
    assert all(gap >= POLICY.cooldown_seconds for gap in gaps)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_to_do_never_wants_fewer(first: int, second: int) -> None:
    fewer, more = sorted((first, second))
    assert decide(POLICY, seen(fewer), had(0)).wanted <= decide(POLICY, seen(more), had(0)).wanted


def test_leaders_leave_last_and_the_newest_first() -> None:
    names = ["w-1", "w-2", "w-3", "w-4"]
    assert victims(names, 2, {"w-4"}) == ["w-3", "w-2"]
    assert victims(names, 4, {"w-4", "w-1"}) == ["w-3", "w-2", "w-4", "w-1"]
    assert victims(names, 0, set()) == []


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
