"""Acts named by a frame or a request."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import msgspec

from dashboard.batches.actions import cancel_batch, free_saga, retry_batch
from dashboard.core import audit
from dashboard.core.audit import ActionFailed, Denied
from dashboard.core.permissions import Actor
from dashboard.gates.actions import create_gate, leash, unleash
from dashboard.queues.actions import clear_queue, create_queue, delete_queue, put_message, requeue_poison
from dashboard.workers.actions import break_lease, step_down, worker_command


def by_name(actor: Actor, action: str, target: str, options: dict[str, Any]) -> Any:
    """Do what a frame or request names. An unknown action is denied, and in the audit."""
    reason = str(options.get("reason", ""))
    simple: dict[str, Callable[..., Any]] = {
        "gate.close": leash,
        "gate.create": create_gate,
        "queue.create": create_queue,
        "queue.clear": clear_queue,
        "queue.delete": delete_queue,
        "queue.requeue": requeue_poison,
        "batch.cancel": cancel_batch,
        "batch.retry": retry_batch,
        "saga.retry": free_saga,
        "leader.step_down": step_down,
        "leader.break": break_lease,
    }
    alias = {"unleash": "gate.open", "leash": "gate.close"}
    name = alias.get(action, action)
    done: Any = None
    if name == "gate.open":
        at, until, share = (_number(options, name) for name in ("at", "until", "share"))
        done = unleash(
            actor, target, reason=reason, at=at, until=until, share=1.0 if share is None else share
        )
    elif name in simple:
        done = simple[name](actor, target, reason=reason)
    elif name.startswith("worker."):
        worker_command(actor, target, name.removeprefix("worker."), reason=reason)
    elif name == "queue.put":
        put_message(actor, target, str(options.get("body", "")), reason=reason)
    else:
        audit.denied(actor, name, target, reason=reason)
        raise Denied(f"Unknown action {name[:64]!r}.")
    return msgspec.to_builtins(done)


def _number(options: dict[str, Any], name: str) -> float | None:
    value = options.get(name)
    if value in (None, ""):
        return None
    try:
        number = float(cast(Any, value))
    except (TypeError, ValueError, OverflowError) as error:
        raise ActionFailed(f"{name} must be a number, not {str(value)[:40]!r}.") from error
    if not math.isfinite(number):
        raise ActionFailed(f"{name} must be a finite number.")
    return number
