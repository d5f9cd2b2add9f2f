"""Who acts, and the frame of every act: permission and audit intent before it, audit outcome after it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import InterfaceError, OperationalError

from coordinator.errors import KennelError
from dashboard.audit import log as audit
from dashboard.core import teams as scoping
from dashboard.core.actor import Actor
from dashboard.core.permissions import ACTIONS, FRESH, role_may
from dashboard.models import Outcome

log = logging.getLogger(__name__)

MAX_REASON = 500
CONFIRM_PATH = "/accounts/confirm/"


class ActionFailed(Exception):
    """The act was not done, or it is not known whether it was; the text says which and what to do."""


class Denied(ActionFailed):
    """The actor may not do this."""


class Act:
    """What an action tells the audit."""

    before = ""
    after = ""


@contextmanager
def audited(actor: Actor, action: str, target: str, reason: str = "") -> Iterator[Act]:
    """Permission and intent before the block, outcome after it."""
    if len(reason) > MAX_REASON:
        raise ActionFailed(f"The reason has {len(reason)} characters; at most {MAX_REASON} are kept.")
    if not role_may(actor.role, action, target, actor.teams):
        audit.denied(actor, action, target, reason=reason)
        needed = ACTIONS.get(action, "nobody")
        whose = scoping.whose(action.partition(".")[0], target)
        of = f", in the team {' or '.join(whose)} that {target} belongs to" if whose else ""
        raise Denied(f"{actor.name} may not do this: {action} needs the role {needed}{of}.")
    if action in FRESH and not actor.fresh:
        audit.denied(actor, action, target, reason=reason)
        raise Denied(f"Your sign-in is too long ago for this: confirm it at {CONFIRM_PATH}, then try again.")
    try:
        row = audit.intent(actor, action, target, reason=reason)
    except (OperationalError, InterfaceError) as error:
        raise ActionFailed(
            "Nothing was done: the dashboard's database is busy or away. Try again in a few seconds."
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
        hint = "It may have been carried out all the same: look again before you repeat it."
        told = _sentence(str(error))
        raise ActionFailed(f"{told} {hint}" if maybe else told) from error
    except Exception as error:
        audit.settle(row, Outcome.UNKNOWN, before=act.before, after=type(error).__name__)
        log.exception("%s of %s failed", action, target)
        raise ActionFailed("Something went wrong inside the dashboard; see its log.") from error
    audit.settle(row, Outcome.DONE, before=act.before, after=act.after)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
