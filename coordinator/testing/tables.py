"""A table in memory, for unit tests."""

from __future__ import annotations

import asyncio
import itertools
import operator
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import AlreadyExists, NotFound, PreconditionFailed, StorageError
from coordinator.tables.operations import ANY, Delete, Insert, Merge, Operation, Upsert
from coordinator.tables.rows import Key, Row, check_table, order, utf16
from coordinator.tables.store import Query, RowPage, Where

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")
}


class MemoryTableStore:
    """A table that ends with the process; proven equal to the real one by the contract suite.

    To rehearse trouble: `fail_next(error, done=…)` makes the next write raise, after carrying it out if `done`;
    `empty_pages` puts an empty page with a continuation before each full one, as the service may.
    """

    def __init__(
        self, name: str = "memory", *, clock: Clock = SYSTEM_CLOCK, empty_pages: bool = False
    ) -> None:
        self.name = check_table(name)
        self.clock = clock
        self.empty_pages = empty_pages
        self.requests = 0
        self.rows: dict[Key, Row] = {}
        self._places: dict[Key, tuple[bytes, bytes]] = {}
        self._sorted: list[tuple[tuple[bytes, bytes], Key]] = []
        self._versions = itertools.count(1)
        self._failures: list[tuple[StorageError, bool]] = []

    def fail_next(self, error: StorageError, *, done: bool) -> None:
        self._failures.append((error, done))

    async def read(self, key: Key, select: tuple[str, ...] | None = None) -> Row:
        await self._request()
        if key not in self.rows:
            raise NotFound(f"read a row of the table {self.name}: not found", resource=self.name, status=404)
        return _selected(self.rows[key], select)

    async def write(self, operation: Operation) -> str:
        await self._request()
        if isinstance(operation, Delete) and Key(*operation.key) not in self.rows:
            return ""
        return (await self._carry_out([operation]))[0]

    async def transact(self, operations: Sequence[Operation]) -> list[str]:
        await self._request()
        return await self._carry_out(operations)

    async def page(self, query: Query, resume: Key | None) -> RowPage:
        await self._request()
        if self.empty_pages and (resume is None or not resume.row.endswith("\x00")):
            start = resume or Key("", "")
            return RowPage([], Key(start.partition, start.row + "\x00"))
        start = Key(resume.partition, resume.row.removesuffix("\x00")) if resume else Key("", "")
        found = self._found(query, order(start))
        rows = [_selected(row, query.select) for row in found[: query.page_size]]
        return RowPage(rows, found[query.page_size].key if len(found) > query.page_size else None)

    def _found(self, query: Query, place: tuple[bytes, bytes]) -> list[Row]:
        """In order from that place on, one more than fit on a page at most."""
        partition = None if query.partition is None else utf16(query.partition)
        first, end = utf16(query.row_from), utf16(query.row_before)
        if partition is not None:
            place = max(place, (partition, first))
        found = list[Row]()
        in_order = self._in_order()
        for of_row, key in itertools.islice(in_order, bisect_left(in_order, (place,)), None):
            if partition is not None and of_row[0] != partition:
                break
            if of_row[1] < first or (end and of_row[1] >= end):
                continue
            if all(_meets(self.rows[key], condition) for condition in query.where):
                found.append(self.rows[key])
                if len(found) > query.page_size:
                    break
        return found

    def _in_order(self) -> list[tuple[tuple[bytes, bytes], Key]]:
        """The keys as the service sorts them; sorted again only if others came or went."""
        if self._places.keys() != self.rows.keys():
            known = self._places
            self._places = {key: known.get(key) or order(key) for key in self.rows}
            self._sorted = sorted((place, key) for key, place in self._places.items())
        return self._sorted

    async def _request(self) -> None:
        self.requests += 1
        await asyncio.sleep(0)  # a request lets others run; so does its twin

    async def _carry_out(self, operations: Sequence[Operation]) -> list[str]:
        failure, done = self._failures.pop(0) if self._failures else (None, True)
        if failure is not None and not done:
            raise failure
        for operation in operations:
            self._check(operation)
        etags = [self._apply(operation) for operation in operations]
        if failure is not None:
            raise failure
        return etags

    def _check(self, operation: Operation) -> None:
        key, what = Key(*operation.key), f"write a row of the table {self.name}"
        row = self.rows.get(key)
        if isinstance(operation, Insert):
            if row is not None:
                raise AlreadyExists(f"{what}: exists", resource=self.name, status=409)
        elif not isinstance(operation, Upsert):
            if row is None:
                raise NotFound(f"{what}: not found", resource=self.name, status=404)
            if operation.etag not in (ANY, row.etag):
                raise PreconditionFailed(f"{what}: changed", resource=self.name, status=412)

    def _apply(self, operation: Operation) -> str:
        key = Key(*operation.key)
        if isinstance(operation, Delete):
            del self.rows[key]
            return ""
        values, nonces = dict(operation.values), operation.nonces
        if isinstance(operation, Merge):
            values = {**self.rows[key].values, **values}
            nonces = nonces or self.rows[key].nonces
        etag = f'W/"{next(self._versions)}"'
        self.rows[key] = Row(key, values, etag, nonces)
        return etag


def _selected(row: Row, select: tuple[str, ...] | None) -> Row:
    values = {name: value for name, value in row.values.items() if select is None or name in select}
    return Row(row.key, values, row.etag, row.nonces)


def _meets(row: Row, condition: Where) -> bool:
    system = {"PartitionKey": row.key.partition, "RowKey": row.key.row}
    if condition.column not in system and condition.column not in row.values:
        return False
    value = system.get(condition.column, row.values.get(condition.column))
    if isinstance(value, str) and isinstance(condition.value, str):
        return _COMPARE[condition.comparison](utf16(value), utf16(condition.value))
    return _COMPARE[condition.comparison](value, condition.value)
