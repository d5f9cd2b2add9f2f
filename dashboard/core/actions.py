"""The frame of every act: permission and audit intent before it, audit outcome after it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import InterfaceError, OperationalError

from coordinator.errors import KennelError
from dashboard.audit import log as audit
from dashboard.core.actor import Actor
from dashboard.core.errors import ActionFailed, Denied
from dashboard.core.guard import permit
from dashboard.models import Outcome

__all__ = ["Act", "ActionFailed", "Denied", "audited"]

log = logging.getLogger(__name__)

MAX_REASON = 500


class Act:
    """What an action writes to the audit."""

    before = ""
    after = ""


@contextmanager
def audited(actor: Actor, action: str, target: str, reason: str = "") -> Iterator[Act]:
    """Permission and intent before the block, outcome after it."""
    if len(reason) > MAX_REASON:
        raise ActionFailed(f"The reason has {len(reason)} characters; at most {MAX_REASON} are kept.")
    permit(actor, action, target, reason=reason)
    try:
        row = audit.intent(actor, action, target, reason=reason)
    except (OperationalError, InterfaceError) as error:
        raise ActionFailed(
            "Nothing changed: the dashboard's database is busy or unavailable. Try again in a few seconds."
        ) from error
    act = Act()
    try:
        yield act
    except ActionFailed as error:
        audit.settle(row, Outcome.FAILED, before=act.before, after=str(error))
        raise
    except KennelError as error:
        maybe = bool(getattr(error, "maybe_done", False))
        result = Outcome.UNKNOWN if maybe else Outcome.FAILED
        audit.settle(row, result, before=act.before, after=str(error))
        hint = "The action may have been carried out: check before you repeat it."
        said = _sentence(str(error))
        raise ActionFailed(f"{said} {hint}" if maybe else said) from error
    except Exception as error:
        audit.settle(row, Outcome.UNKNOWN, before=act.before, after=type(error).__name__)
        log.exception("%s of %s failed", action, target)
        raise ActionFailed("Something went wrong inside the dashboard; see its log.") from error
    audit.settle(row, Outcome.DONE, before=act.before, after=act.after)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
