"""One queue over several: each queue of the service takes about 2,000 messages a second, shards take more."""

from __future__ import annotations

import asyncio
import itertools
import logging
import zlib
from collections.abc import Callable
from typing import Generic, TypeVar, Unpack

from coordinator.errors import AlreadyExists, ConfigurationError, PreconditionFailed, StorageError
from coordinator.queues.handlers import Handler
from coordinator.queues.listener import ListenerOptions, QueueListener
from coordinator.queues.notifications import Subscriptions
from coordinator.queues.protocols import MAX_SHARDS, ShardLayout, ShardStore
from coordinator.queues.queue import PutOptions, Queue, SentMessage
from coordinator.realtime.bus import Notification

T = TypeVar("T")
_log = logging.getLogger("coordinator.queues")
PUTTER_SECONDS = 10.0
LISTENER_SECONDS = 60.0
PUSHED_LISTENER_SECONDS = 330.0


class ShardedQueue(Generic[T]):
    """Queues ``NAME-0`` … ``NAME-n`` used as one.

    Guarantees what `Queue` guarantees. A listener drains all shards evenly, and a shard that is no longer filled is
    drained for ever, so nothing is lost after `reshard`.

    Does not guarantee that equal keys go to one shard while the number of shards changes, nor an order.

    Args:
        make: Returns the queue of a shard by its name.
        name: The name.
        shards: Number of shards until `reshard` stores one, at least 1.
        store: Where the number is stored for all processes: listeners follow at once with push, otherwise within a
            minute, senders within 10 s (default: the number is this process's own).

    Raises:
        ConfigurationError: `shards` is out of bounds.

    Examples:
        >>> orders = storage.sharded_queue("orders", type=Order, shards=4)
        >>> await orders.put(order, key=order.customer)
    """

    def __init__(
        self, make: Callable[[str], Queue[T]], name: str, *, shards: int, store: ShardStore | None = None
    ) -> None:
        self.name = name
        self._make, self._store = make, store
        self._queues: list[Queue[T]] = []
        self._listeners: list[QueueListener[T]] = []
        self._turn = itertools.count()
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()
        self.shards = 0
        self._use(ShardLayout(_checked(shards), shards))

    @property
    def queues(self) -> list[Queue[T]]:
        """All shards that may hold messages, as known here."""
        return list(self._queues)

    async def reshard(self, shards: int) -> None:
        """Use that many shards from now on, here and, with a store, in all processes.

        Args:
            shards: Number of shards.

        Raises:
            ConfigurationError: `shards` is out of bounds.
        """
        _checked(shards)
        while self._store is not None:
            stored, etag = await self._store.read(self.name)
            most = max(shards, len(self._queues), stored.most if stored is not None else 0)
            try:
                await self._store.write(self.name, ShardLayout(shards, most), etag)
            except (PreconditionFailed, AlreadyExists):
                continue
            await self._queues[0].bus().publish(Notification(topic=f"shards:{self.name}"))
            break
        self._use(ShardLayout(shards, shards))

    def _use(self, layout: ShardLayout) -> None:
        for number in range(len(self._queues), max(layout.shards, layout.most)):
            queue = self._make(f"{self.name}-{number}")
            self._queues.append(queue)
            for listener in self._listeners:
                listener.add_source(queue)
        self.shards = layout.shards

    async def follow(self, after_seconds: float = 0.0) -> None:
        """Read the stored number of shards; an error keeps the one in use.

        Args:
            after_seconds: Only if it was not read for so long (default 0).
        """
        if self._store is None:
            return
        async with self._reading:
            now = self._queues[0].clock.monotonic()
            if now - self._read_at < after_seconds:
                return
            self._read_at = now
            try:
                layout, _ = await self._store.read(self.name)
            except (StorageError, ConfigurationError) as error:
                _log.warning(
                    "The number of shards of %s cannot be read; using %d: %s", self.name, self.shards, error
                )
                return
            if layout is not None:
                self._use(layout)

    async def put(
        self, *items: T, key: str | None = None, **options: Unpack[PutOptions]
    ) -> list[SentMessage]:
        """Store items in one shard.

        Args:
            *items: The items.
            key: Equal keys go to the same shard while the number of shards stays (default: shards take turns).
            **options: As for `Queue.put`.

        Returns:
            As for `Queue.put`.
        """
        await self.follow(PUTTER_SECONDS)
        number = next(self._turn) if key is None else zlib.crc32(key.encode())
        return await self._queues[number % self.shards].put(*items, **options)

    def listener(self, handler: Handler, **options: Unpack[ListenerOptions]) -> QueueListener[T]:
        """One listener for all shards.

        Args:
            handler: As for `Queue.listener`.
            **options: As for `QueueListener`.

        Returns:
            The listener; call its `run`.
        """
        listener: QueueListener[T] = _ShardListener(self, handler, **options)
        self._listeners.append(listener)
        return listener

    async def depth(self) -> int:
        """About how many messages all shards hold; one request for each shard."""
        return sum([await queue.depth() for queue in self._queues])


class _ShardListener(QueueListener[T]):
    """Follows the number of shards while it runs."""

    def __init__(
        self, sharded: ShardedQueue[T], handler: Handler, **options: Unpack[ListenerOptions]
    ) -> None:
        first, *others = sharded.queues
        options["extra_queues"] = [*options.get("extra_queues", ()), *((queue, 1) for queue in others)]
        super().__init__(first, handler, **options)
        self._sharded = sharded

    async def run(self) -> None:
        following = asyncio.create_task(self._follow(), name=f"shards {self._sharded.name}")
        try:
            await super().run()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self) -> None:
        changed, hints = asyncio.Event(), Subscriptions()
        hints.on(self.queue.bus(), f"shards:{self._sharded.name}", lambda hint: changed.set())
        try:
            while True:
                changed.clear()
                await self._sharded.follow()
                pushed = self.queue.bus().is_connected
                pause = PUSHED_LISTENER_SECONDS if pushed else LISTENER_SECONDS
                await self.queue.clock.wait(changed, pause)
        finally:
            hints.close()


def _checked(shards: int) -> int:
    if not 1 <= shards <= MAX_SHARDS:
        raise ConfigurationError(f"a queue has 1 to {MAX_SHARDS} shards, not {shards}")
    return shards
