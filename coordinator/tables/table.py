"""`Table`: rows with ETags, transactions checked before they are sent, pages that survive a restart."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, get_args

from coordinator.backoff import Backoff, retry
from coordinator.errors import ConfigurationError
from coordinator.tables.operations import Operation, check_operation, check_transaction
from coordinator.tables.rows import Key, Row, check_column, check_compared, check_key, order
from coordinator.tables.store import MAX_PAGE, STEP_ROWS, Comparison, Query, RowPage, TableStore, Where

COMPARISONS = get_args(Comparison)
READ_BACKOFF = Backoff(base_seconds=0.1, cap_seconds=2.0, deadline_seconds=20.0)


class Table:
    """A table of the storage account.

    Guarantees that what is sent is within the service's limits, that one row is written atomically, and that one
    transaction (one partition, at most 100 rows) is carried out wholly or not at all. Reads are repeated for up to 20
    s while the service is unreachable or busy.

    Does not guarantee that a scan sees one moment: rows written while it runs may or may not appear. Each page is a
    snapshot of its partition; two pages are two. Does not repeat writes: see `optimistic_update`.

    Args:
        store: The rows; `Storage.table` gives one in the account, `coordinator.testing` one in memory.

    Raises:
        StorageError: The service refused, or stayed unreachable; also raised by each method.

    Examples:
        >>> stock = storage.table("stock")
        >>> await stock.write(Insert(("nl", "4711"), {"count": 12}))
        >>> row = await stock.read(("nl", "4711"))
    """

    def __init__(self, store: TableStore) -> None:
        self.store = store
        self.name = store.name

    async def read(self, key: tuple[str, str], *, select: Iterable[str] | None = None) -> Row:
        """Read one row.

        Args:
            key: Partition and row.
            select: The columns to read (default: all).

        Returns:
            The row, with its ETag.

        Raises:
            NotFound: There is no such row.
            ConfigurationError: The service does not allow the key.
        """
        checked = check_key(key)
        columns = _columns(select)
        return await retry(
            lambda: self.store.read(checked, columns), backoff=READ_BACKOFF, clock=self.store.clock
        )

    async def write(self, operation: Operation) -> str:
        """Carry out one operation. It is sent once.

        Args:
            operation: `Insert`, `Upsert`, `Replace`, `Merge` or `Delete`.

        Returns:
            The new ETag; "" after a deletion.

        Raises:
            AlreadyExists: The row to insert exists.
            NotFound: The row to change does not exist.
            PreconditionFailed: The row has another ETag.
            StorageError: With `maybe_done` (`StorageUnreachable`, `StorageBusy`) the operation may have been carried
                out.
        """
        check_operation(operation)
        return await self.store.write(operation)

    async def transact(self, operations: Sequence[Operation]) -> list[str]:
        """Carry out all operations or none. They are sent once.

        Args:
            operations: 1 to 100 operations of one partition, each row once, 4 MiB at most.

        Returns:
            The new ETags, in order.

        Raises:
            ConfigurationError: The service could not take them. Nothing was sent.
            StorageError: As for `write`.
        """
        return await self.store.transact(check_transaction(operations))

    def scan(
        self,
        *,
        partition: str | None = None,
        prefix: str = "",
        row_from: str = "",
        row_before: str = "",
        where: Iterable[Where | tuple[str, str, Any]] = (),
        select: Iterable[str] | None = None,
        page_size: int = MAX_PAGE,
        token: str = "",
    ) -> Scan:
        """Rows in key order, page by page. Keys are ordered and compared by UTF-16 code units, as the service does.

        Args:
            partition: Limits it to one partition (default: the service reads the whole table).
            prefix: Limits it to rows whose row key begins with this.
            row_from: Limits it to row keys from this one.
            row_before: Limits it to row keys before this one.
            where: Rows that meet every ``(column, comparison, value)``; comparisons are eq, ne, gt, ge, lt, le.
            select: The columns to read (default: all).
            page_size: Maximum rows of a request, 1 to 1,000 (default 1,000).
            token: The `Scan.token` of an earlier, equal scan, in this process or another: go on behind it.

        Returns:
            An asynchronous iterator over rows; its `pages()` gives pages, its `token` the position.

        Raises:
            ConfigurationError: A column, a comparison or a value cannot be part of a query.

        Examples:
            >>> async for row in stock.scan(partition="nl", where=[("count", "lt", 5)]):
            ...     print(row.key.row, row["count"])
        """
        if prefix and (row_from or row_before):
            raise ConfigurationError("give either prefix or row_from and row_before, not both")
        if prefix:
            row_from, row_before = prefix, _after_prefix(prefix)
        if not 1 <= page_size <= MAX_PAGE:
            raise ConfigurationError(f"page_size must be between 1 and {MAX_PAGE}, got {page_size}")
        query = Query(
            partition=partition,
            row_from=row_from,
            row_before=row_before,
            where=tuple(_condition(*condition) for condition in where),
            select=_columns(select),
            page_size=page_size,
        )
        return Scan(self.store, query, token)

    async def top(
        self,
        count: int,
        *,
        partition: str | None = None,
        prefix: str = "",
        row_from: str = "",
        row_before: str = "",
        where: Iterable[Where | tuple[str, str, Any]] = (),
        select: Iterable[str] | None = None,
    ) -> list[Row]:
        """The first rows in key order. To have the newest first, let keys count down.

        Args:
            count: How many, at least 1.
            partition: As for `scan`.
            prefix: As for `scan`.
            row_from: As for `scan`.
            row_before: As for `scan`.
            where: As for `scan`.
            select: As for `scan`.

        Returns:
            At most `count` rows.

        Raises:
            ConfigurationError: As for `scan`.
        """
        if count < 1:
            raise ConfigurationError(f"top needs a count of at least 1, got {count}")
        rows: list[Row] = []
        found = self.scan(
            partition=partition,
            prefix=prefix,
            row_from=row_from,
            row_before=row_before,
            where=where,
            select=select,
            page_size=min(count, MAX_PAGE),
        )
        async for row in found:
            rows.append(row)
            if len(rows) == count:
                break
        return rows


class Scan:
    """The rows of a scan, once. `token` says how to go on after the last row taken; "" after the end.

    A token is good for the same table and question only, and stays good after a restart: it holds the service's own
    place and the last key seen. Rows deleted meanwhile don't appear, nor do new rows before that place.
    """

    def __init__(self, store: TableStore, query: Query, token: str) -> None:
        self._store = store
        self._query = query
        self._resume, self._last = self._decode(token) if token else (None, None)
        self._seen: tuple[bytes, bytes] | None = None
        self._ended = False

    @property
    def token(self) -> str:
        if self._ended:
            return ""
        content = {
            "v": 1,
            "table": self._store.name,
            "query": self._query.digest,
            "resume": self._resume,
            "last": self._last,
        }
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode()

    async def pages(self) -> AsyncIterator[list[Row]]:
        """The pages, one request each. A page may be empty though more follow."""
        self._begin()
        while not self._ended:
            page = await self._next_page()
            rows = page.rows
            if self._seen is not None:
                rows = [row for row in rows if self._is_new(row)]
            self._go_on(page)
            yield rows

    async def __aiter__(self) -> AsyncIterator[Row]:
        self._begin()
        while not self._ended:
            page = await self._next_page()
            for number, row in enumerate(page.rows, 1):
                if self._seen is None or self._is_new(row):
                    self._last = row.key
                    yield row
                if number % STEP_ROWS == 0:
                    await asyncio.sleep(0)  # who decodes a thousand rows must not hold up others
            self._go_on(page)

    def _begin(self) -> None:
        # The service's place is the page that the last row was on, so its rows come again.
        self._seen = order(self._last) if self._last is not None else None

    def _is_new(self, row: Row) -> bool:
        """Whether the row comes after the last one taken."""
        return self._seen is not None and order(row.key) > self._seen

    def _go_on(self, page: RowPage) -> None:
        if page.rows and (self._seen is None or self._is_new(page.rows[-1])):
            self._last = page.rows[-1].key
            self._seen = None
        self._resume = page.resume
        self._ended = page.resume is None

    async def _next_page(self) -> RowPage:
        return await retry(
            lambda: self._store.page(self._query, self._resume),
            backoff=READ_BACKOFF,
            clock=self._store.clock,
        )

    def _decode(self, token: str) -> tuple[Key | None, Key | None]:
        try:
            content = json.loads(base64.urlsafe_b64decode(token.encode()))
            version, table, query = content["v"], content["table"], content["query"]
            resume, last = (Key(*pair) if pair else None for pair in (content["resume"], content["last"]))
        except (ValueError, KeyError, TypeError, binascii.Error) as error:
            raise ConfigurationError(
                "this is not a continuation token; give the `token` of a scan"
            ) from error
        if version != 1 or table != self._store.name or query != self._query.digest:
            raise ConfigurationError(
                f"the continuation token belongs to another scan (of table {table!r}); repeat the scan that it came from"
            )
        return resume, last


def _columns(select: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if select is None else tuple(check_column(name) for name in select)


def _condition(column: str, comparison: Any, value: Any) -> Where:
    check_column(column)
    if comparison not in COMPARISONS:
        raise ConfigurationError(
            f"column {column!r}: there is no comparison {comparison!r}; use {', '.join(COMPARISONS)}"
        )
    check_compared(column, value)
    return Where(column, comparison, value)


def _after_prefix(prefix: str) -> str:
    """The first text after all that start with `prefix`, by UTF-16 code units; "" if there is none."""
    last = ord(prefix[-1])
    if last == 0xFFFF:
        return _after_prefix(prefix[:-1]) if len(prefix) > 1 else ""
    # Characters above U+FFFF sort between U+D7FF and U+E000.
    following = {0xD7FF: 0x10000, 0x10FFFF: 0xE000}.get(last, last + 1)
    return prefix[:-1] + chr(following)
