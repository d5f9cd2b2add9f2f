"""Pipelines of a storage account: made, and listed for the dashboard; sources and reports in blobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypedDict, Unpack

import msgspec
from azure.storage.blob import ContentSettings

from coordinator.azure.account import Account, ensure_container
from coordinator.azure.errors import translated
from coordinator.backoff import Backoff, retry
from coordinator.bounds import is_moment, one_line
from coordinator.errors import AlreadyExists, PreconditionFailed
from coordinator.pipelines.aggregating import Reporter
from coordinator.pipelines.control import BatchControl
from coordinator.pipelines.ledger import BatchLedger
from coordinator.pipelines.messages import BatchDone, BatchOrder, ChunkResult, Counted, Head, ItemChunk, Sent
from coordinator.pipelines.pipeline import Pipeline
from coordinator.pipelines.status import BatchStatus, batch_status
from coordinator.queues.azure import make_queue
from coordinator.queues.queue import QueueConfig
from coordinator.tables.azure import make_table
from coordinator.tables.outbox import Outbox
from coordinator.tables.rows import Row

MAX_PAGES = 5
_ONE = QueueConfig(items_per_message=1)


class BlobReports:
    """Reports in the container ``{prefix}reports``, as ``{pipeline}/{batch}.json``."""

    def __init__(self, storage: Account) -> None:
        self._storage = storage
        self._container = storage.config.container("reports")

    async def write_once(self, name: str, content: bytes) -> bool:
        """Store under that name; False if there is one already, which stays as it is.

        After a lost answer the repetition finds its own blob and says False: the report is there all the same.
        """
        return await self._once(name, lambda: content, "application/json")

    async def write_stream_once(
        self, name: str, make: Callable[[], AsyncIterator[bytes]], *, content_type: str = "text/plain"
    ) -> bool:
        """`write_once` for content of any size; `make` begins it again for each try."""
        return await self._once(name, make, content_type)

    async def _once(self, name: str, make: Callable[[], Any], content_type: str) -> bool:
        async def upload() -> None:
            blob = self._storage.aio.blobs.get_blob_client(self._container, name)
            with translated("write the report", name):
                await blob.upload_blob(
                    make(), overwrite=False, content_settings=ContentSettings(content_type=content_type)
                )

        try:
            await ensure_container(self._storage, self._container, lambda: retry(upload, backoff=Backoff()))
        except (AlreadyExists, PreconditionFailed):
            return False
        return True

    async def exists(self, name: str) -> bool:
        """Whether there is a report of that name. One request."""

        async def look() -> bool:
            with translated("look for the report", name):
                found: bool = await self._storage.aio.blobs.get_blob_client(self._container, name).exists()
            return found

        return await retry(look, backoff=Backoff())

    async def read(self, name: str) -> bytes:
        """The report of that name; raises `NotFound`."""
        blob = self._storage.aio.blobs.get_blob_client(self._container, name)
        with translated("read the report", name):
            content: bytes = await (await blob.download_blob()).readall()
        return content


class PipelineOptions(TypedDict, total=False):
    """The options of `Pipeline`, for those who pass them on."""

    item: Any
    result: Any
    combine: Callable[[list[Any]], list[Any]] | None
    reporter: Reporter
    chunk_items: int
    chunk_seconds: float
    item_seconds: float
    item_attempts: int


def make_pipeline(
    storage: Account,
    name: str,
    initiator: Callable[..., Any],
    processor: Callable[[Any], Any],
    controller: Callable[[Any, list[Any]], Any],
    *,
    done_queue: str = "",
    queue: str = "",
    **options: Unpack[PipelineOptions],
) -> Pipeline:
    """The pipeline of that name, over the queues ``{queue}-orders``, ``{queue}-work`` and ``{queue}-results``.

    `queue` is ``{prefix}{name}`` unless given; `done_queue` gets a `BatchDone` for each complete batch.
    """
    queue = queue or f"{storage.config.prefix}{name}"
    return Pipeline(
        name,
        initiator,
        processor,
        controller,
        ledger=ledger(storage, name),
        reports=BlobReports(storage),
        orders=make_queue(storage, f"{queue}-orders", type=BatchOrder, config=_ONE),
        work=make_queue(storage, f"{queue}-work", type=ItemChunk, config=_ONE),
        results=make_queue(storage, f"{queue}-results", type=ChunkResult, config=_ONE),
        done=make_queue(storage, done_queue, type=BatchDone) if done_queue else None,
        identity=lambda: storage.identity,
        **options,
    )


async def batch_control(storage: Account, pipeline: str, batch: str) -> BatchControl:
    """What operators do to that batch, from any process; one request. Raises `NotFound`."""
    rows = ledger(storage, pipeline)
    name = (await rows.head(batch)).value.orders_queue or f"{storage.config.prefix}{pipeline}-orders"
    orders = make_queue(storage, name, type=BatchOrder, config=_ONE)
    return BatchControl(rows, Outbox(rows.heads, orders), clock=storage.clock)


def ledger(storage: Account, pipeline: str) -> BatchLedger:
    return BatchLedger(
        pipeline,
        make_table(storage, storage.config.table("batches")),
        make_table(storage, storage.config.table("batchparts")),
    )


def _started(row: Row) -> float:
    at = row.get("started_at", 0.0)
    return float(at) if is_moment(at) else 0.0


async def list_batches(
    storage: Account,
    pipeline: str | None = None,
    *,
    limit: int = 1000,
    since: float = 0.0,
    odd: Callable[[str], None] | None = None,
) -> list[BatchStatus]:
    """Batches of that pipeline (None: of all) started after `since`, at most `limit`: what runs or needs a hand, then the newest.

    One request for up to 1,000 rows, at most five, and one for each batch that runs or failed. How far a cancelled batch had come
    is not read: see `BatchControl.status`. With `odd`, a row that cannot be read is passed to it as a sentence, and the
    others are returned.
    """
    scan = make_table(storage, storage.config.table("batches")).scan(
        partition=pipeline, where=[("started_at", "gt", since)]
    )
    heads: list[Row] = []
    pages = 0
    async for page in scan.pages():
        heads += page
        pages += 1
        if pages == MAX_PAGES:
            break
    heads.sort(key=lambda row: (row.get("state") in ("complete", "cancelled"), -_started(row)))
    now = storage.clock.time()

    async def status(name: str, batch: str, head: Head) -> BatchStatus:
        sent, counted = (
            Sent(items=head.items + head.failed, is_finished=head.state != "cancelled"),
            Counted(items=head.items, failed=head.failed),
        )
        if head.state in ("running", "failed"):
            rows = ledger(storage, name)
            rows.seen(batch, head)
            both = await rows.progress(batch)
            sent, counted = both[0].value, both[1].value
        return batch_status(name, batch, head, sent, counted, now=now)

    async def listed(row: Row) -> BatchStatus | None:
        try:
            head = msgspec.convert(row.values, Head, strict=False)
            if not is_moment(head.started_at) or not is_moment(head.finished_at):
                raise ValueError("a moment is out of bounds")
            return await status(row.key.partition, row.key.row, head)
        except (ValueError, TypeError, KeyError, OverflowError, ZeroDivisionError) as error:
            if odd is None:
                raise
            odd(
                f"batch {one_line(row.key.row)} of {one_line(row.key.partition)}: unreadable: {one_line(str(error))}"
            )
            return None

    found = [
        each for each in await asyncio.gather(*(listed(row) for row in heads[:limit])) if each is not None
    ]
    return sorted(found, key=lambda each: each.started_at, reverse=True)


async def blob_lines(storage: Account, container: str, blob: str) -> AsyncIterator[str]:
    """The lines of a blob of any size, read piece by piece; for an initiator whose source names a blob."""
    with translated("read", blob):
        download = await storage.aio.blobs.get_blob_client(container, blob).download_blob()
        rest = b""
        async for piece in download.chunks():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line.decode()
        if rest:
            yield rest.decode()
