"""`commit`: conditional writes whose lost answers are recognised, so that "refused" means that somebody else won."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from coordinator.backoff import TRANSIENT, Backoff, Tries
from coordinator.errors import (
    AlreadyExists,
    ConfigurationError,
    NotFound,
    PreconditionFailed,
    StorageError,
)
from coordinator.tables.operations import Delete, Operation, check_transaction
from coordinator.tables.rows import Key
from coordinator.tables.table import Table

BACKOFF = Backoff(base_seconds=0.05, cap_seconds=2.0, deadline_seconds=30.0)


async def commit(table: Table, *operations: Operation, backoff: Backoff = BACKOFF) -> list[str]:
    """Carry out one conditional write, or several of one partition as a transaction.

    Guarantees that it happened once if this returns, and that it did not happen if `PreconditionFailed`,
    `AlreadyExists` or `NotFound` is raised. Each row written carries a nonce; after a lost answer the rows show at
    once whether the write was carried out, and if not it is sent again.

    Does not guarantee that it recognises its own write once others have written or deleted all of its rows: include
    one that others write only on condition of what they read.

    Args:
        table: The table.
        *operations: 1 to 100 operations of one partition, at least one of which leaves a row.
        backoff: Delays, and `deadline_seconds` for the whole (default 30).

    Returns:
        The new ETags, in order.

    Raises:
        PreconditionFailed: Others were first.
        StorageError: Storage refused or stayed unreachable. With `maybe_done` the write may have been carried out.

    Examples:
        >>> await commit(stock, Replace(row.key, row.values | {"count": 3}, row.etag))
    """
    witnesses = [Key(*each.key) for each in operations if not isinstance(each, Delete)]
    if not witnesses:
        raise ConfigurationError("commit needs an operation that leaves a row")
    nonce = secrets.token_hex(8)
    marked = [each if isinstance(each, Delete) else replace(each, nonces=(nonce,)) for each in operations]
    check_transaction(marked)
    clock = table.store.clock
    tries, unsure = Tries(backoff, clock.monotonic), False
    while True:
        try:
            if len(marked) == 1:
                return [await table.store.write(marked[0])]
            return await table.store.transact(marked)
        except (PreconditionFailed, AlreadyExists, NotFound):
            if not unsure or not await _is_ours(table, witnesses, nonce):
                raise
            return await _etags(table, marked)
        except TRANSIENT as error:
            unsure = unsure or error.maybe_done
            last: StorageError = error
            last.maybe_done = unsure
        if unsure:
            with suppress(*TRANSIENT):
                if await _is_ours(table, witnesses, nonce):
                    return await _etags(table, marked)
        if (pause := tries.pause(last)) is None:
            raise last
        await clock.sleep(pause)


async def _is_ours(table: Table, witnesses: Sequence[Key], nonce: str) -> bool:
    """Whether one of the rows carries the nonce. The first nearly always does; the others may have outlived it."""
    for witness in witnesses:
        try:
            if nonce in (await table.read(witness, select=())).nonces:
                return True
        except NotFound:
            continue
        except StorageError as error:
            error.maybe_done = True
            raise
    return False


async def _etags(table: Table, operations: Sequence[Operation]) -> list[str]:
    """The ETags as they are now; "" where a row is gone."""
    etags = []
    for operation in operations:
        try:
            etags.append((await table.read(operation.key, select=())).etag)
        except NotFound:
            etags.append("")
    return etags
