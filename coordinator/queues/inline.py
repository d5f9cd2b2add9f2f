"""Put and keep: processing a message without ever getting it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from coordinator.backoff import Backoff, retry
from coordinator.errors import ConfigurationError, ReceiptStale, StorageError
from coordinator.queues.queue import Queue, SentMessage

T = TypeVar("T")


@asynccontextmanager
async def keeping(queue: Queue[T], item: T, *, seconds: float = 60.0) -> AsyncIterator[T]:
    """Store the item hidden for `seconds`, work on it inside the block, delete it when the block ends well.

    Guarantees that the item is stored before the block begins, and that listeners get it if the block raises (at once) or
    the process dies (when `seconds` are over). Stays hidden while the block runs. Saves the get: one put, one delete.
    """
    if not 2 <= seconds <= 7 * 24 * 3600:
        raise ConfigurationError(f"seconds must be 2 to 604,800, got {seconds}")
    (kept,) = await queue.put(item, visibility=seconds)
    holder = _Holder(queue, kept, seconds)
    renewing = asyncio.create_task(holder.renew(), name=f"keep {queue.name}")
    try:
        yield item
    except BaseException:
        await _end(renewing)
        await holder.show()
        raise
    await _end(renewing)
    await holder.delete()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


class _Holder:
    def __init__(self, queue: Queue[T], kept: SentMessage, seconds: float) -> None:
        self._queue, self._kept, self._seconds = queue, kept, seconds
        self._receipt = kept.receipt

    async def renew(self) -> None:
        while True:
            await self._queue.clock.sleep(self._seconds / 2)
            try:
                self._receipt = await self._queue.transport.update(
                    self._kept.id, self._receipt, visibility_seconds=self._seconds
                )
            except ReceiptStale:
                return
            except StorageError:
                continue

    async def show(self) -> None:
        try:
            await self._queue.transport.update(self._kept.id, self._receipt, visibility_seconds=0)
        except StorageError:
            return  # it appears by itself
        await self._queue.announce()

    async def delete(self) -> None:
        try:
            await retry(
                lambda: self._queue.transport.delete(self._kept.id, self._receipt),
                backoff=Backoff(),
                clock=self._queue.clock,
            )
        except ReceiptStale:
            return
        with suppress(StorageError):  # the work is done; what stays is swept
            await self._queue.claims.discard(self._kept.envelope)
