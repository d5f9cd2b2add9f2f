"""The initiator: cuts a batch into chunks and sends them, in constant memory, resumed from where it stopped."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from coordinator.errors import AlreadyExists, PreconditionFailed
from coordinator.pipelines.ledger import BatchLedger
from coordinator.pipelines.messages import Head, ItemChunk, Sent
from coordinator.queues.envelope import encode_item
from coordinator.queues.queue import Queue

Initiator = Callable[..., Iterable[Any] | AsyncIterator[Any]]

# So many chunks are sent between two notes of progress: a crash repeats no more than these.
WINDOW_CHUNKS = 8
# As long as nothing is known of the items' time: a batch that fits in one window is spread over so many chunks,
SPREAD_CHUNKS = 16
# and a larger one begins with some small chunks, which are measured while the others are sent.
PROBES = (4, 16, 64)
# What a chunk should take a processor. Longer spreads worse, shorter costs more messages.
CHUNK_SECONDS = 0.5
_LOOK_SECONDS = 1.0
_TELLING_SHARE = 0.2
# A chunk and its failures fit in a row.
CHUNK_BYTES = 512 * 1024


class Sender:
    """Sends the chunks of a batch, each at least once, cut the same way when sent again.

    `initiator(source)` must yield the same items in the same order each time; an initiator with a parameter
    `skip` is asked to leave out the first so many itself, which spares reading them again.
    """

    def __init__(
        self,
        ledger: BatchLedger,
        initiator: Initiator,
        queue: Queue[ItemChunk],
        *,
        chunk_seconds: float = CHUNK_SECONDS,
    ) -> None:
        self._chunk_seconds = chunk_seconds
        self._ledger = ledger
        self._initiator = initiator
        self._queue = queue
        self._can_skip = _takes_skip(initiator)
        self._item_seconds = 0.0

    def first_items(self, most: int) -> tuple[int, bool]:
        """The size of a new batch's first chunks, and whether nothing is known of its items' time.

        It is known by this process's latest batch.
        """
        if self._chunk_seconds and not self._item_seconds:
            return most, True
        return next_items(self._item_seconds, most, self._chunk_seconds), False

    async def send(
        self, batch: str, source: Any, head: Head, *, is_wanted: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Send what is left of the first round; False if another initiator took over, or it is not wanted any more."""
        sent, etag = await self._ledger.sent(batch)
        if sent.round or sent.is_finished:
            return True
        size = Size(sent.next_items or head.first_items or head.chunk_items, is_fixed=not head.first_items)
        items_left = await self._opened(source, sent.position)
        is_finished = False
        try:
            while not is_finished:
                if head.is_unmeasured and head.first_items and not sent.position:
                    window, is_finished = await _first_window(items_left, head.chunk_items)
                else:
                    window = await _window(items_left, size)
                    is_finished = len(window) < WINDOW_CHUNKS
                firsts = itertools.accumulate((len(piece) for piece in window), initial=sent.position)
                chunks = [
                    ItemChunk(batch, sent.chunks + offset, first, items, run=head.run)
                    for offset, (first, items) in enumerate(zip(firsts, window, strict=False))
                ]
                await asyncio.gather(*(self._queue.put(chunk) for chunk in chunks))
                size.items = await self._next_items(batch, size, head.chunk_items)
                items = sum(len(piece) for piece in window)
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
            await items_left.aclose()
        return True

    async def send_failed(
        self, batch: str, round: int, head: Head, *, is_wanted: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Send the items that failed so far once more; False as of `send`."""
        sent, etag = await self._ledger.sent(batch)
        if sent.round > round or (sent.round == round and sent.is_finished):
            return True
        try:
            if sent.round < round:
                sent = msgspec.structs.replace(sent, round=round, position=0, is_finished=False)
                etag = await self._ledger.save_sent(batch, sent, etag)
            async for number, chunk in self._failed(batch, round, sent.position, head.run):
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
        counted = (await self._ledger.counted(batch)).value
        items = counted.items + counted.failed
        # A few quick items say little of the others: the first call of all is the slowest.
        if items >= most or items * counted.item_seconds >= self._chunk_seconds * _TELLING_SHARE:
            self._item_seconds = counted.item_seconds
        return next_items(self._item_seconds, most, self._chunk_seconds)

    async def _failed(
        self, batch: str, round: int, position: int, run: str
    ) -> AsyncIterator[tuple[int, ItemChunk]]:
        """For each chunk number from `position`: what its latest round before this one left over."""
        latest: dict[int, ItemChunk] = {}
        async for result in self._ledger.results(batch, after=position - 1):
            for number in [number for number in latest if number < result.number]:
                yield number, latest.pop(number)
            if result.round < round:
                latest.pop(result.number, None)
                if result.failures:
                    latest[result.number] = ItemChunk(
                        batch,
                        result.number,
                        result.failures[0].index,
                        [failure.item for failure in result.failures],
                        round,
                        [failure.index for failure in result.failures],
                        run,
                    )
        for number, chunk in latest.items():
            yield number, chunk

    async def _opened(self, source: Any, skip: int) -> _Items:
        options = {"skip": skip} if self._can_skip else {}
        items = await asyncio.to_thread(self._initiator, source, **options)
        return _Items(items, 0 if self._can_skip else skip)


class _Items:
    """What the initiator yields after the first `skip` items, some at a time."""

    def __init__(self, items: Iterable[Any] | AsyncIterator[Any], skip: int) -> None:
        self._skip = skip
        self._later = items if isinstance(items, AsyncIterator) else None
        self._now: Iterator[Any] = (
            iter(()) if isinstance(items, AsyncIterator) else itertools.islice(items, skip, None)
        )

    async def take(self, count: int, most_bytes: float) -> tuple[list[msgspec.Raw], bool]:
        """The next `count` items, or fewer if they have that many bytes; and whether these were the last."""
        if self._later is None:
            # Reading a file blocks; so does skipping. One thread hop a chunk.
            return await asyncio.to_thread(self._take_now, count, most_bytes)
        taken, size = list[msgspec.Raw](), 0
        async for item in self._later:
            if self._skip:
                self._skip -= 1
                continue
            taken.append(raw := encode_item(item))
            size += len(raw)
            if len(taken) >= count or size >= most_bytes:
                return taken, False
        return taken, True

    def _take_now(self, count: int, most_bytes: float) -> tuple[list[msgspec.Raw], bool]:
        taken, size = list[msgspec.Raw](), 0
        for item in self._now:
            taken.append(raw := encode_item(item))
            size += len(raw)
            if len(taken) >= count or size >= most_bytes:
                return taken, False
        return taken, True

    async def aclose(self) -> None:
        if isinstance(self._later, AsyncGenerator):
            await self._later.aclose()


async def _window(items: _Items, size: Size) -> list[list[msgspec.Raw]]:
    """The next chunks, all of one size; fewer than a window if these are the last."""
    window = list[list[msgspec.Raw]]()
    while len(window) < WINDOW_CHUNKS:
        piece, is_last = await items.take(size.items, math.inf if size.is_fixed else CHUNK_BYTES)
        if piece:
            window.append(piece)
        if is_last:
            break
    return window


async def _first_window(items: _Items, most: int) -> tuple[list[list[msgspec.Raw]], bool]:
    """The first chunks of a batch of whose items nothing is known, and whether they are all."""
    found, is_last = await items.take(WINDOW_CHUNKS * most, WINDOW_CHUNKS * CHUNK_BYTES)
    return list(_cut(found, first_sizes(len(found), most, is_all=is_last))), is_last


def first_sizes(count: int, most: int, *, is_all: bool) -> list[int]:
    """The sizes of a batch's first chunks, at most `most`, for its first `count` items. Pure."""
    if is_all:
        each = min(most, math.ceil(count / SPREAD_CHUNKS))
        return [min(each, count - first) for first in range(0, count, each)] if count else []
    # Together the small ones hold as many as one full chunk.
    small = [size for size, upto in zip(PROBES, itertools.accumulate(PROBES), strict=True) if upto < most]
    sizes = [size for size in (*small, min(most, count) - sum(small)) if size > 0]
    left = count - sum(sizes)
    return sizes + [min(most, left - first) for first in range(0, left, most)]


def next_items(item_seconds: float, most: int, chunk_seconds: float) -> int:
    """The size of the next chunks: as many items as take `chunk_seconds`; `most` if their time is not known (0). Pure."""
    if not chunk_seconds or item_seconds * most <= chunk_seconds:
        return most
    return max(1, int(chunk_seconds / item_seconds))


def _cut(items: Sequence[msgspec.Raw], sizes: Iterable[int]) -> Iterator[list[msgspec.Raw]]:
    """The items in pieces of these sizes, or of fewer where a chunk's bytes are used up."""
    rest = iter(items)
    for size in sizes:
        piece, taken = list[msgspec.Raw](), 0
        for raw in itertools.islice(rest, size):
            piece.append(raw)
            taken += len(raw)
            if taken >= CHUNK_BYTES:
                yield piece
                piece, taken = [], 0
        if piece:
            yield piece


@dataclass
class Size:
    """How many items the next chunks get, and when that was looked at; fixed for batches that an older version started."""

    items: int
    is_fixed: bool = False
    looked_at: float = -math.inf


def _takes_skip(initiator: Initiator) -> bool:
    try:
        return "skip" in inspect.signature(initiator).parameters
    except ValueError:  # a builtin that does not tell
        return False
