"""What a table needs of a store, and the question it asks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from coordinator.clock import Clock
from coordinator.tables.operations import Operation
from coordinator.tables.rows import Key, Row

Comparison = Literal["eq", "ne", "gt", "ge", "lt", "le"]
MAX_PAGE = 1000
STEP_ROWS = 100
"""After so many rows of a page others on the event loop have a turn."""


class Where(NamedTuple):
    """A condition on a column. A row without the column never meets it."""

    column: str
    comparison: Comparison
    value: Any


@dataclass(frozen=True)
class Query:
    """Which rows: of one partition or of all, rows from `row_from` (included) to `row_before` (not), all conditions met.

    `select` names the columns wanted (None: all). `page_size` is at most 1,000 rows, the service's own limit.
    """

    partition: str | None = None
    row_from: str = ""
    row_before: str = ""
    where: tuple[Where, ...] = ()
    select: tuple[str, ...] | None = None
    page_size: int = MAX_PAGE

    @property
    def digest(self) -> str:
        """Identifies this query; a continuation token is good for its own only."""
        parts = (self.partition, self.row_from, self.row_before, self.where, self.select)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


class RowPage(NamedTuple):
    """Some rows in key order, perhaps none, and where the service goes on (None: that was all)."""

    rows: list[Row]
    resume: Key | None


class TableStore(Protocol):
    """One table. Every call is one request; none is repeated behind the caller's back."""

    @property
    def name(self) -> str: ...

    @property
    def clock(self) -> Clock: ...

    async def read(self, key: Key, select: tuple[str, ...] | None = None) -> Row:
        """The row; `NotFound` without it."""

    async def write(self, operation: Operation) -> str:
        """Carry it out and return the new ETag ("" after a delete).

        Raises `AlreadyExists`, `NotFound` or `PreconditionFailed` if it could not be, or `StorageUnreachable` or
        `StorageBusy` with `maybe_done`. Deleting a row that is not there is done already.
        """

    async def transact(self, operations: Sequence[Operation]) -> list[str]:
        """Carry out all or none; errors as of `write`, except that deleting a row that is not there is `NotFound`."""

    async def page(self, query: Query, resume: Key | None) -> RowPage:
        """One page of the answer, from where an earlier one left off."""
