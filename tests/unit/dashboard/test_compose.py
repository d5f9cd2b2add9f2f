"""Promises of the composed fleet."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.gates.state import GateState
from coordinator.realtime.protocol import GateStatus, LeadershipStatus, ListenerStatus, SequenceStatus
from dashboard.live.fleet import (
    Depth,
    Fleet,
    GrantView,
    Headline,
    LeaderClaim,
    LeaderView,
    Sample,
    SequenceView,
    StorageView,
    WorkerView,
)
from dashboard.live.fleet_state import Rates, compose

from .making import NOW, worker


def fleet(*workers: WorkerView, rates: Rates | None = None, degraded: str = "", **sample: Any) -> Fleet:
    values = {"at": NOW, "storage": StorageView(as_of=NOW), "gates_as_of": NOW, **sample}
    return compose(Sample(**values), workers, {}, rates or Rates(), now=NOW, requests={}, degraded=degraded)


def test_what_was_never_read_is_unknown_and_not_zero() -> None:
    listening = worker("a", gates=(GateStatus("start-it"),), listeners=(ListenerStatus("orders-in"),))
    seen = fleet(listening, storage=StorageView(error="no answer"), gates_as_of=None)
    assert seen.headline.state == "unknown"
    assert seen.gates[0].state == "unknown"
    assert (seen.queues[0].depth, seen.queues[0].poison, seen.queues[0].as_of) == (None, None, None)


def test_an_account_without_queues_was_read_and_one_whose_queues_were_not_read_was_not() -> None:
    assert fleet(queues_as_of=NOW - 2).read_at["queues"] == NOW - 2
    unread = Depth("orders-in", None, None, None)
    assert fleet(queues=(unread,), queues_as_of=NOW).read_at["queues"] is None
    read = Depth("orders-out", 1, 0, NOW - 5)
    assert fleet(queues=(unread, read), queues_as_of=NOW).read_at["queues"] == NOW - 5


def test_the_age_of_the_oldest_message_grows_between_looks() -> None:
    queues = (Depth("waiting", 3, 0, NOW - 4, oldest_at=NOW - 30), Depth("empty", 0, 0, NOW))
    assert {queue.name: queue.oldest_seconds for queue in fleet(queues=queues).queues} == {
        "waiting": 30.0,
        "empty": None,
    }


def test_a_queue_without_a_connected_listener_has_unknown_tasks_and_rates() -> None:
    queue = fleet(queues=(Depth("orders-in", 7, 0, NOW),)).queues[0]
    assert queue.depth == 7
    assert (queue.active_tasks, queue.in_flight, queue.out_per_second) == (None, None, None)


def test_the_figures_of_several_listeners_add_up() -> None:
    workers = [
        worker(name, listeners=(ListenerStatus("orders-in", active_tasks=2, total_tasks=3, in_hand=1),))
        for name in "ab"
    ]
    queue = fleet(*workers).queues[0]
    assert (queue.active_tasks, queue.total_tasks, queue.in_flight, queue.workers) == (4, 6, 2, 2)


def test_a_lost_worker_holds_nothing_and_is_told_of() -> None:
    gone = worker("gone", presence="lost", gates=(GateStatus("start-it", "closed", waiting=True),))
    seen = fleet(gone)
    assert seen.gates == ()
    assert [item.level for item in seen.attention] == ["critical"]
    assert "gone" in seen.attention[0].what


def test_the_fleet_is_held_when_every_worker_waits_at_a_closed_gate() -> None:
    def held(name: str) -> WorkerView:
        return worker(name, gates=(GateStatus("start-it", "closed", waiting=True),))

    closed = GateState(name="start-it", epoch=3, state="closed", by="olga")
    seen = fleet(held("a"), held("b"), gates=(closed,))
    assert seen.headline == Headline("held", "2 of 2 workers waiting at start-it")
    assert (seen.gates[0].waiting, seen.gates[0].by) == (("a", "b"), "olga")
    seen = fleet(held("a"), worker("b"), gates=(closed,))
    assert seen.headline == Headline("idle", "1 of 2 workers waiting at start-it, queues are empty")
    working = worker("b", listeners=(ListenerStatus("orders-in", active_tasks=1, total_tasks=1, in_hand=3),))
    seen = fleet(held("a"), working, gates=(closed,))
    assert seen.headline == Headline("running", "1 of 2 workers waiting at start-it, 3 messages in flight")


def test_the_headline_is_the_worst_open_condition() -> None:
    working = worker("b", listeners=(ListenerStatus("orders-in", active_tasks=1, total_tasks=1, in_hand=3),))
    assert fleet(working).headline.state == "running"
    poison = Depth("orders-in", 0, 2, NOW)
    seen = fleet(working, queues=(poison,))
    assert seen.headline.state == "warning"
    assert seen.headline.why == "2 messages in the poison queue of orders-in · 1 worker, 3 messages in flight"
    seen = fleet(working, worker("gone", presence="lost"), queues=(poison,))
    assert seen.headline.state == "critical"
    assert seen.headline.why.startswith("1 worker lost: gone and 1 more · ")
    waiting = worker("a", gates=(GateStatus("start-it", "closed", waiting=True),))
    assert fleet(waiting, queues=(poison,)).headline.state == "held", (
        "a warning does not hide what an operator did"
    )
    assert fleet(waiting, worker("gone", presence="lost")).headline.state == "critical"
    away = StorageView(as_of=NOW - 30, unreachable_since=NOW - 20, error="connection refused")
    assert fleet(working, storage=away).headline.state == "critical"


def test_an_armed_gate_is_open_from_its_moment_on() -> None:
    def state(not_before: float) -> str:
        gate = GateState(name="start-it", epoch=1, state="armed", not_before=not_before)
        return fleet(gates=(gate,)).gates[0].state

    assert (state(NOW + 1), state(NOW)) == ("armed", "open")


def test_messages_that_nobody_takes_make_the_fleet_stalled() -> None:
    idle = worker("a", listeners=(ListenerStatus("orders-in"),))
    seen = fleet(
        idle, queues=(Depth("orders-in", 7, 0, NOW),), rates=Rates(out_per_second={"orders-in": 0.0})
    )
    assert seen.headline.state == "stalled"


def test_who_leads_is_what_storage_says_and_a_worker_that_claims_more_is_named_beside_it() -> None:
    claiming = worker(
        "b", elections=(LeadershipStatus("month-end", "leader", 10**15, remaining_seconds=9.0),)
    )
    holding = worker("a", elections=(LeadershipStatus("month-end", "leader", 4, remaining_seconds=7.0),))
    standing = worker("c", elections=(LeadershipStatus("month-end", "standby", 5),))
    stored = LeaderView("month-end", "a", 4, "leased")
    leader = fleet(claiming, holding, standing, leaders=(stored,)).leaders[0]
    assert (leader.holder, leader.epoch, leader.remaining_seconds) == ("a", 4, 7.0)
    assert (leader.claims, leader.standbys) == ((LeaderClaim("b", 10**15),), ("c",))


def test_a_lease_ends_when_its_holder_says_so_whoever_else_says_otherwise() -> None:
    forging = worker("b", elections=(LeadershipStatus("month-end", "leader", 4, remaining_seconds=9e9),))
    leader = fleet(forging, leaders=(LeaderView("month-end", "a", 4, "leased"),)).leaders[0]
    assert (leader.holder, leader.lease_ends, leader.claims) == ("a", None, ())


def test_an_election_that_only_workers_tell_of_has_no_leader() -> None:
    claiming = worker("b", elections=(LeadershipStatus("made-up", "leader", 7, remaining_seconds=9.0),))
    leader = fleet(claiming).leaders[0]
    assert (leader.holder, leader.lease, leader.claims) == ("", "unknown", (LeaderClaim("b", 7),))


@pytest.mark.parametrize(
    ("stored", "presence", "ends"),
    [
        (LeaderView("month-end", "b", 5, "leased", as_of=NOW), "ok", NOW + 4),
        (
            LeaderView("month-end", "b", 5, "leased", as_of=NOW),
            "lost",
            NOW + 4,
        ),  # a dead leader's lease runs on
        (
            LeaderView("month-end", "b", 5, "leased", as_of=NOW + 6),
            "lost",
            None,
        ),  # it renews, and we don't hear of it
        (
            LeaderView("month-end", "b", 6, "leased", as_of=NOW),
            "lost",
            None,
        ),  # another term, of which none has told
        (LeaderView("month-end", "", 5, "expired", as_of=NOW), "lost", None),
    ],
    ids=["told", "dead", "unheard", "another term", "free"],
)
def test_a_lease_ends_when_its_holder_last_said_so_and_is_unknown_if_that_cannot_be(
    stored: LeaderView, presence: str, ends: float | None
) -> None:
    leading = LeadershipStatus("month-end", "leader", 5, remaining_seconds=9.0, lease_seconds=20)
    holder = msgspec.structs.replace(worker("b", elections=(leading,), presence=presence), last_seen=NOW - 5)
    leader = fleet(holder, worker("c"), leaders=(stored,)).leaders[0]
    assert leader.lease_ends == ends
    assert leader.lease_seconds == (20 if stored.epoch == 5 else 15)
    assert leader.remaining_seconds == (4.0 if ends else None)


def test_nobody_leading_although_somebody_stands_by_needs_attention() -> None:
    standing = worker("c", elections=(LeadershipStatus("month-end", "standby"),))
    seen = fleet(standing, leaders=(LeaderView("month-end", "", 4, "available"),))
    assert [item.level for item in seen.attention] == ["critical"]


def test_the_shortest_runway_and_the_sum_of_rates_describe_a_sequence() -> None:
    workers = [
        worker("a", sequences=(SequenceStatus("orders", 1, 100, 40, per_second=5.0, runway_seconds=12.0),)),
        worker(
            "b", sequences=(SequenceStatus("orders", 101, 200, 150, per_second=10.0, runway_seconds=5.0),)
        ),
    ]
    grant = GrantView("orders", 1, 100, "a", NOW, "in use")
    sequence = fleet(
        *workers, sequences=(SequenceView("orders", 201, recent=(grant,), as_of=NOW),)
    ).sequences[0]
    assert (sequence.per_second, sequence.runway_seconds, sequence.owners) == (15.0, 5.0, 2)
    assert sequence.recent[0].last_issued == 40


def test_storage_that_is_away_keeps_the_old_figures_with_their_age() -> None:
    away = StorageView(as_of=NOW - 30, unreachable_since=NOW - 20, error="connection refused")
    seen = fleet(storage=away, queues=(Depth("orders-in", 7, 1, NOW - 30),))
    assert (seen.queues[0].depth, seen.queues[0].as_of) == (7, NOW - 30)
    assert seen.attention[0].level == "critical"
    assert "connection refused" in seen.attention[0].what


def test_critical_conditions_come_first_and_each_says_what_to_do() -> None:
    seen = fleet(
        worker("gone", presence="lost"),
        queues=(Depth("orders-in", 5, 3, NOW),),
        sequences=(SequenceView("orders", problem="the counter holds 'x'"),),
        degraded="the line is down",
    )
    levels = [item.level for item in seen.attention]
    assert levels == sorted(levels)
    assert {"critical", "warning"} == set(levels)
    assert all(item.remedy for item in seen.attention)


def test_a_condition_of_many_queues_is_one_line_that_leads_to_them() -> None:
    queues = [Depth(f"orders-{number}", 2, 1, NOW) for number in range(300)]
    few, many = (fleet(worker("w"), queues=tuple(queues[:count])).attention for count in (5, 300))
    assert len(few) == 10
    assert {item.url for item in few} == {f"/queues/orders-{number}/" for number in range(5)}
    assert [item.url for item in many] == ["/queues/?sort=poison", "/queues/?sort=depth"]
    assert "300 messages" in many[0].what
    assert "600 messages" in many[1].what
    assert "295 more" in many[1].what


def test_of_a_range_counts_what_its_owner_says_until_storage_says_what_became_of_it() -> None:
    recent = tuple(
        GrantView("orders", first, first + 99, "a", NOW, state)
        for first, state in ((1, "used"), (101, "granted"), (201, "lost"))
    )
    told = (
        *(("a", SequenceStatus("orders", 1, 100, 40)), ("a", SequenceStatus("orders", 101, 200, 150))),
        *(("z", SequenceStatus("orders", 201, 300, 299)), ("a", SequenceStatus("orders", 201, 300, 10**15))),
    )
    workers = [worker(f"{name}", sequences=(status,)) for name, status in told]
    (sequence,) = fleet(
        *workers, sequences=(SequenceView("orders", 301, recent=recent, as_of=NOW),)
    ).sequences
    assert [(grant.state, grant.last_issued) for grant in sequence.recent] == [
        ("used", None),
        ("in use", 150),
        ("lost", None),
    ]
