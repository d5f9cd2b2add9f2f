"""Doing something outside at most once for each message: a marker row in a table (S20)."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from coordinator.backoff import Backoff, retry
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import AlreadyExists, NotFound, PreconditionFailed, StorageError
from coordinator.queues.outcomes import Retry
from coordinator.queues.running import current_message
from coordinator.tables.operations import ANY, Delete, Insert, Merge, Replace
from coordinator.tables.rows import Key, Value
from coordinator.tables.table import Table

T = TypeVar("T")
KeyOf = Callable[[Any], str]


def once(
    table: Table,
    *,
    key: KeyOf | None = None,
    claim_seconds: float = 300.0,
    clock: Clock = SYSTEM_CLOCK,
) -> Callable[[Callable[[T], Awaitable[None]]], Callable[[T], Awaitable[None]]]:
    """Decorate an ``async def`` handler whose effect is outside (a mail, a payment).

    Guarantees: after it returned for a key, it is never run for that key again, however often the message comes; two
    deliveries never run at the same time unless one takes longer than `claim_seconds`. If it raises, the marker is
    removed and a further try runs. Does not guarantee that an effect happened only once if the process died inside the
    handler: whether to repeat it then nobody can know, and it is repeated after `claim_seconds`.

    `key` makes the key of an item (default: the message's own id, equal for all deliveries of it); use one of the
    business, such as the order's number, to recognise items that were put twice. `table` is made on first use; rows stay
    until you delete them.
    """

    def decorate(handler: Callable[[T], Awaitable[None]]) -> Callable[[T], Awaitable[None]]:
        @functools.wraps(handler)
        async def run(item: T) -> None:
            name = key(item) if key is not None else current_message().id.replace("/", ":")
            row = Key(name, "once")
            if await _is_done(table, row, claim_seconds, clock):
                return
            try:
                await handler(item)
            except BaseException:
                await _forget(table, row)
                raise
            done = Merge(row, {"state": "done", "done_at": clock.time()}, etag=ANY)
            await retry(lambda: table.write(done), backoff=Backoff(), clock=clock)

        return run

    return decorate


async def _is_done(table: Table, row: Key, claim_seconds: float, clock: Clock) -> bool:
    """Claim the key; True if it was done before. `Retry` while another delivery works on it."""
    owner = uuid.uuid4().hex
    values: dict[str, Value] = {"state": "begun", "until": clock.time() + claim_seconds, "owner": owner}
    try:
        await retry(lambda: table.write(Insert(row, values)), backoff=Backoff(), clock=clock)
        return False
    except AlreadyExists:
        pass
    try:
        known = await table.read(row)
    except NotFound:
        raise Retry("another delivery of it has just given up", after=1) from None
    if known["state"] == "done":
        return True
    if known.get("owner") == owner:  # our insert was carried out, only its answer was lost
        return False
    left = known["until"] - clock.time()
    if left > 0:
        raise Retry("another delivery of it is at work", after=max(1.0, left))
    # Whoever began it is dead or hopelessly late. Two who find that out at once: one write wins.
    try:
        await table.write(Replace(row, values, etag=known.etag))
    except (PreconditionFailed, NotFound):
        raise Retry("another delivery of it was faster", after=1) from None
    return False


async def _forget(table: Table, row: Key) -> None:
    try:
        await table.write(Delete(row, etag=ANY))
    except StorageError:
        return  # it is tried again when the claim ends
