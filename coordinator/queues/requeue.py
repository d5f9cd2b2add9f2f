"""Bringing messages back from poison, and moving them from queue to queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from coordinator.errors import ConfigurationError, MessageUndecodable, ReceiptStale
from coordinator.queues import envelope as wire
from coordinator.queues.envelope import Envelope
from coordinator.queues.poison import PoisonRecord
from coordinator.queues.queue import Queue
from coordinator.queues.transport import MAX_BATCH

_HOLD_SECONDS = 120.0


def revived(record: PoisonRecord) -> Envelope:
    """The message of a poison record as it goes back into its queue: whole, with its history.

    One that could not be read at all is carried as it is, to be tried by a newer or mended program.
    """
    try:
        envelope = wire.decode(record.text)
    except MessageUndecodable:
        envelope = Envelope(kennel=0, raw=record.text)
    return msgspec.structs.replace(
        envelope,
        kennel=wire.VERSION,
        unstarted=0,
        reported=0,
        begun=None,
        kills={},
        left=record.left if record.left is not None else envelope.left,
        history=record.failures,
        # Records of single items may share their claim: then it stays.
        claim_kept=record.left is not None and envelope.claim is not None,
    )


async def requeue_poison(
    queue: Queue[Any],
    *,
    limit: int | None = None,
    ids: set[str] | None = None,
    progress: Callable[[int], None] = lambda moved: None,
) -> int:
    """Put messages from the poison queue back, at most `limit`, or those whose poison message ids are given; how many.

    Each is put back before it is removed from poison: a crash between leaves both, never none. Where its history does
    not fit, the traces are left out, and if need be the history.
    """

    async def revive(text: str) -> bool:
        try:
            _, items = await queue.poison.open(text)
        except MessageUndecodable:  # not ours: somebody put it there by hand
            return False
        for _, record in items:
            if not isinstance(record, PoisonRecord):
                return False
            try:
                await queue.put_envelope(revived(record))
            except ConfigurationError:  # a foreign message that leaves no room for a history
                await queue.put_text(record.text)
        return True

    moved = await _drain(queue.poison, revive, limit=limit, ids=ids, progress=progress)
    if moved:
        await queue.announce()
    return moved


async def move(
    source: Queue[Any],
    target: Queue[Any],
    *,
    limit: int | None = None,
    progress: Callable[[int], None] = lambda moved: None,
) -> int:
    """Move messages as they are, at most `limit`; how many. Claims go along. Put before removed, as with poison."""

    async def copy(text: str) -> bool:
        envelope, items = None, None
        try:
            envelope = wire.decode(text)
            if envelope.claim is not None:
                items = await source.claims.items(envelope)
        except MessageUndecodable:
            envelope = None
        if envelope is not None and items is not None:
            await target.put_envelope(msgspec.structs.replace(envelope, claim=None, size=0, items=items))
        else:
            await target.put_text(text)
        return True

    return await _drain(source, copy, limit=limit, ids=None, progress=progress)


async def _drain(
    source: Queue[Any],
    act: Callable[[str], Any],
    *,
    limit: int | None,
    ids: set[str] | None,
    progress: Callable[[int], None],
) -> int:
    moved, seen, passed_over = 0, set[str](), []
    while limit is None or moved < limit:
        if ids is not None and ids <= seen:
            break
        count = MAX_BATCH if limit is None or ids is not None else min(MAX_BATCH, limit - moved)
        messages = await source.take(count, visibility_seconds=_HOLD_SECONDS)
        if not messages:
            break
        for message in messages:
            if (
                message.id in seen
                or (ids is not None and message.id not in ids)
                or not await act(message.text)
            ):
                passed_over.append(message)
                continue
            seen.add(message.id)
            try:
                await source.transport.delete(message.id, message.receipt)
                if (claim := _claim_of(message.text)) is not None:
                    await source.claims.discard(claim)
            except ReceiptStale:
                continue
            moved += 1
            progress(moved)
    for message in passed_over:
        try:
            await source.transport.update(message.id, message.receipt, visibility_seconds=0)
        except ReceiptStale:
            continue
    return moved


def _claim_of(text: str) -> Envelope | None:
    try:
        envelope = wire.decode(text)
    except MessageUndecodable:
        return None
    return envelope if envelope.claim is not None and not envelope.claim_kept else None
