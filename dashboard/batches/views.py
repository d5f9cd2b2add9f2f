"""Batches and sagas: how they go, what failed; retry, cancel."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.batches import actions
from dashboard.batches import queries as work
from dashboard.pages.views import act, confirm, is_confirmed, query_of, requires, show, text


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


@require_http_methods(["GET", "HEAD", "POST"])
@requires("saga.repair")
def repair(request: HttpRequest, saga: str, key: str) -> HttpResponse:
    """Asks for the name of the step that the saga is stuck on, then counts it as undone."""
    back = _back(saga=saga, key=key)
    step = work.stuck_step(saga, key)
    if not step:
        messages.error(request, f"Nothing changed: {key} is not stuck on a step to undo.")
        return redirect(back)
    if is_confirmed(request, step):
        return act(
            request,
            lambda actor: actions.repair_saga(actor, f"{saga}/{key}", step, reason=text(request, "reason")),
            f"Step {step} of {key} counts as undone.",
            back=back,
        )
    return confirm(
        request,
        step,
        title=f"Mark {step} repaired?",
        verb="Mark repaired",
        back=back,
        consequences=(
            f"Step {step} of {key} counts as undone: its compensation is not called again.",
            "The steps before it are rolled back next.",
            f"Undo by hand what {step} did before you confirm. Kennel cannot check it.",
        ),
    )


def _back(**values: str) -> str:
    return f"{reverse('batches')}?{query_of(**values)}#detail"
