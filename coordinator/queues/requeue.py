"""Putting poison messages back to where they failed, once the cause is mended."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from coordinator.errors import NotFound, ReceiptStale
from coordinator.queues import envelope as wire
from coordinator.queues.poison import PoisonRecord
from coordinator.queues.queue import Queue
from coordinator.queues.transport import MAX_BATCH

HOLD_SECONDS = 60.0
HISTORY = 8


async def requeue_poison(queue: Queue[Any], *, limit: int = 10_000) -> int:
    """Put up to `limit` messages of the poison queue back; returns how many.

    Guarantees that none is lost: each is put back before it is deleted from poison, so that a crash between may leave
    it in both. Items of a message that were done are not done again. What is no poison record stays where it is.
    Does not wait for messages that somebody else holds at this moment.
    """
    poison, moved = queue.poison, 0
    strange: set[str] = set()
    while moved < limit:
        try:
            batch = await poison.transport.get(min(MAX_BATCH, limit - moved), visibility_seconds=HOLD_SECONDS)
        except NotFound:
            return moved
        fresh = [message for message in batch if message.id not in strange]
        if not fresh:
            return moved
        for message in fresh:
            head, items = await poison.open(message.text)
            records = [record for _, record in items if isinstance(record, PoisonRecord)]
            if len(records) != len(items) or not records:
                strange.add(message.id)
                continue
            for record in records:
                await queue.put_text(text_of(record))
            with suppress(ReceiptStale, NotFound):  # held too long: it will be seen, and put back, once more
                await poison.transport.delete(message.id, message.receipt)
                if head.claim is not None:
                    await poison.claims.discard(head)
            moved += 1
    return moved


def text_of(record: PoisonRecord) -> str:
    """The message as it is put back: as it was, with what is still undone and why it failed before."""
    envelope = wire.decode(record.text)
    if envelope.raw is not None:
        return record.text
    history = record.failures[-HISTORY:]
    while True:
        text = wire.encode(msgspec.structs.replace(envelope, left=record.left, history=history))
        if wire.fits(text) or not history:
            return text
        history = history[1:]
