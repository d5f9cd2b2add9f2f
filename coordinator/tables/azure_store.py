"""Sagas of the storage account: made, and listed for the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack, get_args

from coordinator.bounds import is_moment, one_line
from coordinator.config import check_name
from coordinator.tables.azure_tables import make_table
from coordinator.tables.bulk import BulkOrder, BulkWrite
from coordinator.tables.progress import Progress, State
from coordinator.tables.rows import Row
from coordinator.tables.saga import OPEN, ROW, Saga, SagaMessage, decode_progress

if TYPE_CHECKING:
    from coordinator.storage import Storage


class SagaOptions(TypedDict, total=False):
    """`queue`: by default ``{prefix}saga-{name}``; `timeout_seconds` for the whole saga (0: none); `version` of its steps."""

    queue: str
    timeout_seconds: float
    version: str


def make_saga(
    storage: Storage, name: str, *, input_type: Any = Any, **options: Unpack[SagaOptions]
) -> Saga[Any]:
    """The saga of that name; its queue is `queue`, by default ``{prefix}saga-{name}``, with a version ``…-{version}``."""
    queue, version = options.get("queue", ""), options.get("version", "")
    own = f"{storage.config.prefix}saga-{name}" + (f"-{version}" if version else "")
    return Saga(
        name,
        make_table(storage, storage.config.table("sagas")),
        storage.queue(queue or check_name("queue", own), type=SagaMessage),
        input_type=input_type,
        timeout_seconds=options.get("timeout_seconds", 0.0),
        version=version,
        identity=lambda: storage.identity,
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


# A table that nobody prunes must not cost more with each saga that ended.
MAX_PAGES = 5
Odd = Callable[[str], None]


async def saga_heads(
    storage: Storage, *, since: float = 0.0, limit: int = 1000, odd: Odd | None = None
) -> list[SagaHead]:
    """Sagas of all names changed after `since`, the newest first; at most `limit` by name and key.

    One request for up to 1,000 rows, at most five: see `open_sagas` for those that must not be missed. With `odd`, a row that
    cannot be read is told to it in a sentence, and the others are returned.
    """
    table = make_table(storage, storage.config.table("sagas"))
    scan = table.scan(
        prefix=ROW, where=[("changed_at", "gt", since)], select=("state", "epoch", "changed_at")
    )
    heads: list[SagaHead] = []
    pages = 0
    async for page in scan.pages():
        heads += _heads(page, ROW, odd)
        pages += 1
        if pages == MAX_PAGES or len(heads) >= limit:
            break
    return sorted(heads[:limit], key=lambda head: head.changed_at, reverse=True)


async def saga_names(storage: Storage, *, limit: int = 100) -> list[str]:
    """The names of which there are sagas; one request for each, and one."""
    table = make_table(storage, storage.config.table("sagas"))
    names: list[str] = []
    while len(names) < limit:
        where = [("PartitionKey", "gt", names[-1])] if names else []
        rows = await table.top(1, where=where, select=())
        if not rows:
            break
        names.append(rows[0].key.partition)
    return names


async def open_sagas(
    storage: Storage, names: Iterable[str], *, limit: int = 1000, odd: Odd | None = None
) -> list[SagaHead]:
    """Sagas of these names that run, are being undone or are stuck, whatever their age; at most `limit` of each, by key.

    One request for each name, however many sagas have ended. `epoch` and `changed_at` are of the latest change of state.
    `odd` as for `saga_heads`.
    """
    table = make_table(storage, storage.config.table("sagas"))
    found = await asyncio.gather(*(table.top(limit, partition=name, prefix=OPEN) for name in names))
    heads = [head for rows in found for head in _heads(rows, OPEN, odd)]
    return sorted(heads, key=lambda head: head.changed_at, reverse=True)


def _heads(rows: Iterable[Row], prefix: str, odd: Odd | None) -> list[SagaHead]:
    heads = []
    for row in rows:
        try:
            heads.append(_head(row, prefix))
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            if odd is None:
                raise
            odd(
                f"saga {one_line(row.key.row)} of {one_line(row.key.partition)}: unreadable: {one_line(str(error))}"
            )
    return heads


def _head(row: Row, prefix: str) -> SagaHead:
    key = row.key.row.removeprefix(prefix)
    head = SagaHead(row.key.partition, key, row["state"], int(row["epoch"]), float(row["changed_at"]))
    if head.state not in get_args(State):
        raise ValueError("its state is none of those that there are")
    if not is_moment(head.changed_at):
        raise ValueError("its moment is out of bounds")
    return head


async def read_saga(storage: Storage, name: str, key: str) -> Progress:
    """All that is known of one saga, from any process. Raises `NotFound`."""
    return await make_saga(storage, name).read(key)


async def retry_saga(storage: Storage, name: str, key: str, *, by: str) -> State:
    """`Saga.retry` from any process, without the saga's code."""
    queue = (await read_saga(storage, name, key)).queue
    return await make_saga(storage, name, queue=queue).retry(key, by=by)


async def list_sagas(storage: Storage, name: str | None = None, *, limit: int = 200) -> list[Progress]:
    """Sagas of that name (None: of all names), by name and key; one request for up to 1,000 rows looked at."""
    table = make_table(storage, storage.config.table("sagas"))
    rows = await table.top(limit, partition=name, prefix=ROW)
    return [decode_progress(row) for row in rows]
