"""What an account holds, as lists: for a dashboard or a script, whatever others have written into it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from coordinator import Saga, SagaContext, Storage
from coordinator.config import StorageConfig
from coordinator.errors import ConfigurationError, KennelError
from coordinator.journal import Journal
from coordinator.leadership.azure import list_leaders
from coordinator.pipelines.azure import list_batches
from coordinator.queues.azure import BlobShards
from coordinator.scaling.azure import list_scaling, scaling_history
from coordinator.scaling.decision import AgentState, Decision, Observation
from coordinator.scaling.history import LATEST
from coordinator.sequences.azure import CounterListing
from coordinator.tables.azure import list_sagas, open_sagas, saga_heads, saga_names
from coordinator.tables.operations import ANY, Merge, Put


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    config = StorageConfig(prefix=storage_prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        yield storage


async def test_a_new_account_holds_nothing_and_that_is_no_error(storage: Storage) -> None:
    assert await CounterListing(storage).read() == []
    assert await list_sagas(storage) == []
    assert await list_batches(storage) == []
    assert await list_scaling(storage) == []
    assert await list_leaders(storage) == []
    assert await saga_names(storage) == []
    assert await Journal(storage, "audit").lines() == []


async def test_counters_are_listed_whoever_wrote_them_and_a_damaged_one_says_why(storage: Storage) -> None:
    with storage.sequence("orders", range_size=10, max_range_size=10) as orders:
        orders.next_id()
    container = storage.aio.blobs.get_container_client(storage.config.container("sequences"))
    await container.upload_blob("bills", b"4711", overwrite=True)
    await container.upload_blob("worn", b"not a number", overwrite=True)
    found = {each.name: each for each in await CounterListing(storage).read()}
    assert set(found) == {"orders", "bills", "worn"}
    assert found["orders"].next == 11 and found["orders"].counter is not None
    assert found["bills"].next == 4711 and not found["bills"].problem
    assert found["worn"].next is None and "not a number" in found["worn"].problem


async def test_sagas_are_listed_and_a_row_that_cannot_be_read_costs_itself_alone(storage: Storage) -> None:
    trip: Saga[str] = storage.saga("trip", input=str)

    @trip.step
    async def go(context: SagaContext[str]) -> None: ...

    for key in ("a", "b", "c"):
        await trip.start(key, "")
    await trip.run("a")
    assert [(each.key, each.state) for each in await list_sagas(storage, "trip")] == [
        ("a", "done"),
        ("b", "running"),
        ("c", "running"),
    ]
    assert len(await list_sagas(storage, limit=2)) == 2
    assert await saga_names(storage) == ["trip"] and await saga_names(storage, limit=1) == ["trip"]
    table = storage.table(storage.config.table("sagas"))
    await table.write(Merge(("trip", "saga|b"), {"changed_at": 1e300}, ANY))
    await table.write(Merge(("trip", "open|c"), {"state": "lost in space"}, ANY))
    odd: list[str] = []
    assert {head.key for head in await saga_heads(storage, odd=odd.append)} == {"a", "c"}
    assert [head.key for head in await open_sagas(storage, ["trip"], odd=odd.append)] == ["b"]
    assert [text.split(": ")[-1] for text in odd] == [
        "its moment is out of bounds",
        "its state is unknown",
    ]
    with pytest.raises(ValueError, match="out of bounds"):
        await saga_heads(storage)


async def test_a_batch_that_cannot_be_read_costs_itself_alone(storage: Storage) -> None:
    squares = storage.pipeline("squares", range, lambda n: n * n, lambda t, r: None, item=int, result=int)
    await squares.start("well", 5)
    await squares.start("worn", 5)
    table = storage.table(storage.config.table("batches"))
    await table.write(Merge(("squares", "worn"), {"started_at": 1e300}, ANY))
    odd: list[str] = []
    assert [each.batch for each in await list_batches(storage, odd=odd.append)] == ["well"]
    (text,) = odd
    assert text.startswith("batch worn of squares: unreadable: ")
    with pytest.raises(ValueError, match="started_at"):
        await list_batches(storage, "squares")


async def test_a_pool_that_cannot_be_read_costs_itself_alone(storage: Storage) -> None:
    for pool in ("well", "worn"):
        seen = Observation(at=storage.clock.time(), actual=0, visible=0)
        await scaling_history(storage, pool).record(
            Decision(1, "why", AgentState(1)), seen, previous=0, by="ann", epoch=1
        )
    table = storage.table(storage.config.table("scaling"))
    (latest,) = [row async for row in table.scan(partition="worn", prefix=LATEST)]
    await table.write(Merge(latest.key, {"at": 1e300}, ANY))
    odd: list[str] = []
    assert [each.pool for each in await list_scaling(storage, odd=odd.append)] == ["well"]
    (text,) = odd
    assert text.startswith("pool worn: unreadable: ") and text.endswith("$.at`")
    with pytest.raises(KennelError, match="unreadable"):
        await list_scaling(storage)


async def test_leaders_are_listed_with_what_is_odd_about_them(storage: Storage) -> None:
    container = storage.aio.blobs.get_container_client(storage.config.container("leases"))
    await container.create_container()
    odd: dict[str, Any] = {"holder": "node-7", "epoch": "1.5", "since": "1700000000"}
    await container.upload_blob("month-end", b"", metadata=odd)
    (leader,) = await list_leaders(storage)
    assert leader.name == "month-end" and leader.holder == "node-7" and not leader.is_held


async def test_a_journal_is_appended_to_by_any_number_and_read_in_the_order_of_its_parts(
    storage: Storage,
) -> None:
    journal, other = Journal(storage, "audit"), Journal(storage, "audit")
    for part, line in (("2026-10", "a"), ("2026-11", "b"), ("2026-10", "c")):
        await journal.append(part, line)
    await other.append("2026-11", "ä")
    assert await journal.lines() == ["a", "c", "b", "ä"]


async def test_shards_whose_layout_was_damaged_are_named(storage: Storage) -> None:
    queue: Any = storage.sharded_queue("work", int, shards=2)
    await queue.reshard(3)
    shards = BlobShards(storage)
    layout, _ = await shards.read("work")
    assert layout is not None and layout.shards == 3
    found = [
        (container.name, blob.name)
        async for container in storage.aio.blobs.list_containers(name_starts_with=storage.config.prefix)
        async for blob in storage.aio.blobs.get_container_client(container.name).list_blobs()
    ]
    ((container, name),) = [each for each in found if "work" in each[1]]
    await storage.aio.blobs.get_blob_client(container, name).upload_blob(b"{", overwrite=True)
    with pytest.raises(ConfigurationError, match="shards of work is damaged"):
        await shards.read("work")


async def test_rows_are_found_by_any_value_that_a_column_can_hold(storage: Storage) -> None:
    table = storage.table(storage.config.table("things"))
    values: dict[str, Any] = {
        "data": b"x",
        "flag": True,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "id": uuid4(),
    }
    values |= {"small": 7, "large": 2**40, "share": 0.5, "text": "olga's"}
    await table.write(Put(("a", "1"), values))
    for column, value in values.items():
        assert len(await table.top(9, where=[(column, "eq", value)])) == 1, column
    with pytest.raises(ConfigurationError, match="cannot be stored"):
        await table.top(1, where=[("data", "eq", {"no": "value"})])  # type: ignore[list-item]
