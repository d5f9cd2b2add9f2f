"""What pages read out of a fleet."""

from __future__ import annotations

import html
import json
import re

import msgspec
import pytest
from django.http import QueryDict
from django.test import RequestFactory
from django.utils.http import urlencode

from dashboard.gates.page import found_gates, pressing_gates
from dashboard.leaders.page import OWN_ELECTION, found_leaders
from dashboard.live import fragments
from dashboard.live import view_models as readings
from dashboard.live.fleet import Attention, Fleet, GateView, LeaderView, QueueView, ReleaseView, SequenceView
from dashboard.live.view_models import announcement
from dashboard.overview.search import find
from dashboard.pages.views import cards_query
from dashboard.queues.page import sorted_queues
from dashboard.sequences.page import found_sequences
from dashboard.templatetags import kennel
from dashboard.workers.page import Group, crowd, sorted_workers
from tests.unit.pages.fleets import full


def drawn(page: str, fragment: str, fleet: Fleet, role: str, query: str = "") -> str:
    text = fragments.render_each(page, fleet, role, query)[fragment]
    assert "This part cannot be drawn" not in text
    return text


def test_workers_in_trouble_come_first_and_numbers_are_counted_as_numbers() -> None:
    names = [worker.name for worker in sorted_workers(full(), QueryDict()).rows]
    assert names == ["w-4", "w-2", "w-10"]


def test_pages_of_workers_continue_where_the_last_one_ended() -> None:
    first = sorted_workers(full(), QueryDict(), limit=2)
    query = QueryDict(mutable=True)
    query["after"] = first.next
    second = sorted_workers(full(), query, limit=2)
    assert [worker.name for worker in first.rows + second.rows] == ["w-4", "w-2", "w-10"]
    assert second.next == ""


def _many(count: int) -> Fleet:
    """Workers on 20 hosts; every tenth late, the last one lost."""
    first = full().workers[0]
    return msgspec.structs.replace(
        full(),
        workers=tuple(
            msgspec.structs.replace(
                first,
                name=f"billing-{n}" if n % 2 else f"orders-host-{n % 20}-{n}",
                host=f"host-{n % 20}",
                pid=n,
                instance=f"i-{n}",
                presence="lost" if n == count - 1 else "late" if n % 10 == 0 else "ok",
            )
            for n in range(count)
        ),
    )


def test_a_large_fleet_is_counted_by_kind_and_host_those_in_trouble_first() -> None:
    assert crowd(_many(50), QueryDict()) is None
    found = crowd(_many(300), QueryDict())
    assert found is not None
    assert found.kinds == [Group("billing", 149, 0, 1), Group("orders", 120, 30, 0)]
    assert found.hosts[:3] == [
        Group("host-19", 14, 0, 1),
        Group("host-0", 0, 15, 0),
        Group("host-10", 0, 15, 0),
    ]
    assert (len(found.hosts), found.hidden_hosts) == (12, 8)
    assert [each.name for each in found.hosts[3:]] == [f"host-{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 9)]


def test_the_map_has_one_square_for_each_worker() -> None:
    found = crowd(_many(300), QueryDict())
    assert found is not None
    squares = {}
    for presence, path in found.squares:
        squares[presence] = sum(int(length) // 10 for length in re.findall(r"h(\d+)", path))
    assert squares == {"ok": 269, "late": 30, "lost": 1}
    assert (found.width, found.height) == (1000, 30)
    assert "crowd-map" in drawn("workers", "workers", _many(300), "viewer")
    assert "crowd-map" not in drawn("workers", "workers", full(), "viewer")


def _gates(*gates: GateView) -> Fleet:
    return msgspec.structs.replace(full(), gates=gates)


def test_gates_that_only_a_worker_claims_come_after_those_in_storage() -> None:
    claimed = GateView("a-claimed", "closed", 0, waiting=("w-1",))
    stored = GateView("z-stored", "closed", 4, waiting=("w-2",))
    idle = GateView("idle", "closed", 2)
    names = [gate.name for gate in pressing_gates(_gates(claimed, idle, stored))]
    assert names == ["z-stored", "a-claimed", "idle"]


def test_blobs_that_hold_no_gate_come_after_all_gates_unless_workers_wait_there() -> None:
    odd = [GateView(f"a-{n}", "unknown", 0, problem="unreadable: no gate") for n in range(3)]
    needed = GateView("b", "unknown", 0, waiting=("w-1",), problem="unreadable: no gate")
    gates = (*odd, needed, GateView("z", "closed", 4), GateView("y", "open", 4))
    assert [gate.name for gate in pressing_gates(_gates(*gates))] == ["b", "y", "z", "a-0", "a-1", "a-2"]


def test_pages_of_gates_continue_where_the_last_one_ended_and_are_filtered_by_name() -> None:
    fleet = _gates(*(GateView(f"sale-{n}", "closed", 1) for n in range(5)), GateView("night", "open", 3))
    seen: list[str] = []
    query = QueryDict(mutable=True)
    for _ in range(3):
        cards = found_gates(fleet, query, limit=2)
        assert cards.found == 6
        seen += [gate.name for gate in cards.rows]
        query["after"] = cards.next
    assert seen == ["night", *(f"sale-{n}" for n in range(5))]
    assert cards.next == ""
    found = found_gates(fleet, QueryDict("q=Sale"), limit=2)
    assert ([gate.name for gate in found.rows], found.found) == (["sale-0", "sale-1"], 5)


def test_elections_and_sequences_are_paged_like_gates_with_those_in_trouble_first() -> None:
    leaders = (
        LeaderView(OWN_ELECTION, "dashboard-1", 2, "leased"),
        LeaderView("report", "w-1", 2, "leased"),
        *(LeaderView(f"odd-{n}", "", 0, "available") for n in range(3)),
    )
    sequences = (SequenceView("orders"), *(SequenceView(f"odd-{n}", problem="unreadable") for n in range(4)))
    fleet = msgspec.structs.replace(full(), leaders=leaders, sequences=sequences)
    first = found_leaders(fleet, QueryDict(), limit=4)
    assert ([row.name for row in first.rows], first.found) == (["odd-0", "odd-1", "odd-2", "report"], 5)
    rest = found_leaders(fleet, QueryDict(urlencode({"after": first.next})), limit=4)
    assert ([row.name for row in rest.rows], rest.next) == ([OWN_ELECTION], "")
    cards = found_sequences(fleet, QueryDict("q=ODD"), limit=3)
    assert ([row.name for row in cards.rows], cards.found, bool(cards.next)) == (
        ["odd-0", "odd-1", "odd-2"],
        4,
        True,
    )


def test_a_name_as_long_as_a_blobs_is_a_place_to_continue(rf: RequestFactory) -> None:
    leaders = tuple(LeaderView(f"{'x' * 1000}-{n}", "", 0, "available") for n in range(3))
    fleet = msgspec.structs.replace(full(), leaders=leaders)
    first = found_leaders(fleet, QueryDict(), limit=2)
    asked = QueryDict(cards_query(rf.get("/leaders/", {"after": first.next})))
    assert [row.name[-1] for row in found_leaders(fleet, asked, limit=2).rows] == ["2"]


@pytest.mark.parametrize("page", ["gates", "leaders", "sequences"])
def test_a_page_of_a_thousand_cards_is_not_much_larger_than_one_of_thirty(page: str) -> None:
    def drawn(number: int) -> int:
        names = [f"odd-{n}" for n in range(number)]
        fleet = msgspec.structs.replace(
            full(),
            gates=tuple(GateView(name, "unknown", 0, problem="unreadable") for name in names),
            leaders=tuple(LeaderView(name, "", 0, "unknown", problem="unreadable") for name in names),
            sequences=tuple(SequenceView(name, problem="unreadable") for name in names),
        )
        return len(fragments.render_all(page, fleet, "admin"))

    assert drawn(1000) < drawn(30) * 1.1


@pytest.mark.parametrize(
    ("query", "names"),
    [("presence=lost", ["w-4"]), ("q=W-1", ["w-10"]), ("q=orders", ["w-4", "w-2", "w-10"])],
)
def test_workers_are_found_by_presence_name_and_queue(query: str, names: list[str]) -> None:
    assert [worker.name for worker in sorted_workers(full(), QueryDict(query)).rows] == names


def test_a_queue_of_unknown_depth_sorts_below_an_empty_one() -> None:
    fleet = msgspec.structs.replace(full(), queues=(QueueView("a"), QueueView("b", 0), QueueView("c", 9)))
    assert [queue.name for queue in sorted_queues(fleet, QueryDict("sort=depth"))] == ["c", "b", "a"]


def test_gates_that_hold_workers_come_first() -> None:
    assert [gate.name for gate in pressing_gates(full())] == ["nightly", "start"]


@pytest.mark.parametrize(
    ("passed", "said"),
    [
        (0, "0 of 100"),
        (24, "0 of 100"),
        (26, "at least 25 of 100"),
        (99, "at least 75 of 100"),
        (100, "opened: 100 of 100"),
    ],
)
def test_a_release_is_announced_in_four_steps(passed: int, said: str) -> None:
    gate = msgspec.structs.replace(full().gates[0], release=ReleaseView("start", 4, 0.0, None, 100, passed))
    assert said in announcement(msgspec.structs.replace(full(), gates=(gate,)))


@pytest.mark.parametrize(
    ("queue", "seconds"),
    [
        (QueueView("q", 100, in_per_second=1.0, out_per_second=3.0), 50.0),
        (QueueView("q", 100, in_per_second=3.0, out_per_second=3.0), None),
        (QueueView("q", None, in_per_second=1.0, out_per_second=3.0), None),
        (QueueView("q", 0, in_per_second=0.0, out_per_second=0.0), 0.0),
    ],
)
def test_time_to_drain_is_unknown_unless_the_queue_shrinks(queue: QueueView, seconds: float | None) -> None:
    assert kennel.drain_seconds(queue) == seconds


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0.0 s"),
        (9.94, "9.9 s"),
        (59.0, "59 s"),
        (61.0, "1 min 1 s"),
        (3600.0, "1 h"),
        (90_000.0, "1 d 1 h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, said: str) -> None:
    assert kennel.duration(seconds).replace(kennel.NARROW_SPACE, " ") == said


def test_an_order_number_leads_to_its_range_and_a_name_to_its_page() -> None:
    assert find(full(), "1 500")[0][0].url == "/sequences/?sequence=orders&number=1500#ledger"
    assert find(full(), "99999") == ([], 0), "a number that was not handed out yet has no range"
    assert {hit.kind for hit in find(full(), "orders")[0]} == {"Sequence", "Queue"}
    assert find(full(), "nightly")[0][0].url == "/gates/?q=nightly#gate-nightly"


def test_overview_lists_the_most_severe_conditions_and_counts_all() -> None:
    many = tuple(
        Attention("critical" if n < 3 else "warning", f"condition {n}", "Do it.") for n in range(300)
    )
    html = drawn("overview", "attention", msgspec.structs.replace(full(), attention=many), "viewer")
    assert html.count('class="issue-what"') == 20
    assert "condition 0" in html
    assert "Showing the 20 most severe of 300." in html
    assert len(html) < 20_000


# --- which queues are drawn -------------------------------------------------------------------------------------------


def _queues(*queues: QueueView) -> Fleet:
    return msgspec.structs.replace(full(), queues=queues)


def test_the_busiest_queues_come_first_and_kennels_own_last() -> None:
    queues = [QueueView(f"a-{n}", depth=1, as_of=1.0) for n in range(8)]
    queues += [
        QueueView("kennel-billing-work", depth=5_000, active_tasks=9, as_of=1.0),
        QueueView("z-busiest", depth=900, active_tasks=1, as_of=1.0),
        QueueView("y-flowing", depth=1, active_tasks=8, in_per_second=50.0, out_per_second=50.0, as_of=1.0),
        QueueView("x-unread"),
    ]
    by_depth = [queue.name for queue in readings.busiest(queues)]
    assert by_depth[:3] == ["z-busiest", "y-flowing", "a-0"]
    assert by_depth[-2:] == ["x-unread", "kennel-billing-work"]
    assert [queue.name for queue in readings.busiest(queues, "active")][:2] == ["y-flowing", "z-busiest"]


@pytest.mark.parametrize("page", ["overview", "queues", "tv"])
def test_pages_are_sent_the_samples_of_the_busiest_queues_and_how_many_there_are(page: str) -> None:
    queues = [QueueView(f"a-{n:02}", depth=1, as_of=1.0) for n in range(40)]
    fleet = _queues(
        *queues, QueueView("z-busiest", depth=900, as_of=1.0), QueueView("kennel-x-work", depth=7, as_of=1.0)
    )
    text = fragments.render_each(page, fleet, "viewer")["pulse"]
    said = json.loads(html.unescape(text[text.index(">") + 1 : text.rindex("<")]))
    assert said["order"]["depth"][0] == "z-busiest"
    assert (said["order"]["total"], len(said["order"]["depth"])) == (42, readings.MOST_CHOICES)
    assert said["order"]["own"] == ["kennel-x-work"]
    assert said["points"]["depth:z-busiest"] == [1.0, 900]
    assert len(said["points"]) <= 4 * readings.MOST_CHOICES


def test_the_wallboard_and_overview_show_the_busiest_queues_by_name() -> None:
    queues = [QueueView(f"a-{n:02}", depth=n, as_of=1.0) for n in range(40)]
    wall = fragments.render_each("tv", _queues(*queues), "viewer")["tv"]
    assert re.findall(r"<h2>(a-\d+)", wall) == ["a-36", "a-37", "a-38", "a-39"]
    table = fragments.render_each("overview", _queues(*queues), "viewer")["queues"]
    assert re.findall(r"/queues/(a-\d+)/", table) == [f"a-{n}" for n in range(28, 40)]
