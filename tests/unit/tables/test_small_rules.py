"""Bulk writes whose rows or saga others touched, and scans that go on in a second loop."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.errors import AlreadyExists
from coordinator.queues.queue import Queue
from coordinator.tables.bulk import BulkOrder, BulkWrite
from coordinator.tables.operations import Operation, Upsert
from coordinator.tables.rows import Key
from coordinator.tables.saga import Saga, SagaMessage
from coordinator.tables.table import Table
from coordinator.testing.clock import ManualClock
from coordinator.testing.queues import memory_queue
from coordinator.testing.tables import MemoryTableStore
from tests.support.dying import HastyClock


class Site:
    """A table and the bulk writes into it, in memory."""

    def __init__(self) -> None:
        self.clock: ManualClock = HastyClock()
        self.kept = Table(MemoryTableStore("bulk", clock=self.clock))
        self.customers = Table(MemoryTableStore("customers", clock=self.clock))
        self.queue: Queue[SagaMessage] = memory_queue("bulk", type=SagaMessage, clock=self.clock)
        self.sagas = Table(MemoryTableStore("sagas", clock=self.clock))
        self.saga: Saga[BulkOrder] = Saga("bulk-write", self.sagas, self.queue, input_type=BulkOrder)
        self.bulk = BulkWrite(self.saga, self.kept, lambda name: self.customers)

    async def count(self) -> int:
        return len([row async for row in self.customers.scan()])


@pytest.fixture
def site() -> Site:
    return Site()


def many(count: int = 150, value: int = 1) -> list[Operation]:
    return [Upsert((f"p{n % 2}", f"{n:05d}"), {"n": value}) for n in range(count)]


async def test_a_write_of_two_processes_with_one_key_is_one_write(site: Site) -> None:
    start = site.saga.start

    async def overtaken(key: str, order: Any) -> bool:
        await start(key, order)
        return await start(key, order)

    site.saga.start = overtaken  # type: ignore[method-assign,assignment]
    assert await site.bulk.write("import-1", "customers", many()) == 2
    assert await site.count() == 150


async def test_a_write_whose_operations_are_partly_kept_already_goes_on(site: Site) -> None:
    writing, keep = site.bulk.write("import-1", "customers", many()), site.bulk._keep

    async def twice(*given: Any) -> None:
        await keep(*given)
        await keep(*given)

    site.bulk._keep = twice  # type: ignore[method-assign]
    await writing
    assert await site.count() == 150


async def test_a_key_under_which_other_operations_are_kept_is_taken(site: Site) -> None:
    async def dies(key: str, order: Any) -> bool:
        raise KeyboardInterrupt

    start, site.saga.start = site.saga.start, dies  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        await site.bulk.write("import-1", "customers", many())
    site.saga.start = start  # type: ignore[method-assign]
    with pytest.raises(AlreadyExists, match="import-1"):
        await site.bulk.write("import-1", "customers", many(value=2))
    assert await site.count() == 0, "nothing of either was written"
    await site.bulk.write("import-1", "customers", many())
    assert await site.count() == 150


async def test_an_order_of_an_older_version_is_recognised_without_its_digest(site: Site) -> None:
    await site.bulk.write("import-1", "customers", many())
    progress = await site.saga.read("import-1")
    known = msgspec.json.decode(progress.input, type=BulkOrder)
    await site.bulk._must_be("import-1", known)
    with pytest.raises(AlreadyExists):
        await site.bulk._must_be("import-1", BulkOrder("customers", known.rows, "other"))
    await site.saga.start("import-0", BulkOrder("customers", known.rows))
    await site.bulk._must_be("import-0", BulkOrder("customers", known.rows, "any"))
    with pytest.raises(AlreadyExists):
        await site.bulk._must_be("import-0", BulkOrder("suppliers", known.rows, "any"))


async def test_a_page_that_begins_in_the_middle_has_no_row_twice() -> None:
    table = Table(MemoryTableStore("customers"))
    for number in range(30):
        await table.write(Upsert(("nl", f"{number:03d}"), {"n": number}))
    scan = table.scan(partition="nl", page_size=10)
    taken = []
    async for row in scan:
        taken.append(row["n"])
        if len(taken) == 4:
            break
    rest = [row["n"] async for row in table.scan(partition="nl", page_size=10, token=scan.token)]
    assert taken + rest == list(range(30))
    pages = [
        [row["n"] for row in page]
        async for page in table.scan(partition="nl", page_size=10, token=scan.token).pages()
    ]
    assert [n for page in pages for n in page] == list(range(4, 30))
    assert Key("nl", "004") not in {Key("nl", f"{n:03d}") for n in taken}
