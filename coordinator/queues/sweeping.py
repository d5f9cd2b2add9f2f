"""Removing large payloads whose messages are gone."""

from __future__ import annotations

from typing import Any, NamedTuple

from coordinator.errors import MessageUndecodable, NotFound
from coordinator.queues import envelope as wire
from coordinator.queues.envelope import MessageTooNew
from coordinator.queues.poison import PoisonRecord
from coordinator.queues.queue import Queue
from coordinator.queues.transport import MAX_BATCH


class Swept(NamedTuple):
    """What a sweep did. `unknown` payloads never expire, and it could not be told whether a message needs them."""

    removed: int
    unknown: int


async def sweep(queue: Queue[Any], *, grace_seconds: float = 24 * 3600.0) -> Swept:
    """Remove the claims of a queue that no message needs and that were written at least `grace_seconds` ago.

    A claim that expires goes when its message must have. One that never expires goes only if every message of the queue
    and of its poison queue was seen, before the claims were listed and after, and none refers to it. All messages are
    seen when there are no more than a peek shows and none is in hand: the service tells no more of them than that. What
    cannot be judged stays, and is counted. Guarantees never to remove what a message of these two queues needs.
    """
    removed = await queue.claims.sweep(grace_seconds=grace_seconds)
    before = await _needed(queue)
    lasting = await queue.claims.lasting(grace_seconds=grace_seconds)
    if not lasting:
        return Swept(removed, 0)
    after = await _needed(queue)
    if before is None or after is None:
        return Swept(removed, len(lasting))
    orphans = [name for name in lasting if name not in before | after]
    for name in orphans:
        await queue.claims.remove(name)
    return Swept(removed + len(orphans), 0)


async def _needed(queue: Queue[Any]) -> set[str] | None:
    """The claims that messages refer to; None if not all messages can be seen."""
    # A message on its way to poison is put there before it is deleted here: so this queue is looked at first and last.
    names: set[str] = set()
    for source in (queue, queue.poison, queue):
        seen = await _claims_in(source)
        if seen is None:
            return None
        names |= seen
    return names


async def _claims_in(queue: Queue[Any]) -> set[str] | None:
    depth = await queue.depth()  # never lower than the number there really is
    if depth > MAX_BATCH:
        return None
    try:
        messages = await queue.transport.peek(MAX_BATCH)
    except NotFound:
        messages = []
    if len(messages) < depth:
        return None
    names: set[str] = set()
    for message in messages:
        try:
            envelope = wire.decode(message.text)
            names |= _named(envelope)
            if queue.schema.type is PoisonRecord:
                for _, record in await queue.items(envelope):
                    if not isinstance(record, PoisonRecord):
                        return None
                    names |= _named(wire.decode(record.text))
        except MessageTooNew:
            return None  # it may name a claim in a way that only newer programs know
        except MessageUndecodable:
            continue  # it names no claim that could be fetched
    return names


def _named(envelope: wire.Envelope) -> set[str]:
    return set() if envelope.claim is None else {envelope.claim.name}
