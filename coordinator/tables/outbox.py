"""`Outbox`: a change in a table and the messages about it, both or neither."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar, Unpack

import msgspec

from coordinator.backoff import TRANSIENT, retry
from coordinator.errors import AlreadyExists, ConfigurationError, NotFound, StorageError
from coordinator.queues.handlers import Handler
from coordinator.queues.listener import ListenerOptions, QueueListener
from coordinator.queues.queue import Queue
from coordinator.tables.commit import BACKOFF, commit
from coordinator.tables.operations import ANY, Delete, Insert, Operation
from coordinator.tables.rows import Key, Row, chunk_columns, join_columns
from coordinator.tables.table import Table

T = TypeVar("T")
_log = logging.getLogger("coordinator.tables")

INTENT = "kennel-intent|"
MARKER = "kennel-marker|"
RELAY_SECONDS = 300.0


class Outbox(Generic[T]):
    """Writes rows, a marker that this was done, and the intent to send messages, in one transaction; then sends.

    Guarantees that if the rows are written, each message is put in the queue at least once; if they are not, it never
    is. With a `marker` the whole happens once however often it is asked for.

    Does not guarantee that a message is put once only, nor when, if this process dies in between: then `relay` sends
    it, from any process.

    Args:
        table: The table of the rows.
        queue: The queue of the messages.

    Raises:
        StorageError: Storage refused or stayed unreachable; also raised by each method.

    Examples:
        >>> outbox = Outbox(storage.table("orders"), storage.queue("invoices", type=Invoice))
        >>> await outbox.commit("nl", [Insert(("nl", order.id), {"cents": 4200})], Invoice(order.id), marker=order.id)
    """

    def __init__(self, table: Table, queue: Queue[T]) -> None:
        self.table = table
        self.queue = queue

    async def commit(
        self, partition: str, operations: Sequence[Operation], *items: T, marker: str = "", intent: str = ""
    ) -> bool:
        """Carry out the operations and send the items.

        Args:
            partition: The partition of all operations.
            operations: At most 98.
            *items: The items to send.
            marker: Names what is done, such as the id of the message that caused it (default: none).
            intent: Names the intent row instead of a random id, so that a repeated call meets the earlier one.

        Returns:
            False if `marker` was done before.

        Raises:
            ConfigurationError: There are neither items nor a marker, or the service could not take the transaction.
            StorageError: As for `Table.transact`. After an error with `maybe_done`, repeat the call with the same
                marker.
        """
        name = intent or uuid.uuid4().hex
        writes: list[Operation] = []
        if marker:
            writes.append(Insert((partition, MARKER + marker), {"at": self.table.store.clock.time()}))
        key = Key(partition, INTENT + name)
        if items:
            writes.append(Insert(key, chunk_columns("items", msgspec.json.encode(items))))
        if not writes:
            raise ConfigurationError("an outbox needs items to send or a marker")
        try:
            await commit(self.table, *writes, *operations)
        except AlreadyExists:
            if marker and await self._exists(Key(partition, MARKER + marker)):
                await self.relay(partition)
                return False
            raise
        if items:
            await self._send(key, items)
        return True

    async def relay(self, partition: str | None = None) -> int:
        """Send what a process that died left behind.

        Args:
            partition: The partition (default: the whole table, which reads all of it).

        Returns:
            How many intents were sent.
        """
        count = 0
        async for row in self._intents(partition):
            await self._send(row.key, self._items(row))
            count += 1
        return count

    async def relay_one(self, partition: str, intent: str) -> bool:
        """Send what was left behind under one name.

        Args:
            partition: The partition.
            intent: The name of the intent.

        Returns:
            False if nothing was left.
        """
        async for row in self.table.scan(
            partition=partition, row_from=INTENT + intent, row_before=INTENT + intent + "\x20"
        ):
            await self._send(row.key, self._items(row))
            return True
        return False

    async def _send(self, key: Key, items: Sequence[T]) -> None:
        await self.queue.put(*items)
        try:
            await retry(
                lambda: self.table.write(Delete(key, ANY)), backoff=BACKOFF, clock=self.table.store.clock
            )
        except TRANSIENT as error:  # sent it is; somebody will send it once more
            _log.warning("An intent of table %s was sent but not removed: %s", self.table.name, error)

    async def _exists(self, key: Key) -> bool:
        try:
            await self.table.read(key, select=())
        except NotFound:
            return False
        return True

    async def _intents(self, partition: str | None) -> AsyncIterator[Row]:
        async for row in self.table.scan(partition=partition, prefix=INTENT):
            yield row

    def _items(self, row: Row) -> list[T]:
        kind: Any = list[self.queue.schema.type]  # type: ignore[name-defined]
        try:
            decoded: list[T] = msgspec.json.decode(join_columns("items", row.values), type=kind)
        except msgspec.DecodeError as error:
            raise StorageError(
                f"the intent {row.key} of table {self.table.name} is damaged: {error}",
                resource=self.table.name,
            ) from error
        return decoded


class RelayingListener(QueueListener[T]):
    """A listener of an outbox's queue that also sends, each `relay_seconds`, what a dead process left unsent.

    One request each time: 300 s make 12 an hour. `besides` is awaited each time, too.
    """

    def __init__(
        self,
        outbox: Outbox[T],
        partition: str,
        handler: Handler,
        *,
        relay_seconds: float = RELAY_SECONDS,
        besides: Callable[[], Awaitable[None]] | None = None,
        **options: Unpack[ListenerOptions],
    ) -> None:
        if relay_seconds <= 0:
            raise ConfigurationError(f"relay_seconds must be positive, got {relay_seconds}")
        super().__init__(outbox.queue, handler, **options)
        self._outbox, self._partition, self._relay_seconds = outbox, partition, relay_seconds
        self._besides = besides

    async def run(self) -> None:
        relay = asyncio.create_task(self._relay(), name=f"relay {self.name}")
        try:
            await super().run()
        finally:
            relay.cancel()
            await asyncio.gather(relay, return_exceptions=True)

    async def _relay(self) -> None:
        while True:
            try:
                await self._outbox.relay(self._partition)
                if self._besides is not None:
                    await self._besides()
            except StorageError as error:
                _log.info("The search for unsent messages of %s failed: %s", self.name, error)
            except Exception:
                # One damaged row must not end the looking for all others.
                _log.exception("The search for unsent messages of %s failed and will be repeated", self.name)
            await self._outbox.table.store.clock.sleep(self._relay_seconds)
