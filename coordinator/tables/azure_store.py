"""Sagas of the storage account: made, and listed for the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.tables.azure_tables import make_table
from coordinator.tables.progress import Progress
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


async def list_sagas(storage: Storage, name: str | None = None, *, limit: int = 200) -> list[Progress]:
    """Sagas of that name (None: of all names), by name and key; one request for up to 1,000 rows looked at."""
    table = make_table(storage, storage.config.table("sagas"))
    rows = await table.top(limit, partition=name, prefix=ROW)
    return [decode_progress(row) for row in rows]
