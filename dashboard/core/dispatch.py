"""Acts named by a frame or a request."""

from __future__ import annotations

import math
from typing import Any, cast

import msgspec

from dashboard.core import audit
from dashboard.core.audit import ActionFailed, Denied
from dashboard.core.pages import registry
from dashboard.core.permissions import Actor


def by_name(actor: Actor, action: str, target: str, options: dict[str, Any]) -> Any:
    """Do what a frame or request names. An unknown action is denied, and in the audit."""
    act = registry().acts.get(action)
    if act is None:
        audit.denied(actor, action, target, reason=str(options.get("reason", "")))
        raise Denied(f"Unknown action {action[:64]!r}.")
    return msgspec.to_builtins(act(actor, target, options))


def number_option(options: dict[str, Any], name: str) -> float | None:
    """An option as a number; None if it was not given."""
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
