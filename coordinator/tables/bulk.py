"""`BulkWrite`: more writes than a transaction takes, split, and all done in the end, whoever crashes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Unpack
from uuid import UUID

import msgspec

from coordinator.backoff import Backoff, retry
from coordinator.bounds import Count, KeyText
from coordinator.errors import AlreadyExists, ConfigurationError, KennelError, NotFound
from coordinator.queues.delivery import Retry
from coordinator.queues.listener import ListenerOptions, QueueListener
from coordinator.tables.operations import ANY, Delete, Insert, Operation, Upsert, split
from coordinator.tables.rows import MAX_PARTS, PART_BYTES, Key, check_key, chunk_columns, join_columns
from coordinator.tables.saga import Saga, SagaContext, SagaMessage
from coordinator.tables.table import Table

AT_ONCE = 8
BACKOFF = Backoff(base_seconds=0.1, cap_seconds=5.0, deadline_seconds=60.0)
_UUID = 1
_ROW_BYTES = PART_BYTES * MAX_PARTS


class BulkOrder(msgspec.Struct, frozen=True):
    """Which table, in how many rows the operations are kept, and what identifies them ("": of an older version)."""

    table: KeyText
    rows: Count
    digest: KeyText = ""


class BulkWrite:
    """Writes any number of rows, of any partitions, with one call.

    Guarantees that all of it is written when `write` returns. Operations that fit in a transaction are one: all or nothing. More
    is kept in a table first, and then written transaction by transaction by a saga: if this process dies after the
    operations were kept, any worker that runs `listener()` writes the rest, or the next `write` of that key does.

    Does not guarantee that others never see a part of it, nor that a row which another process writes meanwhile stays
    so: only operations that may be repeated are taken, `Upsert` and `Delete` with `ANY`. Operations that fit in a transaction
    are written without a look at the key.

    Args:
        saga: The saga that writes; `Storage.bulk` gives one.
        kept: The table of operations that are still to be written.
        table: Returns the table of a name.

    Raises:
        StorageError: Storage refused or stayed unreachable.

    Examples:
        >>> await storage.bulk().write("import-4711", "stock", [Upsert((row.country, row.id), row.values) for row in rows])
    """

    def __init__(self, saga: Saga[BulkOrder], kept: Table, table: Callable[[str], Table]) -> None:
        self._saga, self._kept, self._table = saga, kept, table
        saga.step(timeout_seconds=3600.0, attempts=None)(self.write_rows)
        saga.step(attempts=None)(self.forget_rows)

    async def write(self, key: str, table: str, operations: Iterable[Operation]) -> int:
        """Write all operations.

        Args:
            key: Names this write, for good.
            table: The name of the table.
            operations: `Upsert`, and `Delete` with `ANY`.

        Returns:
            The number of transactions.

        Raises:
            ConfigurationError: An operation cannot be written or repeated. Nothing was sent.
            AlreadyExists: The key names another write. Nothing of this one is written.
            KennelError: The saga was rolled back or is stuck, which only an operator can cause.
        """
        check_key((key, key))
        wanted = list(operations)
        for operation in wanted:
            if not isinstance(operation, Upsert) and not (
                isinstance(operation, Delete) and operation.etag == ANY
            ):
                raise ConfigurationError(
                    f"{type(operation).__name__} of {Key(*operation.key)} cannot be repeated: a bulk write takes Upsert, and "
                    "Delete with ANY"
                )
        parts = split(wanted)
        if len(parts) <= 1:
            for part in parts:
                await _write(self._table(table), part)
            return len(parts)
        content = msgspec.msgpack.encode([_packed(each) for each in wanted])
        pieces = [content[start : start + _ROW_BYTES] for start in range(0, len(content), _ROW_BYTES)]
        order = BulkOrder(table, len(pieces), hashlib.sha256(content).hexdigest())
        try:
            await self._must_be(key, order)
        except NotFound:
            await self._keep(key, table, pieces)
            if not await self._saga.start(key, order):
                await self._must_be(key, order)
        await self._finish(key)
        return len(parts)

    def listener(self, **options: Unpack[ListenerOptions]) -> QueueListener[SagaMessage]:
        """A listener that carries on what a process that died left.

        Args:
            **options: As for `QueueListener`.

        Returns:
            The listener; run it with `Worker.add`.
        """
        return self._saga.listener(**options)

    async def _finish(self, key: str) -> None:
        while True:
            try:
                progress = await self._saga.run(key)
                break
            except Retry as later:
                await self._kept.store.clock.sleep(later.after or 1.0)
        progress = progress or await self._saga.wait(key)
        if progress.state != "done":
            raise KennelError(f"the bulk write {key} is {progress.state}: {progress.error}")

    async def _must_be(self, key: str, order: BulkOrder) -> None:
        """Raises `AlreadyExists` if the saga of that key writes something else, `NotFound` without one."""
        known = msgspec.json.decode((await self._saga.read(key)).input, type=BulkOrder)
        if not known.digest:
            order = msgspec.structs.replace(order, digest="")
        if known != order:
            raise _taken(key, order.table)

    async def _keep(self, key: str, table: str, pieces: Sequence[bytes]) -> None:
        clock = self._kept.store.clock
        for number, piece in enumerate(pieces):
            insert = Insert((key, f"{number:06d}"), chunk_columns("part", piece))
            try:
                await retry(lambda insert=insert: self._kept.write(insert), backoff=BACKOFF, clock=clock)  # type: ignore[misc]
            except (
                AlreadyExists
            ) as error:  # by an earlier try of this very write, or by another write of that key
                if join_columns("part", (await self._kept.read(insert.key)).values) != piece:
                    raise _taken(key, table) from error

    # --- the steps: each may run again ----------------------------------------------------------------------------

    async def write_rows(self, context: SagaContext[BulkOrder]) -> None:
        """The first step of the saga: send the transactions, some partitions at a time.

        Args:
            context: The saga.
        """
        rows = [row async for row in self._kept.scan(partition=context.key)]
        if len(rows) != context.input.rows:
            raise KennelError(f"{len(rows)} of {context.input.rows} rows of operations are there")
        content = b"".join(join_columns("part", row.values) for row in rows)
        table, limit = self._table(context.input.table), asyncio.Semaphore(AT_ONCE)
        partitions: dict[str, list[list[Operation]]] = {}
        for part in split(_unpacked(each) for each in msgspec.msgpack.decode(content, ext_hook=_extended)):
            partitions.setdefault(part[0].key[0], []).append(part)

        async def send(parts: list[list[Operation]]) -> None:
            async with limit:
                for part in parts:
                    await _write(table, part)

        await asyncio.gather(*(send(parts) for parts in partitions.values()))

    async def forget_rows(self, context: SagaContext[BulkOrder]) -> None:
        """The second step of the saga: delete the kept operations.

        Args:
            context: The saga.
        """
        for number in range(context.input.rows):
            await self._kept.write(Delete((context.key, f"{number:06d}"), ANY))


def _taken(key: str, table: str) -> AlreadyExists:
    return AlreadyExists(
        f"the bulk write {key} was begun with other operations; nothing of this one was written to {table}. Use another key "
        "for it, or repeat exactly what was begun",
        resource=table,
    )


async def _write(table: Table, part: Sequence[Operation]) -> None:
    clock = table.store.clock
    try:
        await retry(lambda: table.transact(part), backoff=BACKOFF, clock=clock)
    except NotFound:
        # A row to delete is gone already, perhaps by an earlier try: one by one that is no fault.
        for operation in part:
            await retry(lambda one=operation: table.write(one), backoff=BACKOFF, clock=clock)  # type: ignore[misc]


def _packed(operation: Operation) -> list[Any]:
    if isinstance(operation, Delete):
        return list(operation.key)
    values = {
        name: msgspec.msgpack.Ext(_UUID, value.bytes) if isinstance(value, UUID) else value
        for name, value in operation.values.items()
    }
    return [*operation.key, values]


def _unpacked(content: list[Any]) -> Operation:
    partition, row, *values = content
    return Upsert((partition, row), values[0]) if values else Delete((partition, row), ANY)


def _extended(code: int, data: memoryview) -> Any:
    return UUID(bytes=bytes(data)) if code == _UUID else msgspec.msgpack.Ext(code, bytes(data))
