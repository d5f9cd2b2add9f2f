"""Forgetting what ended long ago: batches, sagas, and what scaling agents changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from coordinator.azure.account import Account
from coordinator.backoff import retry
from coordinator.errors import ConfigurationError, NotFound, PreconditionFailed
from coordinator.pipelines.azure import ledger
from coordinator.scaling.history import CHANGE, DAY
from coordinator.tables.azure import make_table
from coordinator.tables.commit import BACKOFF
from coordinator.tables.operations import ANY, Delete, Operation, split
from coordinator.tables.rows import Row
from coordinator.tables.saga import ROW
from coordinator.tables.table import Table

LEAST_SECONDS = 3600.0
_ENDED_BATCHES = ("complete", "cancelled")
_ENDED_SAGAS = ("done", "compensated")


class Pruned(NamedTuple):
    """How many were forgotten (or would be)."""

    batches: int
    sagas: int
    changes: int


async def prune(storage: Account, *, older_than_seconds: float, dry_run: bool = False) -> Pruned:
    """Delete the rows of batches and sagas that ended, and of changes that were decided, before that many seconds ago.

    Guarantees that nothing is deleted that runs, is `partial` or `stuck`, and that a repetition after a crash finishes the
    rest; what comes late for a batch that is gone is dropped. Reports (blobs) stay. Does not guarantee that names stay
    taken: a forgotten batch or saga could be started again, so give it longer than anybody repeats a start.
    """
    if older_than_seconds < LEAST_SECONDS:
        raise ConfigurationError(
            f"older_than_seconds must be at least {LEAST_SECONDS:g}, got {older_than_seconds}"
        )
    before = storage.clock.time() - older_than_seconds
    return Pruned(
        await _batches(storage, before, dry_run),
        await _sagas(storage, before, dry_run),
        await _changes(storage, before, dry_run),
    )


async def _batches(storage: Account, before: float, dry_run: bool) -> int:
    heads = make_table(storage, storage.config.table("batches"))
    count = 0
    old = [("finished_at", "gt", 0.0), ("finished_at", "lt", before)]
    async for head in heads.scan(where=old, select=("state",)):
        if head["state"] not in _ENDED_BATCHES:
            continue
        count += 1
        if not dry_run:
            rows = ledger(storage, head.key.partition)
            partition = rows.partition(head.key.row)
            # The head goes last: as long as it is there, a repetition finds the rest.
            await _delete_all(rows.parts, rows.parts.scan(partition=partition, select=()).pages())
            await _delete_if_unchanged(heads, Delete(head.key, head.etag))
    return count


async def _sagas(storage: Account, before: float, dry_run: bool) -> int:
    table = make_table(storage, storage.config.table("sagas"))
    count = 0
    async for row in table.scan(prefix=ROW, where=[("changed_at", "lt", before)], select=("state",)):
        if row["state"] not in _ENDED_SAGAS:
            continue
        count += 1
        if not dry_run:
            await _delete_if_unchanged(table, Delete(row.key, row.etag))
    return count


async def _changes(storage: Account, before: float, dry_run: bool) -> int:
    table = make_table(storage, storage.config.table("scaling"))
    count = 0
    for prefix in (CHANGE, DAY):
        async for row in table.scan(prefix=prefix, where=[("at", "lt", before)], select=()):
            count += prefix == CHANGE
            if not dry_run:
                await _delete_if_unchanged(table, Delete(row.key, row.etag))
    return count


async def _delete_all(table: Table, pages: AsyncIterator[list[Row]]) -> None:
    async for page in pages:
        gone: list[Operation] = [Delete(row.key, ANY) for row in page]
        for part in split(gone):
            try:
                await retry(lambda part=part: table.transact(part), backoff=BACKOFF, clock=table.store.clock)  # type: ignore[misc]
            except NotFound:  # another clean-up was quicker with one of them
                for operation in part:
                    await table.write(operation)


async def _delete_if_unchanged(table: Table, delete: Delete) -> None:
    try:
        await retry(lambda: table.write(delete), backoff=BACKOFF, clock=table.store.clock)
    except PreconditionFailed:  # it was begun again meanwhile
        return
