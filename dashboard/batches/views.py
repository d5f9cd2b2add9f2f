"""Batches and sagas: how they go, what failed; retry, cancel."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.batches import actions
from dashboard.batches import queries as work
from dashboard.pages.views import act, query_of, requires, show, text


@require_safe
@requires("page.view")
def batches(request: HttpRequest) -> HttpResponse:
    """All of them; of `batch` (with `pipeline`) the failures, of `key` (with `saga`) the history."""
    pipeline, batch = request.GET.get("pipeline", "")[:63], request.GET.get("batch", "")[:512]
    saga, key = request.GET.get("saga", "")[:63], request.GET.get("key", "")[:512]
    return show(
        request,
        "batches/batches.html",
        "batches",
        query=query_of(
            q=request.GET.get("q", "")[:63],
            state=request.GET.get("state", "")[:12],
            pipeline=pipeline,
            batch=batch,
            saga=saga,
            key=key,
        ),
        pipeline=pipeline,
        batch=batch,
        detail=work.batch(pipeline, batch) if pipeline and batch else None,
        saga=saga,
        key=key,
        history=work.saga(saga, key) if saga and key else None,
    )


@require_POST
@requires("batch.retry")
def retry(request: HttpRequest, pipeline: str, batch: str) -> HttpResponse:
    return act(
        request,
        lambda actor: actions.retry_batch(actor, f"{pipeline}/{batch}", reason=text(request, "reason")),
        f"Retrying the failed items of {batch}.",
        back=_back(pipeline=pipeline, batch=batch),
        page="batches",
    )


@require_POST
@requires("batch.cancel")
def cancel(request: HttpRequest, pipeline: str, batch: str) -> HttpResponse:
    return act(
        request,
        lambda actor: actions.cancel_batch(actor, f"{pipeline}/{batch}", reason=text(request, "reason")),
        f"Batch {batch} cancelled. Remaining items are dropped within seconds.",
        back=_back(pipeline=pipeline, batch=batch),
        page="batches",
    )


@require_POST
@requires("saga.retry")
def free(request: HttpRequest, saga: str, key: str) -> HttpResponse:
    return act(
        request,
        lambda actor: actions.free_saga(actor, f"{saga}/{key}", reason=text(request, "reason")),
        f"Retrying the rollback of {key}.",
        back=_back(saga=saga, key=key),
        page="batches",
    )


def _back(**values: str) -> str:
    return f"{reverse('batches')}?{query_of(**values)}#detail"
