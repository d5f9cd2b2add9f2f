"""The initiator (S12): cuts a batch into chunks and sends them, in constant memory, resumed from where it stopped."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any

import msgspec

from coordinator.errors import AlreadyExists, PreconditionFailed
from coordinator.pipeline.ledger import Ledger
from coordinator.pipeline.parts import Chunk, Sent
from coordinator.queues.envelope import encode_item
from coordinator.queues.queue import Queue

Initiator = Callable[..., Iterable[Any] | AsyncIterator[Any]]

# So many chunks are sent between two notes of progress: a crash repeats no more than these.
WINDOW_CHUNKS = 8


class Sender:
    """Sends the chunks of a batch, each at least once, always cut the same way.

    `initiator(source)` must yield the same items in the same order each time; an initiator with a parameter
    `skip` is asked to leave out the first so many itself, which spares reading them again.
    """

    def __init__(self, ledger: Ledger, initiator: Initiator, queue: Queue[Chunk]) -> None:
        self._ledger = ledger
        self._initiator = initiator
        self._queue = queue
        self._can_skip = _takes_skip(initiator)

    async def send(
        self, batch: str, source: Any, *, chunk_items: int, is_wanted: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Send what is left of the first round; False if another initiator took over, or it is not wanted any more."""
        sent, etag = await self._ledger.sent(batch)
        if sent.round or sent.is_finished:
            return True
        pieces = self._pieces(source, sent.position, chunk_items)
        is_finished = False
        try:
            while not is_finished:
                window = [piece async for piece in _take(pieces, WINDOW_CHUNKS)]
                chunks = [
                    Chunk(batch, sent.chunks + offset, sent.position + offset * chunk_items, items)
                    for offset, items in enumerate(window)
                ]
                await asyncio.gather(*(self._queue.put(chunk) for chunk in chunks))
                items = sum(len(piece) for piece in window)
                is_finished = len(window) < WINDOW_CHUNKS
                sent = Sent(
                    position=sent.position + items,
                    chunks=sent.chunks + len(chunks),
                    items=sent.items + items,
                    is_finished=is_finished,
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
                sent = msgspec.structs.replace(sent, position=number + 1, chunks=sent.chunks + 1)
                if not await is_wanted():
                    return False
                etag = await self._ledger.save_sent(batch, sent, etag)
            await self._ledger.save_sent(batch, msgspec.structs.replace(sent, is_finished=True), etag)
        except (PreconditionFailed, AlreadyExists):
            return False
        return True

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

    async def _pieces(
        self, source: Any, skip: int, chunk_items: int
    ) -> AsyncGenerator[list[msgspec.Raw], None]:
        items = self._initiator(source, skip=skip) if self._can_skip else self._initiator(source)
        if isinstance(items, AsyncIterator):
            piece: list[msgspec.Raw] = []
            to_skip = 0 if self._can_skip else skip
            async for item in items:
                if to_skip:
                    to_skip -= 1
                    continue
                piece.append(encode_item(item))
                if len(piece) == chunk_items:
                    yield piece
                    piece = []
            if piece:
                yield piece
            return
        rest = iter(items) if self._can_skip else itertools.islice(items, skip, None)
        # Reading a file blocks; so does skipping. One thread hop a chunk.
        while piece := await asyncio.to_thread(_next_piece, rest, chunk_items):
            yield piece


def _next_piece(items: Iterator[Any], count: int) -> list[msgspec.Raw]:
    return [encode_item(item) for item in itertools.islice(items, count)]


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
