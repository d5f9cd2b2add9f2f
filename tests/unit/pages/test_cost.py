"""Money: what requests cost, and what polling would have cost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.cost import Budget, Prices
from coordinator.errors import ConfigurationError
from coordinator.realtime.protocol import WorkerState
from dashboard.core.prices import parsed
from dashboard.live.conditions import conditions_of
from dashboard.live.fleet import Fleet, Today
from dashboard.live.fragments import render_each
from dashboard.live.spending import bill
from dashboard.live.workloads import Pool, Work
from tests.unit.pages.fleets import NOW, full, nothing, worker


def drawn(fleet: Fleet) -> str:
    text = render_each("cost", fleet, "viewer")["cost"]
    assert "This part cannot be drawn" not in text
    return text


def test_each_operation_is_billed_by_its_class() -> None:
    lines = {
        line.operation: line for line in bill(full(), Prices(queue=1.0, blob_write=10.0, blob_read=2.0)).lines
    }
    assert lines["queue.GetMessages"].dollars == pytest.approx(0.09)
    assert lines["blob.PutBlob"].dollars == pytest.approx(0.09)
    assert lines["blob.GetBlob"].dollars == pytest.approx(0.002)


def test_the_shares_add_up_and_the_largest_comes_first() -> None:
    made = bill(full())
    assert sum(line.share for line in made.lines) == pytest.approx(1)
    assert [line.requests for line in made.lines] == [900, 90, 10]


def test_fixed_polling_asks_once_a_second_for_each_task_that_may_run_and_does_the_same_work() -> None:
    made = bill(full(), Prices(queue=0.004, blob_write=10.0, blob_read=2.0))
    a_day = 31 * 1440  # of 1,000 requests 900 ask for messages, 90 write and 10 read
    assert made.polling_tasks == 10
    assert made.work_requests_a_day == pytest.approx(0.1 * a_day)
    assert made.polling_requests_a_day == pytest.approx(864_000 + 0.1 * a_day)
    work = (0.09 * 10.0 + 0.01 * 2.0) * a_day / 10_000
    assert made.polling_dollars_a_day == pytest.approx(0.3456 + work)
    assert made.dollars_a_day == pytest.approx(0.9 * 0.004 * a_day / 10_000 + work)


def test_a_fleet_that_asks_more_than_once_a_second_would_do_so_polling_too() -> None:
    busy = msgspec.structs.replace(full(), requests_per_minute=10_000.0)
    made = bill(busy, Prices(queue=0.004))
    assert made.polling_requests_a_day == pytest.approx(14_400_000)
    assert made.polling_dollars_a_day == pytest.approx(made.dollars_a_day)


def test_a_thousand_messages_cost_what_is_spent_while_they_leave_their_queues() -> None:
    fleet = full()
    queues = [msgspec.structs.replace(queue, out_per_second=0.0) for queue in fleet.queues]
    queues[0] = msgspec.structs.replace(queues[0], out_per_second=20.0)
    made = bill(msgspec.structs.replace(fleet, queues=tuple(queues)))
    assert made.dollars_a_day is not None
    assert made.dollars_a_thousand == pytest.approx(made.dollars_a_day / (20 * 86_400 / 1000))
    idle = msgspec.structs.replace(fleet, queues=tuple(queues[1:]))
    assert bill(idle).dollars_a_thousand is None


def test_what_is_not_known_stays_unknown() -> None:
    made = bill(nothing())
    assert (made.requests_a_day, made.dollars_a_day, made.polling_dollars_a_day) == (None, None, None)
    assert bill(msgspec.structs.replace(nothing(), requests_per_minute=0.0)).dollars_a_day is None


def test_queues_and_workers_have_bills_of_their_own() -> None:
    busy = msgspec.structs.replace(worker("w-1"), state=WorkerState(requests={"queue.GetMessages": 20_000}))
    fleet = msgspec.structs.replace(full(), queue_requests={"a": 10_000, "b": 30_000}, workers=(busy,))
    made = bill(fleet, Prices(queue=0.004))
    assert [(line.operation, line.requests, line.dollars) for line in made.queues] == [
        ("b", 30_000, pytest.approx(0.012)),
        ("a", 10_000, pytest.approx(0.004)),
    ]
    assert [(line.operation, line.dollars) for line in made.workers] == [("w-1", pytest.approx(0.008))]


def test_a_queues_bill_holds_its_claims_and_the_bytes_of_both() -> None:
    traffic = {
        "a/bytes_sent": 2048, "a/bytes_received": 1024, "a/claim_writes": 10_000, "a/claim_reads": 20_000,
        "a/claim_deletes": 5, "a/of_a_newer_worker": 1,
    }  # fmt: skip
    mine = WorkerState(requests={"queue.GetMessages": 1}, queue_traffic=traffic)
    fleet = msgspec.structs.replace(
        full(),
        queue_requests={"a": 10_000, "old": 1},
        queue_traffic=traffic,
        workers=(msgspec.structs.replace(worker("w-1"), state=mine),),
    )
    made = bill(fleet, Prices(queue=0.004, blob_write=1.0, blob_read=0.5))
    by_queue, old = made.queues
    assert by_queue.dollars == pytest.approx(0.004 + 1.0 + 2 * 0.5)
    assert (by_queue.requests, by_queue.bytes_sent, by_queue.claim_deletes) == (10_000, 2048, 5)
    assert (old.bytes_sent, old.claim_writes) == (None, None), "nobody told, so it is not 0"
    assert (made.workers[0].bytes_received, made.workers[0].claim_reads) == (1024, 20_000)
    assert "10\N{NARROW NO-BREAK SPACE}000" in drawn(fleet)


@pytest.mark.parametrize(
    ("requests", "verdict"), [(100, "ok"), (2_100_000, "warn"), (2_600_000, "over")], ids=str
)
def test_the_daily_budget_is_judged_by_what_was_spent_today(requests: int, verdict: str) -> None:
    fleet = msgspec.structs.replace(full(), today=Today(NOW, {"queue.GetMessages": requests}))
    made = bill(fleet, Prices(queue=0.004), Budget(per_day=1.0))
    assert (made.verdict, made.budget, made.today_since) == (verdict, 1.0, NOW)
    assert bill(fleet).verdict == ""
    assert bill(full(), budget=Budget(1.0)).verdict == ""


def test_a_budget_nearly_spent_is_something_to_look_at(settings: Any) -> None:
    fleet = msgspec.structs.replace(full(), today=Today(NOW, {"queue.GetMessages": 2_100_000}))
    assert not [item for item in conditions_of(fleet, 1.0) if "budget" in item.what]
    settings.DAILY_BUDGET = 1.0
    (told,) = [item for item in conditions_of(fleet, 1.0) if "budget" in item.what]
    assert (told.level, told.what) == ("warning", "Requests cost $0.84 today; the budget is $1.00")


@pytest.mark.parametrize("prices", ["", "7", '{"queue": "dear"}', '{"queue": -1}', '{"egress": 1}'])
def test_prices_that_are_none_are_refused(prices: str) -> None:
    with pytest.raises(ConfigurationError):
        parsed(prices, 0.0)


def test_the_operator_s_prices_go_before_the_defaults() -> None:
    found = parsed('{"queue": 0.01, "as_of": "2026-11"}', 2.5)
    assert (found.prices.queue, found.prices.as_of, found.prices.table) == (0.01, "2026-11", Prices().table)
    assert found.budget == Budget(2.5)


@pytest.mark.parametrize(("budget", "said"), [(1.0, "More than 80 %"), (0.5, "exceeded"), (9.0, "")])
def test_the_page_warns_of_the_budget(settings: Any, budget: float, said: str) -> None:
    settings.DAILY_BUDGET = budget
    fleet = msgspec.structs.replace(full(), today=Today(NOW, {"queue.GetMessages": 2_100_000}))
    page = drawn(fleet)
    assert said in page
    assert ("banner" in page) == bool(said)


def test_what_the_dashboard_asked_itself_is_told_apart_with_its_share() -> None:
    fleet = msgspec.structs.replace(full(), own_requests={"queue.GetMessages": 500}, sampled_every=2.0)
    own = bill(fleet, Prices(queue=1.0)).own
    assert own is not None and (own.requests, own.share, own.dollars) == (500, 0.5, pytest.approx(0.05))
    text = str(drawn(fleet))
    text = " ".join(text.split())
    assert "500 requests (50.0" in text and "every 2.0" in text
    assert bill(full()).own is None and "dashboard's own" not in str(drawn(full()))


def test_instance_hours_of_today_are_shown_beside_those_under_keda_s_rule() -> None:
    today = NOW // 86_400 * 86_400
    counted = msgspec.structs.replace(
        full().work.pools[0].latest, day=today, instance_seconds=7200.0, keda_seconds=14_400.0
    )
    fleet = msgspec.structs.replace(full(), work=Work(pools=(Pool(counted),)))
    (mine,) = bill(fleet, Prices(instance_hour=0.5)).pools
    assert (mine.pool, mine.hours, mine.keda_hours) == ("orders", 2.0, 4.0)
    assert (mine.dollars, mine.keda_dollars) == (1.0, 2.0)
    (free,) = bill(fleet).pools
    assert (free.dollars, free.keda_dollars) == (None, None)
    page = drawn(fleet)
    assert "Instance hours today" in page and "Save the price of an instance hour" in page
    yesterday = msgspec.structs.replace(counted, day=today - 86_400)
    old = msgspec.structs.replace(full(), work=Work(pools=(Pool(yesterday),)))
    assert bill(old).pools == () and "Instance hours today" not in drawn(old)
