"""`optimistic_update`: read, change, write if nobody else did; again if somebody did (S17)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coordinator.backoff import TRANSIENT, Backoff
from coordinator.errors import AlreadyExists, NotFound, PreconditionFailed, StorageError
from coordinator.tables.operations import ANY, Delete, Insert, Operation, Put, Replace, check_operation
from coordinator.tables.rows import Row, Values, check_key
from coordinator.tables.table import Table

BACKOFF = Backoff(base_seconds=0.4, cap_seconds=2.0, deadline_seconds=30.0)
KEPT_NONCES = 8
QUICK_SECONDS = 0.05
MAX_STRETCH = 8.0

Changer = Callable[[dict[str, Any]], Values | None]


@dataclass(frozen=True)
class Update:
    """What an update did. `old` is None if the row was made, `new` if it was deleted; equal if nothing changed."""

    old: Row | None
    new: Row | None
    tries: int
    conflicts: int

    @property
    def is_changed(self) -> bool:
        old = None if self.old is None else self.old.values
        return old != (None if self.new is None else self.new.values)


async def optimistic_update(
    table: Table,
    key: tuple[str, str],
    change: Changer,
    *,
    create: Values | None = None,
    unchecked: bool = False,
    backoff: Backoff = BACKOFF,
) -> Update:
    """Change one row as if nobody else were there.

    Guarantees that `change` takes effect exactly once, on the row as it was at that moment, or that an error is
    raised. A write whose answer was lost is recognised by a nonce in the row. Does not guarantee an order between
    concurrent updates, nor, after an error with `maybe_done`, that nothing was written; and an answer lost while eight
    others wrote after it cannot be recognised any more.

    `change` gets a copy of the values and returns the new ones (it may return that copy, changed), or None to delete the
    row. It may be called several times: it must be pure. Values equal to the old ones are not written.
    `create` are the values to start from if there is no row; without it that is `NotFound`.
    `unchecked` writes whatever the row has become meanwhile (`If-Match: *`): updates of others may be lost.
    `backoff` is full jitter; its `deadline_seconds` bounds the whole. The first delay is long on purpose: losing once
    means that others are there, and with 32 writers short delays only lose again. Delays grow with the time a try takes.

    Raises `PreconditionFailed` if others won until the deadline, `NotFound`, or what storage answered last.
    """
    place = check_key(key)
    clock = table.store.clock
    started = clock.monotonic()
    nonce = secrets.token_hex(4)
    tries = conflicts = 0
    attempted: Row | None = None
    deleting = unsure = False
    while True:
        tries += 1
        asked = clock.monotonic()
        try:
            row = await _read(table, place)
            if unsure and ((row is None and deleting) or (row is not None and nonce in row.nonces)):
                return Update(attempted, row, tries, conflicts)
        except TRANSIENT as error:
            last: StorageError = error
        else:
            if row is None and create is None:
                raise NotFound(
                    f"update {place} of table {table.name}: there is no such row", resource=table.name
                )
            start = dict(row.values if row is not None else create or {})
            changed = change(dict(start))
            if changed is None and row is None:
                return Update(None, None, tries, conflicts)
            if row is not None and changed is not None and dict(changed) == row.values:
                return Update(row, row, tries, conflicts)
            kept = (nonce, *(row.nonces if row else ()))[:KEPT_NONCES]
            operation = _operation(place, row, changed, kept, unchecked)
            check_operation(operation)
            attempted, deleting = row, changed is None
            try:
                etag = await table.store.write(operation)
                new = None if changed is None else Row(place, dict(changed), etag, kept)
                return Update(row, new, tries, conflicts)
            except (PreconditionFailed, AlreadyExists, NotFound) as error:
                conflicts += 1
                last = error
            except TRANSIENT as error:
                # From here on our own write may show up at any time: the nonce tells.
                unsure = unsure or error.maybe_done
                last = error
        # The slower a try, the longer others can come between its read and its write: wait in proportion.
        stretch = min(MAX_STRETCH, max(1.0, (clock.monotonic() - asked) / QUICK_SECONDS))
        pause = backoff.delay(tries - 1) * stretch
        elapsed = clock.monotonic() - started
        if elapsed + pause >= backoff.deadline_seconds:
            if not isinstance(last, TRANSIENT):
                raise PreconditionFailed(
                    f"update {place} in table {table.name}: others won all {tries} tries in {elapsed:.1f} s",
                    resource=table.name,
                    status=last.status,
                    code=last.code,
                    maybe_done=unsure,
                ) from last
            raise last
        await clock.sleep(pause)


async def _read(table: Table, key: tuple[str, str]) -> Row | None:
    try:
        return await table.store.read(check_key(key))
    except NotFound:
        return None


def _operation(
    key: tuple[str, str], row: Row | None, values: Values | None, nonces: tuple[str, ...], unchecked: bool
) -> Operation:
    if values is None:
        return Delete(key, row.etag if row and not unchecked else ANY)
    if unchecked:
        return Put(key, values, nonces)
    if row is None:
        return Insert(key, values, nonces)
    return Replace(key, values, row.etag, nonces)
