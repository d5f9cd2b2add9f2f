"""`optimistic_update`: read, change, write if nobody else did; again if somebody did."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from coordinator.backoff import TRANSIENT, Backoff, Tries
from coordinator.errors import (
    AlreadyExists,
    NotFound,
    PreconditionFailed,
    StorageBusy,
    StorageError,
    StorageUnreachable,
)
from coordinator.tables.operations import ANY, Delete, Insert, Operation, Replace, Upsert, check_operation
from coordinator.tables.rows import Key, Row, Values, check_key
from coordinator.tables.table import Table

BACKOFF = Backoff(base_seconds=0.4, cap_seconds=2.0, deadline_seconds=30.0)
# More make doubt rarer, and each read and write of the row 9 bytes longer.
KEPT_NONCES = 32
QUICK_SECONDS = 0.05
MAX_STRETCH = 8.0

Changer = Callable[[dict[str, Any]], Values | None]


@dataclass(frozen=True)
class Update:
    """What an update did.

    Attributes:
        old: The row before; None if it was created.
        new: The row after; None if it was deleted.
        tries: How often the row was read.
        conflicts: How often others were first.
    """

    old: Row | None
    new: Row | None
    tries: int
    conflicts: int

    @property
    def is_changed(self) -> bool:
        """Whether anything was written."""
        if self.old is None or self.new is None:
            return self.old is not self.new
        return not _is_same(self.old.values, self.new.values)


@dataclass(frozen=True)
class InDoubt:
    """A write whose answer was lost: the row that it was to change (None: it was to create one).

    `was_refused` if the service answered, but with an error that leaves open what it did (503).
    """

    base: Row | None
    deleting: bool
    was_refused: bool = False


Verdict = Literal["done", "open", "refused", "unknown"]


def verdict(in_doubt: InDoubt, nonce: str, now: Row | None) -> Verdict:
    """What became of a write whose answer was lost, by the row as it is now. Pure.

    "open": the row is as it was before, so the write may still arrive; sent once more with the same ETag, it is carried out
    once. "refused": others wrote first, so it never was and never will be carried out. "unknown": others have written so
    much since, or the row was deleted or created again, that nothing proves either.
    """
    if now is None and in_doubt.deleting:
        return "done"
    if now is None:
        # A row that was created and deleted again leaves nothing; but what the service says it refused was not created.
        return "open" if in_doubt.base is None and in_doubt.was_refused else "unknown"
    if not in_doubt.deleting and nonce in now.nonces:
        return "done"
    base = in_doubt.base
    if base is None:
        return "unknown"
    if now.etag == base.etag:
        return "open"
    # The newest nonce that was read is still there. Ours would have come after it, and would be there, too.
    return "refused" if base.nonces and base.nonces[0] in now.nonces else "unknown"


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
    raised. A write whose answer was lost is looked for at once, by a nonce that it leaves in the row. The row keeps
    the latest 32; if so many others wrote in between that the outcome cannot be seen any more, that is an error with
    `maybe_done`, never a guess.

    Does not guarantee an order between concurrent updates, nor, after an error with `maybe_done`, that nothing was
    written. A deletion whose answer was lost is done if the row is gone, no matter who deleted it; a row that was
    created since is not touched.

    Args:
        table: The table.
        key: Partition and row.
        change: Gets a copy of the values and returns the new ones (it may change and return the copy), or None to
            delete the row. It may be called several times: it must be pure. Values equal to the old ones are not
            written.
        create: Values to start from if there is no row (default: `NotFound`).
        unchecked: Write whatever the row has become meanwhile (`If-Match: *`): updates of others may be lost (default
            False).
        backoff: Delays, and `deadline_seconds` for the whole (default 30). The first delay, up to 0.4 s, is long on
            purpose: losing once means that others are there, and with 32 writers short delays only lose again. Delays
            grow with the time of a try.

    Returns:
        The row before and after.

    Raises:
        PreconditionFailed: Others won until the deadline.
        NotFound: There is no row, and no `create`.
        StorageUnreachable: With `maybe_done`, the outcome cannot be known.
        StorageError: Storage refused.

    Examples:
        >>> await optimistic_update(stock, ("nl", "4711"), lambda row: row | {"count": row["count"] - 1})
    """
    place = check_key(key)
    clock = table.store.clock
    patience = Tries(backoff, clock.monotonic)
    nonce = secrets.token_hex(4)
    tries = conflicts = 0
    in_doubt: InDoubt | None = None
    lost = 0
    wait_for: StorageError | None = None
    while True:
        tries += 1
        asked = clock.monotonic()
        try:
            row = await _read(table, place)
        except TRANSIENT as error:
            last: StorageError = error
        except StorageError as error:
            error.maybe_done = error.maybe_done or in_doubt is not None
            raise
        else:
            if in_doubt is not None:
                found = verdict(in_doubt, nonce, row)
                if found == "done":
                    return Update(in_doubt.base, row, tries, conflicts)
                if found == "unknown":
                    raise _in_doubt(table, place)
                if found == "refused":
                    in_doubt = None
                    conflicts += 1
                elif wait_for is not None:
                    if (pause := patience.pause(wait_for, attempt=lost)) is None:
                        raise wait_for
                    await clock.sleep(pause)
                    lost, wait_for = 1, None
                    continue
            if row is None and create is None:
                raise NotFound(f"update {place} of table {table.name}: row not found", resource=table.name)
            start = dict(row.values if row is not None else create or {})
            changed = change(dict(start))
            if changed is None and row is None:
                return Update(None, None, tries, conflicts)
            if row is not None and changed is not None and _is_same(changed, row.values):
                return Update(row, row, tries, conflicts)
            kept = (nonce, *(row.nonces if row else ()))[:KEPT_NONCES]
            operation = _operation(place, row, changed, kept, unchecked)
            check_operation(operation)
            try:
                etag = await table.store.write(operation)
                new = None if changed is None else Row(place, dict(changed), etag, kept)
                return Update(row, new, tries, conflicts)
            except (PreconditionFailed, AlreadyExists, NotFound) as error:
                last = error
                if in_doubt is not None:
                    continue  # refused by an earlier try of our own, perhaps
                conflicts += 1
            except TRANSIENT as error:
                last = error
                if error.maybe_done:
                    was_refused = isinstance(error, StorageBusy)
                    in_doubt, lost = InDoubt(row, changed is None, was_refused), lost + 1
                    wait_for = error if lost > 1 or error.retry_after_seconds else None
                    continue  # look at once: each moment lets others write over what proves ours
        # The slower a try, the longer others can come between its read and its write: wait in proportion.
        stretch = min(MAX_STRETCH, max(1.0, (clock.monotonic() - asked) / QUICK_SECONDS))
        if (pause := patience.pause(last, attempt=tries - 1, stretch=stretch)) is None:
            if not isinstance(last, TRANSIENT):
                raise PreconditionFailed(
                    f"update {place} in table {table.name}: others won all {tries} tries in {patience.elapsed:.1f} s",
                    resource=table.name,
                    status=last.status,
                    code=last.code,
                    maybe_done=in_doubt is not None,
                ) from last
            last.maybe_done = last.maybe_done or in_doubt is not None
            raise last
        await clock.sleep(pause)


def _in_doubt(table: Table, key: Key) -> StorageUnreachable:
    return StorageUnreachable(
        f"update {key} of table {table.name}: the answer to the write was lost, and others have written the row since, so that "
        "it cannot be seen whether the write was carried out. Read the row and decide; repeating the update may apply it twice",
        resource=table.name,
        maybe_done=True,
    )


async def _read(table: Table, key: tuple[str, str]) -> Row | None:
    try:
        return await table.store.read(check_key(key))
    except NotFound:
        return None


def _is_same(values: Values, others: Values) -> bool:
    """Whether writing one over the other would change nothing: True is no 1, and 1 no 1.0, for whoever reads the row."""
    if values.keys() != others.keys():
        return False
    # The service's own classes of moments and UUIDs equal the plain ones.
    return all(
        value == others[name]
        and (not isinstance(value, bool | int | float) or repr(value) == repr(others[name]))
        for name, value in values.items()
    )


def _operation(
    key: tuple[str, str], row: Row | None, values: Values | None, nonces: tuple[str, ...], unchecked: bool
) -> Operation:
    if values is None:
        # Also if unchecked: a deletion sent again must not take a row that was created since.
        return Delete(key, row.etag if row else ANY)
    if unchecked:
        return Upsert(key, values, nonces)
    if row is None:
        return Insert(key, values, nonces)
    return Replace(key, values, row.etag, nonces)
