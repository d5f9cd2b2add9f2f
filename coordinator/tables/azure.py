"""Tables and sagas in an Azure storage account."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypedDict, Unpack, assert_never, get_args
from urllib.parse import quote
from uuid import UUID

from azure.core import MatchConditions
from azure.data.tables import EdmType, EntityProperty, UpdateMode

from coordinator.azure.account import Account, ensure_table
from coordinator.azure.errors import translated
from coordinator.azure.metering import Request
from coordinator.azure.rest import SignedRest
from coordinator.bounds import MAX_COUNT, is_moment, one_line
from coordinator.clock import Clock
from coordinator.config import check_name
from coordinator.errors import NotFound, StorageUnreachable
from coordinator.queues.azure import make_queue
from coordinator.tables.bulk import BulkOrder, BulkWrite
from coordinator.tables.operations import ANY, Delete, Insert, Merge, Operation, Replace, Upsert
from coordinator.tables.progress import Progress, State
from coordinator.tables.rows import NONCES, Key, Row, Value, check_column, check_table
from coordinator.tables.saga import OPEN, ROW, Saga, SagaMessage, decode_progress
from coordinator.tables.store import STEP_ROWS, Query, RowPage
from coordinator.tables.table import Table

_SCAN = "scan the table"
_PAGE_HEADERS = {
    "x-ms-version": "2019-02-02",
    "DataServiceVersion": "3.0",
    "Accept": "application/json;odata=minimalmetadata",
}
_NO_COLUMNS = frozenset({"PartitionKey", "RowKey", "Timestamp", NONCES})
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_VALUES: dict[str, Callable[[Any], Any]] = {
    "Edm.Int64": int,
    "Edm.Double": float,
    "Edm.DateTime": datetime.fromisoformat,
    "Edm.Guid": UUID,
    "Edm.Binary": base64.b64decode,
}


class AzureTableStore:
    """One table. It is made when a write finds it missing; reading a table that is not there finds nothing."""

    def __init__(self, storage: Account, name: str) -> None:
        self.name = check_table(name)
        self._storage = storage
        self._rest = SignedRest(storage, storage.endpoints.table, service="table")

    @property
    def clock(self) -> Clock:
        return self._storage.clock

    @property
    def _client(self) -> Any:
        return self._storage.aio.tables.get_table_client(self.name)

    async def read(self, key: Key, select: tuple[str, ...] | None = None) -> Row:
        columns = None if select is None else ["PartitionKey", "RowKey", NONCES, *select]
        with translated("read a row of the table", self.name):
            return _row(await self._client.get_entity(*key, select=columns))

    async def write(self, operation: Operation) -> str:
        return await ensure_table(self._storage, self.name, functools.partial(self._write, operation))

    async def transact(self, operations: Sequence[Operation]) -> list[str]:
        async def send() -> list[str]:
            with translated("carry out a transaction in the table", self.name):
                answers = await self._client.submit_transaction([_batched(each) for each in operations])
            return [str(answer.get("etag") or "") for answer in answers]

        return await ensure_table(self._storage, self.name, send)

    async def page(self, query: Query, resume: Key | None) -> RowPage:
        asked = {"$top": str(query.page_size)}
        if text := odata_filter(query):
            asked["$filter"] = text
        if query.select is not None:
            asked["$select"] = ",".join(["PartitionKey", "RowKey", NONCES, *query.select])
        if resume is not None:
            asked |= {"NextPartitionKey": resume.partition, "NextRowKey": resume.row}
        counted, path = Request("table", "QueryEntities", self.name), f"/{self.name}()"
        try:
            answer = await self._rest.send(
                _SCAN, self.name, counted, "GET", path, query=asked, headers=_PAGE_HEADERS
            )
        except NotFound:
            return RowPage([], None)
        rows: list[Row] = []
        try:
            # Halves of characters, as bytes or as escapes, are nothing that a page could show or a question could name.
            entities = json.loads(answer.content.decode(errors="replace"))["value"]
            decode = _decoded_whole if _HALF.search(answer.content) else _decoded
            for entity in entities:
                rows.append(decode(entity))
                if len(rows) % STEP_ROWS == 0:
                    await asyncio.sleep(0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageUnreachable(
                f"{_SCAN} {self.name}: the answer could not be read ({type(error).__name__}: {error})",
                resource=self.name,
            ) from error
        following = [
            answer.headers.get(f"x-ms-continuation-{word}", "") for word in ("NextPartitionKey", "NextRowKey")
        ]
        return RowPage(rows, Key(*following) if any(following) else None)

    async def _write(self, operation: Operation) -> str:
        client, answer = self._client, None
        with translated("write a row of the table", self.name):
            match operation:
                case Insert():
                    answer = await client.create_entity(_entity(operation))
                case Upsert():
                    answer = await client.upsert_entity(_entity(operation), mode=UpdateMode.REPLACE)
                case Replace() | Merge():
                    mode = UpdateMode.MERGE if isinstance(operation, Merge) else UpdateMode.REPLACE
                    answer = await client.update_entity(
                        _entity(operation), mode=mode, **_condition(operation.etag)
                    )
                case Delete():
                    await client.delete_entity(*operation.key, **_condition(operation.etag))
        return str((answer or {}).get("etag") or "")


def make_table(storage: Account, name: str) -> Table:
    """The table of that name."""
    return Table(AzureTableStore(storage, name))


def _condition(etag: str) -> dict[str, Any]:
    if etag == ANY:
        return {"match_condition": MatchConditions.Unconditionally}
    return {"etag": etag, "match_condition": MatchConditions.IfNotModified}


def _batched(operation: Operation) -> tuple[Any, ...]:
    match operation:
        case Insert():
            return "create", _entity(operation)
        case Upsert():
            return "upsert", _entity(operation), {"mode": UpdateMode.REPLACE}
        case Replace():
            return (
                "update",
                _entity(operation),
                {"mode": UpdateMode.REPLACE, **_condition(operation.etag)},
            )
        case Merge():
            return "update", _entity(operation), {"mode": UpdateMode.MERGE, **_condition(operation.etag)}
        case Delete():
            partition, row = operation.key
            return "delete", {"PartitionKey": partition, "RowKey": row}, _condition(operation.etag)


def _entity(operation: Insert | Upsert | Replace | Merge) -> dict[str, Any]:
    partition, row = operation.key
    entity: dict[str, Any] = {"PartitionKey": partition, "RowKey": row}
    for name, value in operation.values.items():
        wide = isinstance(value, int) and not isinstance(value, bool) and not -(2**31) <= value < 2**31
        entity[name] = EntityProperty(value, EdmType.INT64) if wide else value
    if operation.nonces:
        entity[NONCES] = " ".join(operation.nonces)
    return entity


def _row(entity: Any) -> Row:
    values = {
        name: value.value if isinstance(value, EntityProperty) else value
        for name, value in entity.items()
        if name not in ("PartitionKey", "RowKey", NONCES) and value is not None
    }
    return Row(
        Key(entity["PartitionKey"], entity["RowKey"]),
        values,
        str(entity.metadata.get("etag") or ""),
        _nonces(entity),
    )


def _decoded(entity: Mapping[str, Any]) -> Row:
    """A row of a page. The SDK takes five times as long, for all rows of a page in one step."""
    values = {
        name: _value(kind, value) if (kind := entity.get(f"{name}@odata.type")) else value
        for name, value in entity.items()
        if value is not None and name not in _NO_COLUMNS and "odata." not in name
    }
    etag = entity.get("odata.etag") or ""
    if not etag and (stamp := entity.get("Timestamp")):
        etag = f"W/\"datetime'{quote(stamp)}'\""
    return Row(Key(entity["PartitionKey"], entity["RowKey"]), values, etag, _nonces(entity))


def _decoded_whole(entity: Mapping[str, Any]) -> Row:
    """The same of a page with escaped halves of characters: each half becomes U+FFFD."""
    return _decoded(
        {
            name: value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            if isinstance(value, str)
            else value
            for name, value in entity.items()
        }
    )


def _value(kind: str, value: Any) -> Any:
    """As the text that was sent, if it is no value of its kind: that costs its own row, where the reader wants another type."""
    decode = _VALUES.get(kind)
    try:
        return decode(value) if decode is not None else value
    except (ValueError, TypeError, AttributeError, OverflowError):
        return value


def _nonces(entity: Mapping[str, Any]) -> tuple[str, ...]:
    """Nothing, if another program wrote something else there."""
    text = entity.get(NONCES)
    return tuple(text.split()) if isinstance(text, str) else ()


def odata_filter(query: Query) -> str:
    """The question as OData. Not by the SDK's parameters: those send 1 and 0 as true and false, and 2**31 as 32 bits wide."""
    parts: list[str] = []
    if query.partition is not None:
        parts.append(f"PartitionKey eq {_literal(query.partition)}")
    if query.row_from:
        parts.append(f"RowKey ge {_literal(query.row_from)}")
    if query.row_before:
        parts.append(f"RowKey lt {_literal(query.row_before)}")
    for condition in query.where:
        parts.append(f"{check_column(condition.column)} {condition.comparison} {_literal(condition.value)}")
    return " and ".join(parts)


def _literal(value: Value) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value) if -(2**31) <= value < 2**31 else f"{value}L"
        case float():
            return repr(value)
        case bytes():
            return f"X'{value.hex()}'"
        case datetime():
            return f"datetime'{value.astimezone(UTC).strftime('%Y-%m-%dT%H:%M:%S.%fZ')}'"
        case UUID():
            return f"guid'{value}'"
        case str():
            return "'" + value.replace("'", "''") + "'"
    assert_never(value)  # what else cannot be compared was refused with the question


class SagaOptions(TypedDict, total=False):
    """`queue`: by default ``{prefix}saga-{name}``; `timeout_seconds` for the whole saga (0: none); `version` of its steps."""

    queue: str
    timeout_seconds: float
    version: str


def make_saga(
    storage: Account, name: str, *, input_type: Any = Any, **options: Unpack[SagaOptions]
) -> Saga[Any]:
    """The saga of that name; its queue is `queue`, by default ``{prefix}saga-{name}``, with a version ``…-{version}``."""
    queue, version = options.get("queue", ""), options.get("version", "")
    own = f"{storage.config.prefix}saga-{name}" + (f"-{version}" if version else "")
    return Saga(
        name,
        make_table(storage, storage.config.table("sagas")),
        make_queue(storage, queue or check_name("queue", own), type=SagaMessage),
        input_type=input_type,
        timeout_seconds=options.get("timeout_seconds", 0.0),
        version=version,
        identity=lambda: storage.identity,
    )


def make_bulk(storage: Account) -> BulkWrite:
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
    storage: Account, *, since: float = 0.0, limit: int = 1000, odd: Odd | None = None
) -> list[SagaHead]:
    """Sagas of all names changed after `since`, the newest first; at most `limit` by name and key.

    One request for up to 1,000 rows, at most five: see `open_sagas` for those that must not be missed. With `odd`, a row that
    cannot be read is passed to it as a sentence, and the others are returned.
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


async def saga_names(storage: Account, *, limit: int = 100) -> list[str]:
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


_AT_ONCE = 4


async def open_sagas(
    storage: Account, names: Iterable[str], *, limit: int = 1000, odd: Odd | None = None
) -> list[SagaHead]:
    """Sagas of these names that run, are rolling back or are stuck, whatever their age; at most `limit` of each, by key.

    One request for each name, however many sagas have ended. `epoch` and `changed_at` are of the latest change of state.
    `odd` as for `saga_heads`.
    """
    table = make_table(storage, storage.config.table("sagas"))
    turns = asyncio.Semaphore(_AT_ONCE)

    async def of(name: str) -> list[Row]:
        async with turns:
            return await table.top(limit, partition=name, prefix=OPEN)

    found = await asyncio.gather(*(of(name) for name in names))
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
        raise ValueError("its state is unknown")
    if not is_moment(head.changed_at):
        raise ValueError("its moment is out of bounds")
    if not 0 <= head.epoch <= MAX_COUNT:
        raise ValueError("its epoch is out of bounds")
    return head


async def read_saga(storage: Account, name: str, key: str) -> Progress:
    """All that is known of one saga, from any process. Raises `NotFound`."""
    return await make_saga(storage, name).read(key)


async def retry_saga(storage: Account, name: str, key: str, *, by: str) -> State:
    """`Saga.retry` from any process, without the saga's code."""
    queue = (await read_saga(storage, name, key)).queue
    return await make_saga(storage, name, queue=queue).retry(key, by=by)


async def mark_saga_repaired(storage: Account, name: str, key: str, step: str, *, by: str) -> State:
    """`Saga.mark_repaired` from any process, without the saga's code."""
    queue = (await read_saga(storage, name, key)).queue
    return await make_saga(storage, name, queue=queue).mark_repaired(key, step, by=by)


async def list_sagas(storage: Account, name: str | None = None, *, limit: int = 200) -> list[Progress]:
    """Sagas of that name (None: of all names), by name and key; one request for up to 1,000 rows looked at."""
    table = make_table(storage, storage.config.table("sagas"))
    rows = await table.top(limit, partition=name, prefix=ROW)
    return [decode_progress(row) for row in rows]
