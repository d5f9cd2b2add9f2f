"""Cancelling batches, trying again what failed in them, and freeing sagas that are stuck."""

from __future__ import annotations

import json

from coordinator.errors import NotFound
from coordinator.pipelines.azure import batch_control
from coordinator.pipelines.messages import Head
from coordinator.tables.azure import mark_saga_repaired, retry_saga
from dashboard.core.audit import ActionFailed, audited
from dashboard.core.permissions import Actor
from dashboard.hub.runtime import call, current, storage


def cancel_batch(actor: Actor, target: str, *, reason: str = "") -> None:
    """Stop the batch ``pipeline/batch`` for good; what is on its way is dropped within seconds."""
    with audited(actor, "batch.cancel", target, reason) as act:
        pipeline, batch = _two(target, "a pipeline and a batch")

        async def cancel() -> Head:
            return await (await batch_control(storage(), pipeline, batch)).cancel(batch)

        try:
            before = call(cancel)
        except NotFound as error:
            raise ActionFailed(f"Batch {batch} of {pipeline} does not exist.") from error
        act.before, act.after = json.dumps({"state": before.state}), json.dumps({"state": "cancelled"})
        current().look_again()


def retry_batch(actor: Actor, target: str, *, reason: str = "") -> int:
    """Have the failed items of the batch ``pipeline/batch`` processed again; returns how many."""
    with audited(actor, "batch.retry", target, reason) as act:
        pipeline, batch = _two(target, "a pipeline and a batch")

        async def retry() -> int:
            return await (await batch_control(storage(), pipeline, batch)).retry_failed(batch)

        try:
            items = call(retry)
        except NotFound as error:
            raise ActionFailed(f"Batch {batch} of {pipeline} does not exist.") from error
        act.after = json.dumps({"retried": items})
        current().look_again()
    return items


def free_saga(actor: Actor, target: str, *, reason: str = "") -> None:
    """Have the stuck saga ``name/key`` go on: undoing its steps, or with them if only they did not fit."""
    with audited(actor, "saga.retry", target, reason) as act:
        name, key = _two(target, "a saga and a key")

        async def retry() -> str:
            return await retry_saga(storage(), name, key, by=actor.name)

        try:
            state = call(retry)
        except NotFound as error:
            raise ActionFailed(f"Saga {name} with key {key} does not exist.") from error
        act.before, act.after = json.dumps({"state": "stuck"}), json.dumps({"state": state})
        current().look_again()


def repair_saga(actor: Actor, target: str, step: str, *, reason: str = "") -> None:
    """Count a step of the stuck saga ``name/key`` as undone, which somebody has undone by hand. Twice is refused."""
    with audited(actor, "saga.repair", target, reason) as act:
        name, key = _two(target, "a saga and a key")

        async def repair() -> str:
            return await mark_saga_repaired(storage(), name, key, step, by=actor.name)

        try:
            state = call(repair)
        except NotFound as error:
            raise ActionFailed(f"Saga {name} with key {key} does not exist.") from error
        act.before, act.after = json.dumps({"stuck_on": step}), json.dumps({"undone": step, "state": state})
        current().look_again()


def _two(target: str, what: str) -> tuple[str, str]:
    """Neither half can hold a slash: keys of tables cannot."""
    first, _slash, second = target.partition("/")
    if not first or not second or "/" in second:
        raise ActionFailed(f"Name {what}, with a slash between them, not {target[:80]!r}.")
    return first, second
