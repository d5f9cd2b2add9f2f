"""Scaling agents: what they decided and why, and the policy they follow. Blocking functions for threads."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from coordinator.errors import KennelError, NotFound
from coordinator.scaling.azure import ScalingFigure, list_scaling, read_figure, read_policy, scaling_history
from coordinator.scaling.history import ScalingRecord
from coordinator.scaling.policy import ScalingPolicy
from dashboard.hub.runtime import call, look, storage

CHANGES = 30


class PoolDecision(NamedTuple):
    """A pool's newest decision, and how old it is."""

    latest: ScalingRecord
    age_seconds: float


class Scaling(NamedTuple):
    """All pools; of the chosen one the newest changes and the stored policy. `problem` says what is missing."""

    pools: tuple[PoolDecision, ...] = ()
    changes: tuple[ScalingRecord, ...] = ()
    policy: str = ""
    problem: str = ""


def read(pool: str, now: float) -> Scaling:
    """One request for the pools ("": no more than that), two more for one of them. Rows that cannot be read are left out."""
    try:
        seen = look("", _read, pool, now)
    except KennelError as error:
        return Scaling(problem=str(error))
    return (seen.value or Scaling())._replace(problem=seen.problem)


async def _read(pool: str, now: float) -> Scaling:
    try:
        latest = await list_scaling(storage(), odd=_left_out)
    except NotFound:
        return Scaling()
    pools = tuple(PoolDecision(record, max(0.0, now - record.at)) for record in latest)
    if not pool:
        return Scaling(pools)
    changes = await scaling_history(storage(), pool).changes(CHANGES, odd=_left_out)
    return Scaling(pools, tuple(changes), _shown(await read_policy(storage(), pool)))


def _left_out(_: str) -> None:
    """The Batches page names what cannot be read."""


def figure(pool: str) -> tuple[ScalingFigure | None, str]:
    """How many instances the pool should have (None: nothing was ever decided), and what went wrong; one request."""
    try:
        return call(read_figure, storage(), pool), ""
    except (KennelError, TimeoutError) as error:
        return None, str(error) or "storage did not answer in time"


def policy_of(pool: str) -> tuple[str, str]:
    """The stored policy as JSON ("": none is stored), and what went wrong if it could not be read; one request."""
    try:
        seen = look(f"policy {pool}", read_policy, storage(), pool)
    except KennelError as error:
        return "", str(error)
    return _shown(seen.value), seen.problem


def _shown(policy: ScalingPolicy | None) -> str:
    return msgspec.json.format(msgspec.json.encode(policy), indent=2).decode() if policy else ""
