"""One queue over several (S14): each queue of the service takes about 2,000 messages a second, shards take more."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from coordinator.errors import ConfigurationError
from coordinator.queues.listener import QueueListener
from coordinator.queues.queue import Kept, Queue
from coordinator.queues.running import Handler

T = TypeVar("T")
MAX_SHARDS = 64


class ShardedQueue(Generic[T]):
    """Queues ``NAME-0`` … ``NAME-n`` used as one.

    `put` goes round-robin, or by key: equal keys to the same shard while the number of shards stays. A listener drains
    all shards evenly. `reshard` changes the number while everything runs: putters of this process use the new shards at
    once; listeners of this process also go on draining the shards that are no longer filled. Other processes must be
    given the same number; until then a listener that knows fewer shards leaves the others to those that know them, so
    grow the listeners first and the putters second, and shrink the other way round.
    """

    def __init__(self, make: Callable[[str], Queue[T]], name: str, *, shards: int) -> None:
        self.name = name
        self._make = make
        self._queues: list[Queue[T]] = []
        self._listeners: list[QueueListener[T]] = []
        self._turn = itertools.count()
        self.shards = 0
        self.reshard(shards)

    @property
    def queues(self) -> list[Queue[T]]:
        """All shards that may hold messages."""
        return list(self._queues)

    def reshard(self, shards: int) -> None:
        """Use that many shards from now on; no request is made."""
        if not 1 <= shards <= MAX_SHARDS:
            raise ConfigurationError(f"a queue has 1 to {MAX_SHARDS} shards, not {shards}")
        for number in range(len(self._queues), shards):
            queue = self._make(f"{self.name}-{number}")
            self._queues.append(queue)
            for listener in self._listeners:
                listener.add_source(queue)
        self.shards = shards

    async def put(self, *items: T, key: str | None = None, **options: Any) -> list[Kept]:
        """Store items in one shard: the next in turn, or the one of the key. Options as for `Queue.put`."""
        number = next(self._turn) if key is None else zlib.crc32(key.encode())
        return await self._queues[number % self.shards].put(*items, **options)

    def listener(self, handler: Handler, **options: Any) -> QueueListener[T]:
        """One listener for all shards; options as for `QueueListener`."""
        first, *others = self._queues
        listener: QueueListener[T] = QueueListener(
            first, handler, also=[(queue, 1) for queue in others], **options
        )
        self._listeners.append(listener)
        return listener

    async def depth(self) -> int:
        """About how many messages all shards hold; one request a shard."""
        return sum([await queue.depth() for queue in self._queues])
