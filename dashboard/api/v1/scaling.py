"""Scaling: what each pool's agent decided and why; its policy."""

from __future__ import annotations

import time

import msgspec
from django.http import HttpRequest, HttpResponse
from ninja import Router

from coordinator.scaling.history import ScalingRecord
from coordinator.scaling.policy import ScalingPolicy, decode_policy
from dashboard.api.v1 import responses as answering
from dashboard.api.v1.bodies import Name, NewPolicy
from dashboard.api.v1.operations import actor_of, acts, reads
from dashboard.api.v1.problems import Refusal
from dashboard.live.workloads import DecisionView
from dashboard.scaling import actions
from dashboard.scaling import queries as scaling

router = Router(tags=["scaling"])

# Beyond it the figure says nothing: KEDA's fallback is better than following an agent that is gone.
MAX_AGE_SECONDS = 120.0


class Pools(msgspec.Struct, frozen=True):
    """The newest decision of each pool."""

    pools: tuple[DecisionView, ...]


class PoolView(msgspec.Struct, frozen=True):
    """A pool: its newest changes, newest first, and its stored policy (null: the agent's own)."""

    pool: str
    changes: tuple[DecisionView, ...]
    policy: ScalingPolicy | None


class Figure(msgspec.Struct, frozen=True):
    """How many instances a pool should have, and how old that figure is: what KEDA's metrics-api scaler follows."""

    wanted: int
    age_seconds: float


class PolicyInForce(msgspec.Struct, frozen=True):
    """The policy that is stored now."""

    policy: ScalingPolicy


@router.get("/scaling", **reads(Pools, "scaling", storage=True))
def pools(request: HttpRequest) -> HttpResponse:
    """The newest decision for each pool, read from storage."""
    return answering.answer(Pools(tuple(_view(pool.latest) for pool in _read("").pools)))


@router.get("/scaling/{pool}", **reads(PoolView, "pool", storage=True))
def pool(request: HttpRequest, pool: Name) -> HttpResponse:
    """The newest changes of a pool, and its policy."""
    found = _read(pool)
    policy = decode_policy(found.policy) if found.policy else None
    return answering.answer(PoolView(pool, tuple(_view(each) for each in found.changes), policy))


@router.get("/scaling/{pool}/figure", **reads(Figure, "scaling_figure", storage=True, missing=True))
def figure(request: HttpRequest, pool: Name) -> HttpResponse:
    """One number for an external scaler; refused with 503 when no agent has decided for two minutes."""
    found, problem = scaling.figure(pool)
    if problem:
        raise Refusal(503, problem)
    if found is None:
        raise Refusal(404, f"nothing was ever decided for the pool {pool}")
    if found.age_seconds > MAX_AGE_SECONDS:
        raise Refusal(503, f"the figure is {found.age_seconds:.0f} s old: no active scaling agent")
    return answering.answer(Figure(found.wanted, round(max(0.0, found.age_seconds), 3)))


@router.put("/scaling/{pool}/policy", **acts(PolicyInForce, "set_policy", action="scaling.policy"))
def set_policy(request: HttpRequest, pool: Name, body: NewPolicy) -> HttpResponse:
    """Save a policy; the pool's agent applies it in its next cycle."""
    text = body.policy.model_dump_json(exclude_unset=True)
    actions.store_policy(actor_of(request), pool, text, reason=body.reason)
    return answering.answer(PolicyInForce(decode_policy(text)))


def _read(pool: str) -> scaling.Scaling:
    found = scaling.read(pool, time.time())
    if found.problem:
        raise Refusal(503, found.problem)
    return found


def _view(record: ScalingRecord) -> DecisionView:
    return DecisionView(**{name: getattr(record, name) for name in DecisionView.__struct_fields__})
