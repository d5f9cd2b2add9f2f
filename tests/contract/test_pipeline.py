"""A pipeline from end to end, in memory and on Azurite alike."""

from __future__ import annotations

import asyncio
import csv
import sqlite3
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from coordinator import Pipeline, Storage
from coordinator.config import StorageConfig
from coordinator.pipelines.aggregating import Reports
from coordinator.pipelines.azure import BlobReports, batch_control, blob_lines, list_batches
from coordinator.pipelines.control import BatchControl
from coordinator.pipelines.exports import MARKER_TABLE, csv_lines, json_lines, to_sql
from coordinator.testing.pipeline import MemoryReports, memory_pipeline

Make = Callable[..., Pipeline]


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    config = StorageConfig(prefix=storage_prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        yield storage


@pytest.fixture(params=["memory", "azurite"])
def reports(request: pytest.FixtureRequest) -> Reports:
    return MemoryReports() if request.param == "memory" else BlobReports(request.getfixturevalue("storage"))


@pytest.fixture(params=["memory", "azurite"])
def make(request: pytest.FixtureRequest) -> Make:
    if request.param == "memory":
        return memory_pipeline
    storage: Storage = request.getfixturevalue("storage")
    return storage.pipeline


def square(number: int) -> int:
    if number == 13:
        raise ValueError("unlucky")
    return number * number


def add(total: Any, results: list[int]) -> int:
    return (total or 0) + sum(results)


async def control_of(pipeline: Pipeline) -> BatchControl:
    """On storage: as another process has it, without the pipeline's code."""
    reports = pipeline._counter._reports
    if isinstance(reports, BlobReports):
        return await batch_control(reports._storage, pipeline.name, "b1")
    return pipeline.control


async def through(pipeline: Pipeline, batch: str, state: str) -> None:
    """Run all three parts until the batch has that state."""
    listeners: list[Any] = [pipeline.initiators(), pipeline.processors(), pipeline.controllers()]
    running = [asyncio.create_task(listener.run()) for listener in listeners]
    try:
        async with asyncio.timeout(30):
            while (await pipeline.status(batch)).state != state:
                await asyncio.sleep(0.05)
    finally:
        await asyncio.gather(*(listener.stop(5.0) for listener in listeners))
        await asyncio.gather(*running)


async def test_a_report_is_written_once_and_stays_as_it_is(reports: Reports) -> None:
    assert await reports.write_once("billing/b1.json", b"first")
    assert not await reports.write_once("billing/b1.json", b"second")
    if isinstance(reports, BlobReports):
        assert await reports.read("billing/b1.json") == b"first"


async def test_a_batch_runs_fails_in_part_is_retried_and_ends(make: Make) -> None:
    pipeline = make("squares", range, square, add, item=int, result=int, chunk_items=7)
    assert await pipeline.start("b1", 100)
    await through(pipeline, "b1", "partial")
    assert [failure.error async for failure in pipeline.failures("b1")] == ["ValueError: unlucky"]
    fixed = pipeline._items.processor
    pipeline._items.processor = lambda number: number * number
    await (await control_of(pipeline)).retry_failed("b1")
    await through(pipeline, "b1", "complete")
    pipeline._items.processor = fixed
    status = await pipeline.status("b1")
    assert (status.items_counted, status.items_failed) == (100, 0)


async def test_batches_are_listed_the_newest_first(storage: Storage) -> None:
    assert await list_batches(storage) == []
    first = storage.pipeline("squares", range, square, add, item=int, result=int)
    second = storage.pipeline("cubes", range, square, add, item=int, result=int)
    await first.start("b1", 5, sla_seconds=60)
    await through(first, "b1", "complete")
    await second.start("b2", 5, expected_items=5)
    found = await list_batches(storage)
    assert [(each.pipeline, each.batch, each.state) for each in found] == [
        ("cubes", "b2", "running"),
        ("squares", "b1", "complete"),
    ]
    assert (found[1].items_counted, found[1].sla_risk, found[0].items_total) == (5, "on track", 5)
    assert [each.batch for each in await list_batches(storage, "cubes")] == ["b2"]
    report = await BlobReports(storage).read(found[1].report)
    assert msgspec.json.decode(report) == sum(n * n for n in range(5))


async def test_results_go_to_blobs_and_to_sql_wholly_and_once(storage: Storage) -> None:
    def charge(number: int) -> dict[str, Any]:
        return {"id": number, "text": "=1+1" if number == 2 else f"ä{number}"}

    pipeline = storage.pipeline(
        "charges", range, charge, lambda total, results: None, item=int, chunk_items=4
    )
    await pipeline.start("b1", 10)
    await through(pipeline, "b1", "complete")
    reports = BlobReports(storage)
    columns = ("id", "text")
    assert await reports.write_stream_once("b1.jsonl", lambda: json_lines(pipeline.results_of("b1")))
    assert not await reports.write_stream_once("b1.jsonl", lambda: json_lines(pipeline.results_of("none")))
    lines = (await reports.read("b1.jsonl")).splitlines()
    assert [msgspec.json.decode(line)["id"] for line in lines] == list(range(10))
    await reports.write_stream_once("b1.csv", lambda: csv_lines(pipeline.results_of("b1"), columns))
    rows = list(csv.reader((await reports.read("b1.csv")).decode().splitlines()))
    assert (rows[0], rows[2], rows[3]) == (["id", "text"], ["1", "ä1"], ["2", "'=1+1"])

    database = sqlite3.connect(":memory:")
    database.executescript(
        f"{MARKER_TABLE}; CREATE TABLE charges (id INTEGER PRIMARY KEY, text TEXT NOT NULL);"
    )
    statement = "INSERT INTO charges VALUES (?, ?)"

    async def send(chosen: tuple[str, ...]) -> bool:
        results = pipeline.results_of("b1")
        return await to_sql(database, results, batch="b1", statement=statement, columns=chosen)

    with pytest.raises(KeyError):
        await send(("id", "none"))
    assert database.execute("SELECT count(*) FROM charges").fetchone() == (0,)
    assert [await send(columns), await send(columns)] == [True, False]
    assert database.execute("SELECT count(*), sum(id) FROM charges").fetchone() == (10, 45)
    database.close()


async def test_a_blob_is_read_line_by_line(storage: Storage) -> None:
    lines = [f"line {n} " + "é" * (n % 50) for n in range(5000)]
    container = storage.config.container("sources")
    await storage.aio.blobs.create_container(container)
    blob = storage.aio.blobs.get_blob_client(container, "input")
    await blob.upload_blob("\n".join(lines).encode())
    assert [line async for line in blob_lines(storage, container, "input")] == lines
