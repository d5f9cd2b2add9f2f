"""The initiator (S12): cuts a batch into chunks and sends them, in constant memory, resumed from where it stopped."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from coordinator.errors import AlreadyExists, PreconditionFailed
from coordinator.pipelines.ledger import Ledger
from coordinator.pipelines.messages import Chunk, Head, Sent
from coordinator.queues.envelope import encode_item
from coordinator.queues.queue import Queue

Initiator = Callable[..., Iterable[Any] | AsyncIterator[Any]]

# So many chunks are sent between two notes of progress: a crash repeats no more than these.
WINDOW_CHUNKS = 8
# The first chunks are small, so that a few slow items are spread; those after them grow until the items' time is known.
FIRST_ITEMS = 4
GROWTH = 4
# What a chunk should take a processor. Longer spreads worse, shorter costs more messages.
CHUNK_SECONDS = 0.5
_LOOK_SECONDS = 1.0
# A chunk and its failures fit in a row.
CHUNK_BYTES = 512 * 1024


class Sender:
    """Sends the chunks of a batch, each at least once, cut the same way when sent again.

    `initiator(source)` must yield the same items in the same order each time; an initiator with a parameter
    `skip` is asked to leave out the first so many itself, which spares reading them again.
    """

    def __init__(
        self,
        ledger: Ledger,
        initiator: Initiator,
        queue: Queue[Chunk],
        *,
        chunk_seconds: float = CHUNK_SECONDS,
    ) -> None:
        self._chunk_seconds = chunk_seconds
        self._ledger = ledger
        self._initiator = initiator
        self._queue = queue
        self._can_skip = _takes_skip(initiator)
        self._item_seconds = 0.0

    def first_items(self, most: int) -> int:
        """The size of a new batch's first chunks: by what items took this process's latest batch, or small."""
        if self._chunk_seconds and not self._item_seconds:
            return min(FIRST_ITEMS, most)
        if not self._chunk_seconds:
            return most
        return max(1, min(most, int(self._chunk_seconds / self._item_seconds)))

    async def send(
        self, batch: str, source: Any, head: Head, *, is_wanted: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Send what is left of the first round; False if another initiator took over, or it is not wanted any more."""
        sent, etag = await self._ledger.sent(batch)
        if sent.round or sent.is_finished:
            return True
        size = Size(sent.next_items or head.first_items or head.chunk_items, is_fixed=not head.first_items)
        pieces = self._pieces(source, sent.position, size)
        is_finished = False
        try:
            while not is_finished:
                window = [piece async for piece in _take(pieces, WINDOW_CHUNKS)]
                firsts = itertools.accumulate((len(piece) for piece in window), initial=sent.position)
                chunks = [
                    Chunk(batch, sent.chunks + offset, first, items)
                    for offset, (first, items) in enumerate(zip(firsts, window, strict=False))
                ]
                await asyncio.gather(*(self._queue.put(chunk) for chunk in chunks))
                size.items = await self._next_items(batch, size, head.chunk_items)
                items = sum(len(piece) for piece in window)
                is_finished = len(window) < WINDOW_CHUNKS
                sent = Sent(
                    position=sent.position + items,
                    chunks=sent.chunks + len(chunks),
                    items=sent.items + items,
                    is_finished=is_finished,
                    next_items=0 if size.is_fixed else size.items,
                    changed_at=self._queue.clock.time(),
                )
                if not await is_wanted():
                    return False
                etag = await self._ledger.save_sent(batch, sent, etag)
        except (PreconditionFailed, AlreadyExists):
            return False
        finally:
            await pieces.aclose()
        return True

    async def send_failed(self, batch: str, round: int, *, is_wanted: Callable[[], Awaitable[bool]]) -> bool:
        """Send the items that failed so far once more; False as of `send`."""
        sent, etag = await self._ledger.sent(batch)
        if sent.round > round or (sent.round == round and sent.is_finished):
            return True
        try:
            if sent.round < round:
                sent = msgspec.structs.replace(sent, round=round, position=0, is_finished=False)
                etag = await self._ledger.save_sent(batch, sent, etag)
            async for number, chunk in self._failed(batch, round, sent.position):
                await self._queue.put(chunk)
                sent = msgspec.structs.replace(
                    sent, position=number + 1, chunks=sent.chunks + 1, changed_at=self._queue.clock.time()
                )
                if not await is_wanted():
                    return False
                etag = await self._ledger.save_sent(batch, sent, etag)
            await self._ledger.save_sent(batch, msgspec.structs.replace(sent, is_finished=True), etag)
        except (PreconditionFailed, AlreadyExists):
            return False
        return True

    async def _next_items(self, batch: str, size: Size, most: int) -> int:
        """How many items the next chunks have: as many as take half a second, once that is known."""
        now = self._queue.clock.monotonic()
        if (
            size.is_fixed
            or not self._chunk_seconds
            or (size.items == most and now - size.looked_at < _LOOK_SECONDS)
        ):
            return size.items
        size.looked_at = now
        measured = (await self._ledger.counted(batch)).value.item_seconds or self._item_seconds
        self._item_seconds = measured
        return next_items(size.items, measured, most, self._chunk_seconds)

    async def _failed(self, batch: str, round: int, position: int) -> AsyncIterator[tuple[int, Chunk]]:
        """For each chunk number from `position`: what its latest round before this one left over."""
        latest: dict[int, Chunk] = {}
        async for result in self._ledger.results(batch, after=position - 1):
            for number in [number for number in latest if number < result.number]:
                yield number, latest.pop(number)
            if result.round < round:
                latest.pop(result.number, None)
                if result.failures:
                    latest[result.number] = Chunk(
                        batch,
                        result.number,
                        result.failures[0].index,
                        [failure.item for failure in result.failures],
                        round,
                        [failure.index for failure in result.failures],
                    )
        for number, chunk in latest.items():
            yield number, chunk

    async def _pieces(self, source: Any, skip: int, size: Size) -> AsyncGenerator[list[msgspec.Raw], None]:
        options = {"skip": skip} if self._can_skip else {}
        items = await asyncio.to_thread(self._initiator, source, **options)
        if isinstance(items, AsyncIterator):
            piece: list[msgspec.Raw] = []
            taken = 0
            to_skip = 0 if self._can_skip else skip
            async for item in items:
                if to_skip:
                    to_skip -= 1
                    continue
                piece.append(raw := encode_item(item))
                taken += len(raw)
                if len(piece) >= size.items or (taken >= CHUNK_BYTES and not size.is_fixed):
                    yield piece
                    piece, taken = [], 0
            if piece:
                yield piece
            return
        rest = iter(items) if self._can_skip else itertools.islice(items, skip, None)
        # Reading a file blocks; so does skipping. One thread hop a chunk.
        while piece := await asyncio.to_thread(_next_piece, rest, size):
            yield piece


def next_items(now: int, item_seconds: float, most: int, chunk_seconds: float) -> int:
    """The size of the next chunks: four times as many until the time of an item is known. Pure."""
    if not chunk_seconds:
        return most
    # A small chunk's time is mostly what any chunk costs: it says little of the items.
    if now * item_seconds < chunk_seconds / 2:
        return min(most, now * GROWTH)
    return max(1, min(most, int(chunk_seconds / item_seconds)))


@dataclass
class Size:
    """How many items the next chunks get, and when that was looked at; fixed for batches that an older version started."""

    items: int
    is_fixed: bool = False
    looked_at: float = -math.inf


def _next_piece(items: Iterator[Any], size: Size) -> list[msgspec.Raw]:
    if size.is_fixed:
        return [encode_item(item) for item in itertools.islice(items, size.items)]
    piece, taken = list[msgspec.Raw](), 0
    for item in itertools.islice(items, size.items):
        piece.append(raw := encode_item(item))
        taken += len(raw)
        if taken >= CHUNK_BYTES:
            break
    return piece


async def _take(pieces: AsyncIterator[list[msgspec.Raw]], count: int) -> AsyncIterator[list[msgspec.Raw]]:
    taken = 0
    while taken < count and (piece := await anext(pieces, None)) is not None:
        yield piece
        taken += 1


def _takes_skip(initiator: Initiator) -> bool:
    try:
        return "skip" in inspect.signature(initiator).parameters
    except ValueError:  # a builtin that does not tell
        return False
