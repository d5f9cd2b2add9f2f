"""What the fleet's workers and the dashboard sent, added up over processes, restarts and days."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from coordinator.azure.metering import Meter, Request
from coordinator.realtime.protocol import WorkerState
from coordinator.testing.clock import ManualClock
from dashboard.live.fleet import NOTHING
from dashboard.live.fleet_state import DAY_SECONDS
from dashboard.live.presence import Presence

from .making import fleet_state_of, hello

OPERATION = "queue.GetMessages"


def state(requests: int, **queues: int) -> WorkerState:
    return WorkerState(requests={OPERATION: requests}, queue_requests=queues)


def test_queues_are_added_up_over_workers_and_their_restarts() -> None:
    presence = Presence("here", clock=ManualClock())
    presence.joined(hello("a", state=state(5, orders=5)))
    presence.report("i-a", state(9, orders=8, mails=1))
    presence.joined(hello("b", state=state(4, orders=4)))
    presence.joined(hello("a", instance="i-a-again", state=state(2, mails=2)))
    assert presence.queue_requests == {"orders": 12, "mails": 3}


async def test_today_is_what_was_sent_since_midnight_and_since_it_was_counted() -> None:
    clock = ManualClock()
    presence = Presence("here", clock=clock)
    board = fleet_state_of(presence, clock)
    old = replace(hello("old", state=state(1000)), started_at=clock.time() - 3 * DAY_SECONDS)
    presence.joined(old)
    board.apply(replace(NOTHING, at=clock.time(), requests={OPERATION: 100}))
    presence.joined(replace(hello("new", state=state(7)), started_at=clock.time() + 1))
    presence.report("i-old", state(1010))
    board.apply(replace(NOTHING, at=clock.time(), requests={OPERATION: 103}))
    today = board.fleet(fresh=True).today
    assert today is not None
    assert (today.requests, today.since) == ({OPERATION: 20}, presence.since)

    await clock.advance(DAY_SECONDS)
    presence.report("i-old", state(1011))
    next_day = board.fleet(fresh=True).today
    assert next_day is not None
    assert next_day.since == clock.time() // DAY_SECONDS * DAY_SECONDS
    presence.report("i-old", state(1015))
    today = board.fleet(fresh=True).today
    assert today is not None
    assert Counter(today.requests)[OPERATION] == 4


def test_a_meter_tells_the_busiest_queues_and_the_sum_of_the_others() -> None:
    meter = Meter()
    for number in range(5):
        for _ in range(number + 1):
            meter.count(Request("queue", "GetMessages", f"q-{number}"))
    meter.count(Request("blob", "GetBlob", "q-4"))
    assert meter.by_queue(most=2) == {"q-4": 5, "q-3": 4, "": 6}
    assert sum(meter.by_queue().values()) == 15


def test_a_meter_tells_the_bytes_and_claims_of_the_busiest_queues_and_of_all_others_in_one() -> None:
    meter = Meter()
    for queue, times in (("busy", 3), ("quiet", 1)):
        for _ in range(times):
            request = Request("queue", "PutMessage", queue)
            meter.count(request, bytes_sent=10)
            meter.answered(request, 5)
        for operation in ("PutBlob", "PutBlock", "GetBlob", "DeleteBlob"):
            meter.count(Request("blob", operation, "kennel-claims", queue), bytes_sent=100)
    meter.count(Request("blob", "GetBlob", "kennel-gates"), bytes_sent=1)
    meter.count(Request("table", "QueryEntities", "ledger"), bytes_sent=1)
    claims = {"claim_writes": 2, "claim_reads": 1, "claim_deletes": 1}
    busy, others = {"bytes_sent": 430, "bytes_received": 15}, {"bytes_sent": 410, "bytes_received": 5}
    assert meter.traffic(most=1) == {
        f"{queue}/{what}": number
        for queue, told in (("busy", busy | claims), ("", others | claims))
        for what, number in told.items()
    }


def test_bytes_and_claims_are_added_up_over_workers_and_their_restarts() -> None:
    presence = Presence("here", clock=ManualClock())
    presence.joined(hello("a", state=WorkerState(queue_traffic={"orders/bytes_sent": 5})))
    presence.report("i-a", WorkerState(queue_traffic={"orders/bytes_sent": 9, "orders/claim_reads": 1}))
    again = WorkerState(queue_traffic={"orders/bytes_sent": 2})
    presence.joined(hello("a", instance="i-a-again", state=again))
    assert presence.queue_traffic == {"orders/bytes_sent": 11, "orders/claim_reads": 1}
