"""Removing large payloads whose messages are gone."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from coordinator.errors import KennelError, MessageUndecodable, NotFound
from coordinator.queues import envelope as wire
from coordinator.queues.envelope import MessageTooNew, PoisonRecord
from coordinator.queues.protocols import MAX_BATCH
from coordinator.queues.queue import Queue

log = logging.getLogger(__name__)

REMOVED_AT_ONCE = 500
QUEUES_AT_ONCE = 20


class OldClaim(NamedTuple):
    """A claim that expired, or (`lasts`) that never does and was written a while ago."""

    queue: str
    name: str
    lasts: bool


class Swept(NamedTuple):
    """What a sweep did. `unknown` payloads never expire, and it is unknown whether a message needs them."""

    removed: int
    unknown: int


async def sweep(queue: Queue[Any], *, grace_seconds: float = 24 * 3600.0) -> Swept:
    """Remove the claims of a queue that no message needs and that were written at least `grace_seconds` ago.

    A claim that expires goes when its message must have. One that never expires goes only if every message of the queue
    and of its poison queue was seen, twice after the claims were listed, and none refers to it. All messages are seen
    when there are no more than a peek shows and none is in flight: the service shows no more of them. Payloads that cannot
    be judged stay, and are counted. Guarantees never to remove what a message of these two queues needs.
    """
    removed = await queue.payloads.sweep(grace_seconds=grace_seconds)
    lasting = await queue.payloads.lasting(grace_seconds=grace_seconds)
    if not lasting:
        return Swept(removed, 0)
    orphans = await _orphans(queue, lasting)
    if orphans is None:
        return Swept(removed, len(lasting))
    for name in orphans:
        await queue.payloads.remove(name)
    return Swept(removed + len(orphans), 0)


async def sweep_round(
    old: Iterable[OldClaim],
    queue_of: Callable[[str], Queue[Any]],
    *,
    removals: int = REMOVED_AT_ONCE,
    queues: int = QUEUES_AT_ONCE,
) -> Swept:
    """Remove those of these claims, a day old or more, that no message needs; what `sweep` guarantees holds here too.

    At most so many claims of at most so many queues. A queue takes up to 12 requests and those for its poison records'
    own payloads, or one if it holds more than can be seen; a removal takes one. An error at a queue leaves its
    claims to another round.
    """
    found: dict[str, list[OldClaim]] = {}
    for claim in old:
        found.setdefault(claim.queue, []).append(claim)
    removed = unknown = 0
    # By lot: queues whose claims cannot be judged must not keep the others from their turn.
    for name in random.sample(sorted(found), min(queues, len(found))):
        room, claims = removals - removed, found[name]
        if room <= 0:
            break
        lasting = [claim.name for claim in claims if claim.lasts]
        gone = [claim.name for claim in claims if not claim.lasts]
        try:
            queue = queue_of(name)
            orphans = await _orphans(queue, lasting) if lasting else []
            for each in (gone + (orphans or []))[:room]:
                await queue.payloads.remove(each)
                removed += 1
        except KennelError as error:
            log.warning("The claims of %s were not swept: %s", name, error)
            orphans = None
        unknown += len(lasting) if orphans is None else 0
    return Swept(removed, unknown)


async def _orphans(queue: Queue[Any], lasting: list[str]) -> list[str] | None:
    """Those that no message refers to; None if not all messages can be seen.

    Two looks, both after the claims were listed: a message that goes back and forth between queue and poison is missed
    by one look only if it moves twice within it.
    """
    needed: set[str] = set()
    for _ in range(2):
        seen = await _needed(queue)
        if seen is None:
            return None
        needed |= seen
    return [name for name in lasting if name not in needed]


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
            if queue.schema.type is not PoisonRecord:
                continue
            for _, record in await queue.items(envelope):
                if not isinstance(record, PoisonRecord):
                    return None
                names |= _claims_of(record)
        except MessageTooNew:
            return None  # it may name a claim in a way that only newer programs know
        except MessageUndecodable:
            continue  # it names no claim that could be fetched
    return names


def _claims_of(record: PoisonRecord) -> set[str]:
    try:
        return _named(wire.decode(record.text))
    except MessageTooNew:
        raise
    except MessageUndecodable:
        return set()


def _named(envelope: wire.Envelope) -> set[str]:
    return set() if envelope.claim is None else {envelope.claim.name}
