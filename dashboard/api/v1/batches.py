"""Batches and sagas: how they go; retry, cancel, free, repair."""

from __future__ import annotations

from typing import Annotated

import msgspec
from django.http import HttpRequest, HttpResponse
from ninja import Path, Router
from pydantic import StringConstraints

from coordinator.pipelines.status import BatchStatus
from dashboard.api.v1 import responses as answering
from dashboard.api.v1.bodies import KEY, Cursor, Limit, Name, RepairedStep, Why
from dashboard.api.v1.operations import ActDone, actor_of, acts, done, reads
from dashboard.api.v1.schema import page_of
from dashboard.batches import actions
from dashboard.pages import queries as selectors

router = Router(tags=["batches and sagas"])

Key = Annotated[
    str,
    StringConstraints(pattern=KEY, min_length=1, max_length=200),
    Path(description="A batch's name, or a saga's key."),
]


class Retried(msgspec.Struct, frozen=True):
    """So many failed items are processed again."""

    items: int


class SagaView(msgspec.Struct, frozen=True, kw_only=True):
    """A saga: how it stands, when that changed, how many runners it has had."""

    saga: str
    key: str
    state: str
    epoch: int
    changed_at: float


@router.get("/batches", **reads(page_of(BatchStatus), "batches", tagged=True))
def batches(request: HttpRequest, cursor: Cursor = "", limit: Limit = 100) -> HttpResponse:
    """The batches of the last 30 days by pipeline and name, with progress, rate and time left."""
    found = selectors.fleet().work.batches
    return answering.state(
        request,
        answering.page(found, lambda each: f"{each.pipeline}/{each.batch}", cursor=cursor, limit=limit),
    )


@router.post("/batches/{pipeline}/{batch}/retry", **acts(Retried, "retry_batch", action="batch.retry"))
def retry_batch(request: HttpRequest, pipeline: Name, batch: Key, body: Why) -> HttpResponse:
    """Have the failed items processed again."""
    items = actions.retry_batch(actor_of(request), f"{pipeline}/{batch}", reason=body.reason)
    return answering.answer(Retried(items))


@router.post("/batches/{pipeline}/{batch}/cancel", **acts(ActDone, "cancel_batch", action="batch.cancel"))
def cancel_batch(request: HttpRequest, pipeline: Name, batch: Key, body: Why) -> HttpResponse:
    """Stop a batch for good; what is on its way is dropped within seconds."""
    actions.cancel_batch(actor_of(request), f"{pipeline}/{batch}", reason=body.reason)
    return done("batch.cancel", f"{pipeline}/{batch}")


@router.get("/sagas", **reads(page_of(SagaView), "sagas", tagged=True))
def sagas(request: HttpRequest, cursor: Cursor = "", limit: Limit = 100) -> HttpResponse:
    """The sagas of the last 30 days by name and key."""
    found = [SagaView(**head._asdict()) for head in selectors.fleet().work.sagas]
    return answering.state(
        request, answering.page(found, lambda each: f"{each.saga}/{each.key}", cursor=cursor, limit=limit)
    )


@router.post("/sagas/{saga}/{key}/retry", **acts(ActDone, "retry_saga", action="saga.retry"))
def retry_saga(request: HttpRequest, saga: Name, key: Key, body: Why) -> HttpResponse:
    """Have a stuck saga try to undo its steps again."""
    actions.free_saga(actor_of(request), f"{saga}/{key}", reason=body.reason)
    return done("saga.retry", f"{saga}/{key}")


@router.post("/sagas/{saga}/{key}/repair", **acts(ActDone, "repair_saga", action="saga.repair"))
def repair_saga(request: HttpRequest, saga: Name, key: Key, body: RepairedStep) -> HttpResponse:
    """Count the step that a saga is stuck on as undone, after somebody has undone it by hand."""
    actions.repair_saga(actor_of(request), f"{saga}/{key}", body.step, reason=body.reason)
    return done("saga.repair", f"{saga}/{key}")
