"""What the agent decided, kept in a table: the newest for whoever takes over, each change for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from coordinator.errors import AlreadyExists, LeadershipLost, NotFound, PreconditionFailed
from coordinator.scaling.decision import AgentState, Decision, Observation
from coordinator.tables.commit import commit
from coordinator.tables.operations import Insert, Operation, Replace
from coordinator.tables.rows import Row
from coordinator.tables.table import Table

LATEST = "a-latest"
CHANGE = "c-"
_FAR = 10**13


@dataclass(frozen=True)
class ScalingRecord:
    """One decision: for which pool, by whom, in which term, from what, and why. `previous` is what was wanted before."""

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
        self._etag, self._epoch = row.etag, int(row["epoch"])
        return decode_record(row)

    async def record(
        self, decision: Decision, seen: Observation, *, previous: int, by: str, epoch: int
    ) -> None:
        """Store a decision; raises `LeadershipLost` if an agent of a later term has stored one."""
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
            latest: Operation = Replace(key, values, self._etag) if self._etag else Insert(key, values)
            operations: list[Operation] = [latest]
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

    async def changes(self, limit: int = 100) -> list[ScalingRecord]:
        """The newest changes of the number wanted, the newest first."""
        rows = await self._table.top(limit, partition=self.pool, prefix=CHANGE)
        return [decode_record(row) for row in rows]


def decode_record(row: Row) -> ScalingRecord:
    """A row as it was recorded."""
    return ScalingRecord(
        pool=row.key.partition,
        at=row["at"],
        by=row["by"],
        epoch=row["epoch"],
        wanted=row["wanted"],
        previous=row["previous"],
        actual=row["actual"],
        reason=row["reason"],
        seen=msgspec.json.decode(row["seen"], type=Observation),
        memory=msgspec.json.decode(row["memory"], type=AgentState),
    )
