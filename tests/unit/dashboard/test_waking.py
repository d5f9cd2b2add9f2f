"""Which queues are announced by the sampler because nobody else did."""

from __future__ import annotations

import pytest

from coordinator.realtime.protocol import ListenerStatus
from dashboard.live.fleet import Depth
from dashboard.live.sampler import UNKNOWN_AT_ONCE, QueueNotifier

WAITING = Depth("orders", 3, 0, 1.0, oldest_at=1.0)
ASLEEP = ListenerStatus("orders", state="idle")


@pytest.mark.parametrize(
    ("queue", "listeners", "announced"),
    [
        (WAITING, [ASLEEP, ASLEEP], True),
        (WAITING, [], True),
        (WAITING, [ASLEEP, ListenerStatus("orders", state="running")], False),
        (WAITING, [ListenerStatus("orders", state="idle", in_hand=1)], False),
        (WAITING, [ListenerStatus("orders", state="waiting")], False),
        (WAITING, [ListenerStatus("orders", state="paused")], False),
        (Depth("orders", 3, 0, 1.0), [ASLEEP], False),
        (Depth("orders", 0, 0, 1.0, oldest_at=1.0), [ASLEEP], False),
        (Depth("orders", None, None, None), [ASLEEP], False),
    ],
    ids=["all sleep", "nobody known", "one works", "one is processing it", "gate closed", "paused",
         "all invisible", "empty", "unknown"],
)  # fmt: skip
def test_a_hint_goes_out_for_visible_messages_that_nobody_takes(
    queue: Depth, listeners: list[ListenerStatus], announced: bool
) -> None:
    assert QueueNotifier().due([queue], listeners, now=0.0) == (["orders"] if announced else [])


@pytest.mark.parametrize(("listeners", "seconds"), [([ASLEEP], 10.0), ([], 60.0)])
def test_it_is_repeated_with_a_pause_while_they_wait(listeners: list[ListenerStatus], seconds: float) -> None:
    waker = QueueNotifier()
    assert waker.due([WAITING], listeners, now=0.0)
    assert not waker.due([WAITING], listeners, now=seconds - 1)
    assert waker.due([WAITING], listeners, now=seconds)


def test_work_that_comes_after_the_queue_was_empty_is_told_at_once() -> None:
    waker = QueueNotifier()
    assert waker.due([WAITING], [ASLEEP], now=0.0)
    assert not waker.due([], [ASLEEP], now=1.0)
    assert waker.due([WAITING], [ASLEEP], now=2.0)


def test_of_many_queues_without_a_known_listener_one_is_told_at_each_look_and_all_in_turn() -> None:
    queues = [Depth(f"q{number:02}", 1, 0, 1.0, oldest_at=1.0) for number in range(12)]
    waker = QueueNotifier()
    told = [waker.due([*queues, WAITING], [ASLEEP], now=second / 10) for second in range(12)]
    assert [len(names) for names in told] == [UNKNOWN_AT_ONCE + 1, *[UNKNOWN_AT_ONCE] * 11]
    assert sorted(name for names in told for name in names) == ["orders", *(queue.name for queue in queues)]
