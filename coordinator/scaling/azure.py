"""Scaling agents of a storage account: made, listed, and read as one figure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from coordinator.azure.account import Account
from coordinator.errors import ConfigurationError, NotFound
from coordinator.leadership.azure import list_leaders
from coordinator.scaling.agent import Observe, ScalingAgent
from coordinator.scaling.drivers import Driver
from coordinator.scaling.history import LATEST, ScalingHistory, ScalingRecord, decode_records
from coordinator.scaling.policy import ScalingPolicy, decode_policy, encode_policy
from coordinator.scaling.reports import FORGET_SECONDS, WorkerReport
from coordinator.tables.azure import make_table
from coordinator.tables.operations import Delete, Put
from coordinator.tables.optimistic import optimistic_update
from coordinator.tables.rows import Values

POLICY = "b-policy"
REPORT = "w-"
_decoder: msgspec.json.Decoder[WorkerReport] = msgspec.json.Decoder(WorkerReport)


@dataclass(frozen=True)
class ScalingFigure:
    """How many instances a pool should have, and how old that is: what KEDA's metrics-api scaler asks for."""

    pool: str
    wanted: int
    age_seconds: float


def make_scaling_agent(
    storage: Account,
    pool: str,
    driver: Driver,
    *,
    observe: Observe,
    policy: ScalingPolicy,
    every_seconds: float = 15.0,
    queues: Sequence[str] = (),
    gate: str = "",
) -> ScalingAgent:
    """The agent of that pool. `policy` applies until an operator stores another (see `save_policy`).

    With push, announcements of `queues` and of the `gate` wake it between two turns.
    """

    async def in_force() -> ScalingPolicy:
        return await read_policy(storage, pool) or policy

    return ScalingAgent(
        pool,
        driver,
        policy=in_force,
        observe=observe,
        history=scaling_history(storage, pool),
        identity=storage.identity,
        clock=storage.clock,
        every_seconds=every_seconds,
        bus=lambda: storage.bus,
        topics=[*(f"queue:{name}" for name in queues), *([f"gate:{gate}"] if gate else [])],
    )


def scaling_history(storage: Account, pool: str) -> ScalingHistory:
    """What was decided for that pool."""
    return ScalingHistory(make_table(storage, storage.config.table("scaling")), pool)


async def list_scaling(storage: Account, *, odd: Callable[[str], None] | None = None) -> list[ScalingRecord]:
    """The newest decision of each pool, by name; one request for up to 1,000 rows looked at.

    With `odd`, a row that cannot be read is passed to it as a sentence, and the others are returned.
    """
    table = make_table(storage, storage.config.table("scaling"))
    found: list[ScalingRecord] = []
    async for row in table.scan(prefix=LATEST):
        found += decode_records([row], odd)
    return found


async def read_figure(storage: Account, pool: str) -> ScalingFigure | None:
    """The figure for an external scaler; None if no agent ever decided. Look at its age before you trust it."""
    latest = await scaling_history(storage, pool).latest()
    if latest is None:
        return None
    return ScalingFigure(pool, latest.wanted, storage.clock.time() - latest.at)


async def read_policy(storage: Account, pool: str) -> ScalingPolicy | None:
    """The policy that an operator stored; None if there is none."""
    table = make_table(storage, storage.config.table("scaling"))
    try:
        row = await table.read((pool, POLICY))
    except NotFound:
        return None
    return _policy(row.values)


async def save_policy(storage: Account, pool: str, policy: ScalingPolicy, *, by: str) -> ScalingPolicy | None:
    """Store a policy; the agent follows at its next turn. Returns the one before (None: there was none that can be read)."""
    table = make_table(storage, storage.config.table("scaling"))
    values: Values = {"policy": encode_policy(policy), "by": by, "at": storage.clock.time()}
    update = await optimistic_update(table, (pool, POLICY), lambda row: values, create={})
    try:
        return _policy(update.old.values) if update.old else None
    except ConfigurationError:
        return None


def _policy(values: Mapping[str, Any]) -> ScalingPolicy:
    text = values.get("policy")
    return decode_policy(text if isinstance(text, str) else "")


async def leader_names(storage: Account) -> set[str]:
    """Who leads any election now, by name: for drivers, which retire them last."""
    return {leader.holder for leader in await list_leaders(storage) if leader.is_held}


async def save_report(storage: Account, pool: str, report: WorkerReport) -> None:
    """Store what a worker says of itself, in the place of what it said before; one request."""
    name = hashlib.sha256(f"{report.worker}\0{report.queue}".encode()).hexdigest()[:32]
    values: Values = {"at": report.at, "report": msgspec.json.encode(report).decode()}
    await make_table(storage, storage.config.table("scaling")).write(Put((pool, REPORT + name), values))


class PoolReports:
    """What the workers of a pool report; one request for up to 1,000 of them. Rows that nobody renews are deleted."""

    def __init__(self, storage: Account, pool: str) -> None:
        self._storage, self._pool = storage, pool
        self._table = make_table(storage, storage.config.table("scaling"))
        self.latest: tuple[WorkerReport, ...] = ()
        self._read_at = -math.inf

    async def read(self) -> Sequence[WorkerReport]:
        """All of them, at most a second old; a row that cannot be read is left out."""
        if self._storage.clock.monotonic() - self._read_at < 1.0:
            return self.latest
        found = []
        now = self._storage.clock.time()
        async for row in self._table.scan(partition=self._pool, prefix=REPORT):
            try:
                report = _decoder.decode(row["report"])
            except (msgspec.DecodeError, KeyError, TypeError):
                continue
            if now - report.at > FORGET_SECONDS:
                await self._table.write(Delete(row.key, row.etag))
            else:
                found.append(report)
        self.latest, self._read_at = tuple(found), self._storage.clock.monotonic()
        return self.latest

    def of(self, queue: str) -> Callable[[], Awaitable[Sequence[WorkerReport]]]:
        """Reads those on one queue."""

        async def read() -> Sequence[WorkerReport]:
            return [each for each in await self.read() if each.queue == queue]

        return read

    async def workers(self) -> int:
        """How many workers report."""
        now = self._storage.clock.time()
        return len({each.worker for each in await self.read() if each.is_fresh(now)})

    async def jobs(self) -> dict[str, int]:
        """How many jobs each worker runs, over all queues, as last read."""
        running: dict[str, int] = {}
        for each in self.latest:
            running[each.worker] = running.get(each.worker, 0) + each.in_flight
        return running
