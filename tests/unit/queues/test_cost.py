"""Money by request, by tables."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.azure.metering import Meter, Request
from coordinator.cost import Budget, Prices, Spending, price_of
from coordinator.errors import ConfigurationError
from coordinator.testing.clock import ManualClock
from coordinator.testing.queues import MemoryQueueTransport, memory_queue

PRICES = Prices(queue=10, blob_write=20, blob_read=30, blob_list=40, table=50, blob_other=60)


@pytest.mark.parametrize(
    ("service", "operation", "money"),
    [
        ("queue", "GetMessages", 0.001),
        ("queue", "DeleteMessage", 0.001),
        ("blob", "PutBlob", 0.002),
        ("blob", "AppendBlock", 0.002),
        ("blob", "CreateContainer", 0.002),
        ("blob", "SetBlobMetadata", 0.006),
        ("blob", "SetBlobTags", 0.006),
        ("blob", "GetBlobTags", 0.006),
        ("blob", "LeaseBlob", 0.006),
        ("blob", "GetBlobProperties", 0.006),
        ("blob", "GetBlob", 0.003),
        ("blob", "ListBlobs", 0.004),
        ("blob", "DeleteBlob", 0),
        ("table", "InsertEntity", 0.005),
    ],
)
def test_each_request_has_the_price_of_its_kind(service: str, operation: str, money: float) -> None:
    assert price_of(Request(service, operation, "x"), PRICES) == pytest.approx(money)


def test_a_lease_costs_what_the_list_has_for_other_operations() -> None:
    lease, write = (price_of(Request("blob", operation, "x")) for operation in ("LeaseBlob", "PutBlob"))
    assert write / lease == pytest.approx(12.5)


def test_a_budget_warns_and_slows_only_idle_polling_and_only_if_asked() -> None:
    budget = Budget(1.0, slow_idle_polling=True, slowest_seconds=60)
    assert [budget.verdict(spent) for spent in (0.5, 0.9, 1.1)] == ["ok", "warn", "over"]
    assert [budget.idle_seconds(spent, 5) for spent in (0.9, 2.0, 100.0)] == [5, 10, 60]
    assert Budget(1.0).idle_seconds(100.0, 5) == 5


def test_prices_and_budgets_out_of_bounds_are_refused() -> None:
    with pytest.raises(ConfigurationError):
        Prices(queue=-1)
    with pytest.raises(ConfigurationError):
        Budget(0)


async def test_spending_starts_anew_each_day() -> None:
    clock, meter = ManualClock(), Meter()
    spending = Spending(meter, clock=clock, prices=PRICES)
    meter.count(Request("queue", "GetMessages", "a"))
    assert spending.today() == pytest.approx(0.001)
    await clock.advance(90_000)
    assert spending.today() == 0
    meter.count(Request("queue", "GetMessages", "a"))
    assert spending.today() == pytest.approx(0.001)


async def test_over_budget_an_idle_queue_is_polled_more_slowly_and_work_is_not_held_up() -> None:
    clock, meter = ManualClock(), Meter()
    transports: dict[str, MemoryQueueTransport] = {}
    queue = memory_queue("work", type=int, clock=clock, transports=transports)
    got: list[int] = []

    async def handler(item: int) -> None:
        got.append(item)

    meter.count(Request("blob", "PutBlob", "x"))
    listener = queue.listener(
        handler,
        budget=Budget(1e-9, slow_idle_polling=True, slowest_seconds=60),
        spending=Spending(meter, clock=clock, prices=PRICES),
    )
    running = asyncio.create_task(listener.run())
    await clock.advance(300)
    before = transports["work"].requests
    await clock.advance(3600)
    assert 55 <= transports["work"].requests - before <= 65
    await queue.put(*range(100))
    await clock.settle()
    assert len(got) == 100
    stopping = asyncio.create_task(listener.stop(1))
    await clock.advance(5)
    await stopping
    await running
