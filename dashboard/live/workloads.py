"""Batches, sagas and pools as the pages show them: values, and the few requests that read them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from coordinator.bounds import one_line
from coordinator.errors import KennelError, NotFound
from coordinator.pipelines.azure import list_batches
from coordinator.pipelines.status import BatchStatus
from coordinator.scaling.azure import list_scaling, scaling_history
from coordinator.scaling.history import ScalingRecord
from coordinator.scaling.usage import Usage
from coordinator.storage import Storage
from coordinator.tables.azure import SagaHead, open_sagas, saga_heads, saga_names

log = logging.getLogger(__name__)

MOST_ODD = 100
SHOWN_SECONDS = 30 * 86_400.0
AGENT_LATE_SECONDS = 120.0
CHANGES = 30
NAMES_SECONDS = 300.0


class DecisionView(msgspec.Struct, frozen=True):
    """How many instances were wanted and there, by whom, in which term, and why. `at` is seconds since 1970."""

    pool: str
    at: float
    by: str
    epoch: int
    wanted: int
    previous: int
    actual: int
    reason: str


class Decided(DecisionView, frozen=True):
    """One decision of a scaling agent, and when the number wanted last changed (`stepped_at`).

    `instance_seconds` and `keda_seconds` are those of the day (UTC) that began at `day`, up to the decision.
    """

    stepped_at: float = 0.0
    day: float = 0.0
    instance_seconds: float = 0.0
    keda_seconds: float = 0.0


class Pool(msgspec.Struct, frozen=True):
    """A pool of workers: its newest decision and the newest changes of the number wanted."""

    latest: Decided
    changes: tuple[Decided, ...] = ()

    @property
    def name(self) -> str:
        return self.latest.pool


class Work(msgspec.Struct, frozen=True):
    """All of it, of the last 30 days, and every saga that is open. `as_of` None: not read yet. `problem` says why it is older
    than it should be, `odd` names each row that cannot be read, and why. `saga_names` were looked up at `names_at`."""

    batches: tuple[BatchStatus, ...] = ()
    sagas: tuple[SagaHead, ...] = ()
    pools: tuple[Pool, ...] = ()
    as_of: float | None = None
    problem: str = ""
    saga_names: tuple[str, ...] = ()
    names_at: float = 0.0
    odd: tuple[str, ...] = ()


async def read(storage: Storage, before: Work, *, at: float, seconds: float) -> Work:
    """Three requests, one more for each batch that runs, each pool that changed and each name of sagas. Never raises: see
    `problem`."""
    odd: list[str] = []
    try:
        async with asyncio.timeout(seconds):
            names, names_at = before.saga_names, before.names_at
            if at - names_at >= NAMES_SECONDS:
                names, names_at = tuple(await saga_names(storage)), at
            # One after the other: a press must not stand behind all of them.
            batches = await list_batches(storage, since=at - SHOWN_SECONDS, odd=odd.append)
            recent = await saga_heads(storage, since=at - SHOWN_SECONDS, odd=odd.append)
            still_open = await open_sagas(storage, names, odd=odd.append)
            pools = await _pools(storage, before, odd.append)
    except (KennelError, TimeoutError) as error:
        return msgspec.structs.replace(before, problem=str(error) or "storage did not answer in time")
    except Exception as error:
        # What others wrote must not stop the sampler of all the rest.
        log.exception("Batches, sagas and pools could not be read")
        return msgspec.structs.replace(before, problem=f"unreadable: {type(error).__name__}")
    names = tuple(sorted({*names, *(head.saga for head in recent)}))
    unreadable = tuple(sorted(set(odd))[:MOST_ODD])
    return Work(
        tuple(batches),
        sagas(recent, still_open),
        pools,
        at,
        saga_names=names,
        names_at=names_at,
        odd=unreadable,
    )


def sagas(recent: list[SagaHead], still_open: list[SagaHead]) -> tuple[SagaHead, ...]:
    """The stuck ones first, then the newest. Open ones are there, however many others have ended since. Pure."""
    known = {(head.saga, head.key): head for head in [*still_open, *recent]}
    return tuple(sorted(known.values(), key=lambda head: (head.state != "stuck", -head.changed_at)))


def _decided(record: ScalingRecord) -> Decided:
    usage = record.usage or Usage(0.0, 0.0)
    return Decided(
        record.pool,
        record.at,
        record.by,
        record.epoch,
        record.wanted,
        record.previous,
        record.actual,
        record.reason,
        stepped_at=record.memory.stepped_at,
        day=usage.day,
        instance_seconds=usage.instance_seconds,
        keda_seconds=usage.keda_seconds,
    )


async def _pools(storage: Storage, before: Work, odd: Callable[[str], None]) -> tuple[Pool, ...]:
    known = {pool.name: pool for pool in before.pools}

    async def pool(record: ScalingRecord) -> Pool:
        latest, old = _decided(record), known.get(record.pool)
        if old is not None and (old.latest.wanted, old.latest.stepped_at) == (
            latest.wanted,
            latest.stepped_at,
        ):
            return Pool(latest, old.changes)
        try:
            changes = await scaling_history(storage, record.pool).changes(CHANGES, odd=odd)
        except KennelError as error:
            odd(f"changes of pool {record.pool}: unreadable: {one_line(str(error))}")
            return Pool(latest, old.changes if old is not None else ())
        return Pool(latest, tuple(_decided(each) for each in changes))

    try:
        latest = await list_scaling(storage, odd=odd)
    except NotFound:
        return ()
    return tuple(await asyncio.gather(*(pool(record) for record in latest)))
