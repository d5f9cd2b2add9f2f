"""The rows of one pipeline's batches, typed; every write conditional, every lost answer recognised."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from coordinator.errors import NotFound
from coordinator.pipelines.messages import (
    COUNTED,
    RESULT,
    RESULT_END,
    SENT,
    ChunkResult,
    Counted,
    Head,
    ItemFailure,
    Sent,
)
from coordinator.tables.commit import commit
from coordinator.tables.operations import Insert, Operation, Replace
from coordinator.tables.rows import MAX_BYTES, Key, Row, chunk_columns, join_columns
from coordinator.tables.table import Table

S = TypeVar("S", bound=msgspec.Struct)


class Versioned(NamedTuple, Generic[S]):
    """A row's content and the ETag it was read with; "" if there is no row yet."""

    value: S
    etag: str


class BatchLedger:
    """Heads in one table (a partition for each pipeline), parts in another (a partition for each batch)."""

    def __init__(self, pipeline: str, heads: Table, parts: Table) -> None:
        self.pipeline = pipeline
        self.heads = heads
        self.parts = parts
        # The bar that ends the pipeline's name must be the first one.
        self._escaped = pipeline.replace("~", "~0").replace("|", "~1")
        self._plain: set[str] = set()

    def partition(self, batch: str) -> str:
        """Where the batch's parts are; known only after its head was read, if the pipeline's name holds a bar."""
        return f"{self.pipeline if batch in self._plain else self._escaped}|{batch}"

    def seen(self, batch: str, head: Head) -> None:
        """Older versions did not escape the pipeline's name; their batches stay where they are."""
        if self._escaped == self.pipeline:
            return
        if head.first_items:
            self._plain.discard(batch)
        else:
            self._plain.add(batch)

    async def head(self, batch: str) -> Versioned[Head]:
        """Raises `NotFound` for a batch that was never started."""
        found = _versioned(await self.heads.read((self.pipeline, batch)), Head)
        self.seen(batch, found.value)
        return found

    async def sent(self, batch: str) -> Versioned[Sent]:
        return await self._part(batch, SENT, Sent)

    async def counted(self, batch: str) -> Versioned[Counted]:
        return await self._part(batch, COUNTED, Counted)

    async def progress(self, batch: str) -> tuple[Versioned[Sent], Versioned[Counted]]:
        """Both rows, with one request."""
        rows = {
            row.key.row: row
            async for row in self.parts.scan(
                partition=self.partition(batch), row_from=SENT, row_before=COUNTED + " "
            )
        }
        sent, counted = rows.get(SENT), rows.get(COUNTED)
        return (
            _versioned(sent, Sent) if sent else Versioned(Sent(), ""),
            _versioned(counted, Counted) if counted else Versioned(Counted(), ""),
        )

    def store(self, batch: str, row: str, value: Sent | Counted, etag: str) -> Operation:
        """The write that replaces what was read with that ETag."""
        key, values = (self.partition(batch), row), msgspec.structs.asdict(value)
        return Replace(key, values, etag) if etag else Insert(key, values)

    async def save_sent(self, batch: str, value: Sent, etag: str) -> str:
        """Raises `PreconditionFailed` or `AlreadyExists` if another initiator has been at it."""
        return (await commit(self.parts, self.store(batch, SENT, value, etag)))[0]

    async def results(self, batch: str, *, after: int = -1) -> AsyncIterator[ChunkResult]:
        """All that was counted, by chunk number and round, page by page."""
        start = f"{RESULT}{after + 1:010d}"
        async for row in self.parts.scan(
            partition=self.partition(batch), row_from=start, row_before=RESULT_END, page_size=200
        ):
            yield decode_result(row)

    async def failed_rows(self, batch: str) -> AsyncIterator[str]:
        """The result rows with items that failed and were not put right in a later round; reads no item."""
        number, row, failed = "", "", 0
        scan = self.parts.scan(
            partition=self.partition(batch), row_from=RESULT, row_before=RESULT_END, select=("failed",)
        )
        async for found in scan:
            chunk = found.key.row.rpartition("-")[0]
            if failed and chunk != number:
                yield row
            number, row, failed = chunk, found.key.row, int(found["failed"])
        if failed:
            yield row

    async def result(self, batch: str, row: str) -> ChunkResult:
        """One result row."""
        return decode_result(await self.parts.read((self.partition(batch), row)))

    async def known(self, batch: str, rows: Sequence[str]) -> set[str]:
        """Which of these result rows exist."""
        found = self.parts.scan(
            partition=self.partition(batch), row_from=min(rows), row_before=max(rows) + " ", select=()
        )
        return {row.key.row async for row in found} & set(rows)

    async def _part(self, batch: str, row: str, kind: type[S]) -> Versioned[S]:
        try:
            return _versioned(await self.parts.read((self.partition(batch), row)), kind)
        except NotFound:
            return Versioned(kind(), "")


MAX_RESULT_BYTES = MAX_BYTES - 64 * 1024
_SHORT_ERROR = 100


def fitted(result: ChunkResult) -> ChunkResult:
    """The result with its errors cut short, if a row could not hold it otherwise."""
    for length in (_SHORT_ERROR, 0):
        if len(msgspec.msgpack.encode(_packed(result))) <= MAX_BYTES:
            break
        failures = [msgspec.structs.replace(each, error=each.error[:length]) for each in result.failures]
        result = msgspec.structs.replace(result, failures=failures)
    return result


def insert_result(key: tuple[str, str], result: ChunkResult) -> Insert:
    columns: dict[str, Any] = {"size": result.size, "failed": len(result.failures)}
    return Insert(Key(*key), {**columns, **chunk_columns("result", msgspec.msgpack.encode(_packed(result)))})


def decode_result(row: Row) -> ChunkResult:
    return _unpacked(msgspec.msgpack.decode(join_columns("result", row.values)))


def _packed(result: ChunkResult) -> list[Any]:
    failures = [[each.index, bytes(each.item), each.error] for each in result.failures]
    results = b"[" + b",".join(bytes(each) for each in result.results) + b"]"
    return [result.batch, result.number, result.size, result.round, results, failures]


def _unpacked(content: list[Any]) -> ChunkResult:
    batch, number, size, round, results, failures = content
    return ChunkResult(
        batch=batch,
        number=number,
        size=size,
        round=round,
        results=msgspec.json.decode(results, type=list[msgspec.Raw]),
        failures=[ItemFailure(index, msgspec.Raw(item), error) for index, item, error in failures],
    )


def _versioned(row: Row, kind: type[S]) -> Versioned[S]:
    return Versioned(msgspec.convert(row.values, kind, strict=False), row.etag)
