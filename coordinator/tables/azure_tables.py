"""Tables of the storage account."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from azure.core import MatchConditions
from azure.data.tables import EdmType, EntityProperty, UpdateMode

from coordinator.clock import Clock
from coordinator.creating import in_table
from coordinator.errors import ConfigurationError, NotFound
from coordinator.service_errors import translated
from coordinator.tables.operations import ANY, Delete, Insert, Merge, Operation, Put, Replace
from coordinator.tables.rows import NONCES, Key, Row, check_column, check_table
from coordinator.tables.store import Page, Query
from coordinator.tables.table import Table

if TYPE_CHECKING:
    from coordinator.storage import Storage


class AzureTableStore:
    """One table. It is made when a write finds it missing; reading a table that is not there finds nothing."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.name = check_table(name)
        self._storage = storage

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
        return await in_table(self._storage, self.name, functools.partial(self._write, operation))

    async def transact(self, operations: Sequence[Operation]) -> list[str]:
        async def send() -> list[str]:
            with translated("carry out a transaction in the table", self.name):
                answers = await self._client.submit_transaction([_batched(each) for each in operations])
            return [str(answer.get("etag") or "") for answer in answers]

        return await in_table(self._storage, self.name, send)

    async def page(self, query: Query, resume: Key | None) -> Page:
        text = odata_filter(query)
        select = None if query.select is None else ["PartitionKey", "RowKey", NONCES, *query.select]
        options: dict[str, Any] = {"select": select, "results_per_page": query.page_size}
        token = {"PartitionKey": resume.partition, "RowKey": resume.row} if resume else None
        try:
            with translated("scan the table", self.name):
                if text:
                    found = self._client.query_entities(text, **options)
                else:
                    found = self._client.list_entities(**options)
                pages = found.by_page(continuation_token=token)
                rows = [_row(entity) async for entity in await anext(pages)]
        except NotFound:
            return Page([], None)
        place = pages.continuation_token
        following = Key(place["PartitionKey"] or "", place["RowKey"] or "") if place else None
        return Page(rows, following)

    async def _write(self, operation: Operation) -> str:
        client, answer = self._client, None
        with translated("write a row of the table", self.name):
            match operation:
                case Insert():
                    answer = await client.create_entity(_entity(operation))
                case Put():
                    answer = await client.upsert_entity(_entity(operation), mode=UpdateMode.REPLACE)
                case Replace() | Merge():
                    mode = UpdateMode.MERGE if isinstance(operation, Merge) else UpdateMode.REPLACE
                    answer = await client.update_entity(
                        _entity(operation), mode=mode, **_condition(operation.etag)
                    )
                case Delete():
                    await client.delete_entity(*operation.key, **_condition(operation.etag))
        return str((answer or {}).get("etag") or "")


def make_table(storage: Storage, name: str) -> Table:
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
        case Put():
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


def _entity(operation: Insert | Put | Replace | Merge) -> dict[str, Any]:
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
        tuple((entity.get(NONCES) or "").split()),
    )


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


def _literal(value: Any) -> str:
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
    raise ConfigurationError(f"{type(value).__name__} cannot be compared in a table")
