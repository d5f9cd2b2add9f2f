"""What the agent decided, kept in a table: the newest for whoever takes over, each change for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from coordinator.bounds import Count, KeyText, Moment, Remark, one_line, plainly
from coordinator.errors import AlreadyExists, KennelError, LeadershipLost, NotFound, PreconditionFailed
from coordinator.scaling.decision import AgentState, Decision, Observation
from coordinator.scaling.usage import Usage
from coordinator.tables.commit import commit
from coordinator.tables.operations import Insert, Operation, Put, Replace
from coordinator.tables.rows import Row, Values
from coordinator.tables.table import Table

LATEST = "a-latest"
CHANGE = "c-"
DAY = "d-"
_FAR = 10**13


@dataclass(frozen=True)
class ScalingRecord:
    """One decision: for which pool, by whom, in which term, from what, and why. `previous` is what was wanted before;
    `usage` is that of the day so far."""

    pool: str
    at: float
    by: str
    epoch: int
    wanted: int
    previous: int
    actual: int
    reason: str
    seen: Observation
    memory: AgentState
    usage: Usage | None = None


class ScalingHistory:
    """The records of one pool. A write of an agent whose term is over is refused.

    Costs one request for each decision, one transaction when the number changes.
    """

    def __init__(self, table: Table, pool: str) -> None:
        self.pool = pool
        self._table = table
        self._etag = ""
        self._epoch = 0

    async def latest(self) -> ScalingRecord | None:
        """The newest decision; None if there never was one."""
        try:
            row = await self._table.read((self.pool, LATEST))
        except NotFound:
            self._etag, self._epoch = "", 0
            return None
        record = decode_record(row)
        self._etag, self._epoch = row.etag, record.epoch
        return record

    async def record(
        self,
        decision: Decision,
        seen: Observation,
        *,
        previous: int,
        by: str,
        epoch: int,
        usage: Usage | None = None,
        ended: Usage | None = None,
    ) -> None:
        """Store a decision, and the day that has `ended`; raises `LeadershipLost` if an agent of a later term has stored one."""
        values: dict[str, Any] = {
            "at": seen.at,
            "by": by,
            "epoch": epoch,
            "wanted": decision.wanted,
            "previous": previous,
            "actual": seen.actual,
            "reason": decision.reason,
            "seen": msgspec.json.encode(seen).decode(),
            "memory": msgspec.json.encode(decision.memory).decode(),
        }
        key = (self.pool, LATEST)
        for _ in range(3):
            if self._epoch > epoch:
                raise LeadershipLost(
                    f"scaling {self.pool}: an agent of term {self._epoch} has decided after {epoch}"
                )
            newest = values | {"usage": msgspec.json.encode(usage).decode()} if usage else values
            latest: Operation = Replace(key, newest, self._etag) if self._etag else Insert(key, newest)
            operations: list[Operation] = [latest]
            if ended is not None:
                day: Values = {"at": ended.at, "usage": msgspec.json.encode(ended).decode()}
                operations.append(Put((self.pool, _day_row(ended.day)), day))
            if decision.wanted != previous:
                # Rows count down, so that the newest are the first of a scan.
                row = f"{CHANGE}{_FAR - int(seen.at * 1000):013d}-{epoch:06d}"
                operations.append(Insert((self.pool, row), values))
            try:
                self._etag = (await commit(self._table, *operations))[0]
                self._epoch = epoch
                return
            except (PreconditionFailed, AlreadyExists, NotFound):
                await self.latest()
        raise LeadershipLost(f"scaling {self.pool}: another agent decides at the same time")

    async def day(self, start: float) -> Usage | None:
        """The day that started at that midnight (UTC), if it was recorded to its end."""
        try:
            row = await self._table.read((self.pool, _day_row(start)))
        except NotFound:
            return None
        return msgspec.json.decode(row["usage"], type=Usage)

    async def changes(
        self, limit: int = 100, *, odd: Callable[[str], None] | None = None
    ) -> list[ScalingRecord]:
        """The newest changes of the number wanted, the newest first.

        With `odd`, a row that cannot be read is passed to it as a sentence, and the others are returned.
        """
        return decode_records(await self._table.top(limit, partition=self.pool, prefix=CHANGE), odd)


def _day_row(start: float) -> str:
    return f"{DAY}{int(start):012d}"


class _Columns(msgspec.Struct, frozen=True):
    """A stored decision; what is JSON in it has types of its own."""

    at: Moment
    by: KeyText
    epoch: Count
    wanted: Count
    previous: Count
    actual: Count
    reason: Remark
    seen: Remark
    memory: Remark
    usage: Remark = ""


def decode_record(row: Row) -> ScalingRecord:
    """A row as it was recorded. Raises `KennelError` if another program wrote something else there."""
    try:
        found = msgspec.convert(row.values, _Columns, strict=False)
        return ScalingRecord(
            pool=row.key.partition,
            at=found.at,
            by=found.by,
            epoch=found.epoch,
            wanted=found.wanted,
            previous=found.previous,
            actual=found.actual,
            reason=found.reason,
            seen=msgspec.json.decode(found.seen, type=Observation),
            memory=msgspec.json.decode(found.memory, type=AgentState),
            usage=msgspec.json.decode(found.usage, type=Usage) if found.usage else None,
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise KennelError(
            f"pool {one_line(row.key.partition)}: unreadable: {one_line(plainly(error))}"
        ) from error


def decode_records(rows: Iterable[Row], odd: Callable[[str], None] | None) -> list[ScalingRecord]:
    """All that can be read; `odd` gets a sentence for each other (None: the first is raised)."""
    found = []
    for row in rows:
        try:
            found.append(decode_record(row))
        except KennelError as error:
            if odd is None:
                raise
            odd(str(error))
    return found
