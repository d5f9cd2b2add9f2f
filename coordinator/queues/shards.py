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
from coordinator.queues.protocols import MAX_SHARDS, Layout, ShardStore
from coordinator.queues.queue import PutOptions, Queue, SentMessage
from coordinator.realtime.bus import Notification

T = TypeVar("T")
_log = logging.getLogger("coordinator.queues")
PUTTER_SECONDS = 10.0
LISTENER_SECONDS = 60.0
PUSHED_LISTENER_SECONDS = 330.0


class ShardedQueue(Generic[T]):
    """Queues ``NAME-0`` … ``NAME-n`` used as one.

    `put` goes round-robin, or by key: equal keys to the same shard while the number of shards stays. A listener drains
    all shards evenly. `shards` is how many there are until `reshard` says otherwise; with a `store`, `reshard` counts
    for every process and goes before `shards`: listeners follow at once when a hub is connected, else within a minute,
    putters within 10 s. A shard that is no longer filled is drained for ever, so nothing is lost whoever learns of it
    first. Without a store the number is this process's own.
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
        self._use(Layout(_checked(shards), shards))

    @property
    def queues(self) -> list[Queue[T]]:
        """All shards that may hold messages, as far as is known here."""
        return list(self._queues)

    async def reshard(self, shards: int) -> None:
        """Use that many shards from now on, here and, with a store, everywhere."""
        _checked(shards)
        while self._store is not None:
            stored, etag = await self._store.read(self.name)
            most = max(shards, len(self._queues), stored.most if stored is not None else 0)
            try:
                await self._store.write(self.name, Layout(shards, most), etag)
            except (PreconditionFailed, AlreadyExists):
                continue
            await self._queues[0].bus().publish(Notification(topic=f"shards:{self.name}"))
            break
        self._use(Layout(shards, shards))

    def _use(self, layout: Layout) -> None:
        for number in range(len(self._queues), max(layout.shards, layout.most)):
            queue = self._make(f"{self.name}-{number}")
            self._queues.append(queue)
            for listener in self._listeners:
                listener.add_source(queue)
        self.shards = layout.shards

    async def follow(self, after_seconds: float = 0.0) -> None:
        """Look up the stored number unless that was done within `after_seconds`; trouble keeps the one in use."""
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
        """Store items in one shard: the next in turn, or the one of the key. Options as for `Queue.put`."""
        await self.follow(PUTTER_SECONDS)
        number = next(self._turn) if key is None else zlib.crc32(key.encode())
        return await self._queues[number % self.shards].put(*items, **options)

    def listener(self, handler: Handler, **options: Unpack[ListenerOptions]) -> QueueListener[T]:
        """One listener for all shards; options as for `QueueListener`."""
        listener: QueueListener[T] = _ShardListener(self, handler, **options)
        self._listeners.append(listener)
        return listener

    async def depth(self) -> int:
        """About how many messages all shards hold; one request a shard."""
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
