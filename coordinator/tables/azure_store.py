"""Sagas of the storage account: made, and listed for the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from coordinator.tables.azure_tables import make_table
from coordinator.tables.bulk import BulkOrder, BulkWrite
from coordinator.tables.progress import Progress, State
from coordinator.tables.saga import ROW, Saga, SagaMessage, decode_progress

if TYPE_CHECKING:
    from coordinator.storage import Storage


def make_saga(storage: Storage, name: str, *, queue: str = "", **options: Any) -> Saga[Any]:
    """The saga of that name; its queue is `queue`, by default ``{prefix}saga-{name}``."""
    return Saga(
        name,
        make_table(storage, storage.config.table("sagas")),
        storage.queue(queue or f"{storage.config.prefix}saga-{name}", type=SagaMessage),
        identity=lambda: storage.identity,
        **options,
    )


def make_bulk(storage: Storage) -> BulkWrite:
    """Bulk writes of this account; what is under way is kept in the table ``{prefix}bulk``."""
    saga: Saga[BulkOrder] = make_saga(storage, "bulk-write", input_type=BulkOrder)
    kept = make_table(storage, storage.config.table("bulk"))
    return BulkWrite(saga, kept, lambda name: make_table(storage, name))


class SagaHead(NamedTuple):
    """A saga in a list: how it stands, when that changed, and how many runners it has had."""

    saga: str
    key: str
    state: State
    epoch: int
    changed_at: float


async def saga_heads(storage: Storage, *, since: float = 0.0, limit: int = 1000) -> list[SagaHead]:
    """Sagas of all names changed after `since`, the newest first; one request for up to 1,000 rows looked at."""
    table = make_table(storage, storage.config.table("sagas"))
    rows = await table.top(
        limit, prefix=ROW, where=[("changed_at", "gt", since)], select=("state", "epoch", "changed_at")
    )
    heads = [
        SagaHead(
            row.key.partition,
            row.key.row.removeprefix(ROW),
            row["state"],
            int(row["epoch"]),
            float(row["changed_at"]),
        )
        for row in rows
    ]
    return sorted(heads, key=lambda head: head.changed_at, reverse=True)


async def read_saga(storage: Storage, name: str, key: str) -> Progress:
    """All that is known of one saga, from any process. Raises `NotFound`."""
    return await make_saga(storage, name).read(key)


async def retry_saga(storage: Storage, name: str, key: str, *, by: str) -> None:
    """`Saga.retry` from any process, without the saga's code."""
    queue = (await read_saga(storage, name, key)).queue
    await make_saga(storage, name, queue=queue).retry(key, by=by)


async def list_sagas(storage: Storage, name: str | None = None, *, limit: int = 200) -> list[Progress]:
    """Sagas of that name (None: of all names), by name and key; one request for up to 1,000 rows looked at."""
    table = make_table(storage, storage.config.table("sagas"))
    rows = await table.top(limit, partition=name, prefix=ROW)
    return [decode_progress(row) for row in rows]
