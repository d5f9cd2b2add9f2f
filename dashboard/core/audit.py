"""The audit: what is written of an act, before and after it, and why one was not done, in words for the user who asked for it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.db import IntegrityError, InterfaceError, OperationalError, transaction
from django.db.models import Exists, OuterRef, Q, Subquery
from django.db.models.lookups import IsNull

from coordinator.errors import KennelError
from dashboard.core.permissions import FRESH, Actor, decide
from dashboard.models import AuditHead, AuditOutcome, AuditRow


class ActionFailed(Exception):
    """The act was not done, or it is not known whether it was; the text says which and what to do."""


class Denied(ActionFailed):
    """The actor may not do this."""


log = logging.getLogger(__name__)
UNKNOWN_AFTER_SECONDS = 120.0
MOST_CHARACTERS = 500
syslog = logging.getLogger("kennel.audit")

FIELDS = (
    "id", "at", "actor", "address", "action", "target", "before", "after", "reason", "outcome", "request_id", "intent_id",
)  # fmt: skip


# Whether an act has its outcome is known by the row of that alone: a mark on the intent is not in its digest.
HAS_OUTCOME = Exists(AuditRow.objects.filter(intent_id=OuterRef("pk")))
# The same for a few rows out of many: of EXISTS beside OR, PostgreSQL would first collect all outcomes there are.
_OUTCOME = Subquery(AuditRow.objects.filter(intent_id=OuterRef("pk")).values("pk")[:1])
_unsettled: deque[tuple[AuditRow, AuditOutcome, str, str]] = deque(maxlen=1000)


def intent(actor: Actor, action: str, target: str, *, reason: str = "", before: str = "") -> AuditRow:
    """Write down what is about to be done."""
    return _append(actor, action, target, AuditOutcome.INTENT, reason=reason, before=before)


def outcome(row: AuditRow, result: AuditOutcome, *, before: str = "", after: str = "") -> AuditRow:
    """Write down what became of an intent."""
    values = _values(row) | {
        "before": before or row.before,
        "after": after,
        "outcome": result,
        "intent_id": row.pk,
    }
    try:
        return _write(values)
    except IntegrityError:
        # It was reconciled as unknown meanwhile: that row stays, and the truth comes after it.
        return _write(values | {"intent_id": None})


def settle(row: AuditRow, result: AuditOutcome, *, before: str = "", after: str = "") -> None:
    """`outcome` for an act that is over: if the database does not take it now, `reconcile` writes it later.

    The act was done or failed by then, and its person must learn that, not how the record fared.
    """
    try:
        outcome(row, result, before=before, after=after)
    except (OperationalError, InterfaceError) as error:
        log.warning("The outcome of #%d is written later: %s", row.pk, type(error).__name__)
        _unsettled.append((row, result, before, after))


def denied(actor: Actor, action: str, target: str, *, reason: str = "") -> AuditRow:
    """Write down an attempt that was not allowed."""
    return _append(actor, action, target, AuditOutcome.DENIED, reason=reason)


def noted(actor: Actor, action: str, target: str, *, after: str = "") -> AuditRow:
    """Write down what happened without anybody's act: a worker was refused, say."""
    return _append(
        actor,
        action,
        target,
        AuditOutcome.DENIED if action.endswith(".refused") else AuditOutcome.DONE,
        after=after,
    )


def reconcile() -> int:
    """Give an outcome of *unknown* to intents that a crash left without one; returns how many.

    First come the outcomes that are known and could not be written before.
    """
    while _unsettled:
        row, result, before, after = _unsettled[0]
        outcome(row, result, before=before, after=after)
        _unsettled.popleft()
    stale = AuditRow.objects.filter(
        ~HAS_OUTCOME, outcome=AuditOutcome.INTENT, at__lt=time.time() - UNKNOWN_AFTER_SECONDS
    )
    rows = list(stale)
    closed = 0
    for row in rows:
        text = "the dashboard ended before the outcome was known"
        values = _values(row) | {"after": text, "outcome": AuditOutcome.UNKNOWN, "intent_id": row.pk}
        with contextlib.suppress(IntegrityError):  # another process was faster
            _write(values)
            closed += 1
    return closed


def shown() -> Any:
    """The rows people see: outcomes, denials, and intents that have no outcome yet."""
    return AuditRow.objects.filter(~Q(outcome=AuditOutcome.INTENT) | Q(IsNull(_OUTCOME, True)))


def head() -> tuple[int, str]:
    """The newest row's id and digest: what to keep elsewhere."""
    row = AuditHead.objects.filter(pk=1).first()
    return (row.last_id, row.digest) if row is not None else (0, "")


def digest(values: dict[str, Any], previous: str) -> str:
    """The hash of a row's content and the hash before it."""
    content = json.dumps(
        [previous, *(values[name] for name in FIELDS)], ensure_ascii=True, separators=(",", ":")
    )
    return hashlib.sha256(content.encode()).hexdigest()


def _append(
    actor: Actor,
    action: str,
    target: str,
    result: AuditOutcome,
    *,
    reason: str = "",
    before: str = "",
    after: str = "",
) -> AuditRow:
    return _write(
        {
            "actor": actor.name[:150],
            "address": actor.address[:64],
            "action": action[:64],
            "target": target[:200],
            "before": before,
            "after": after,
            "reason": reason[:2000],
            "outcome": result,
            "request_id": actor.request_id[:64],
            "intent_id": None,
        }
    )


def _write(values: dict[str, Any]) -> AuditRow:
    with transaction.atomic():
        # Writers queue up here, also those of other processes: the chain has one end.
        end = AuditHead.objects.select_for_update().get(pk=1)
        values |= {"id": end.last_id + 1, "at": time.time(), "outcome": str(values["outcome"])}
        row = AuditRow(**values, previous=end.digest, digest=digest(values, end.digest))
        row.save(force_insert=True)
        end.last_id, end.digest = row.pk, row.digest
        end.save()
        if row.intent_id is not None:
            # For dashboards of the version before, which run beside this one in an upgrade; not read here.
            AuditRow.objects.filter(pk=row.intent_id).update(closed=True)
        transaction.on_commit(partial(_to_syslog, row))
        return row


def _to_syslog(row: AuditRow) -> None:
    """To syslog, if the settings name one: a line of JSON, texts cut to what a datagram takes."""
    if not syslog.handlers:
        return
    values = {
        name: value[:MOST_CHARACTERS] if isinstance(value, str) else value
        for name, value in _values(row).items()
    }
    syslog.info("%s", json.dumps(values | {"id": row.pk, "digest": row.digest}))


def _values(row: AuditRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in FIELDS if name != "id"}


MAX_REASON = 500


class AuditEntry:
    """What an action writes to the audit."""

    before = ""
    after = ""


@contextmanager
def audited(actor: Actor, action: str, target: str, reason: str = "") -> Iterator[AuditEntry]:
    """Permission and intent before the block, outcome after it."""
    if len(reason) > MAX_REASON:
        raise ActionFailed(f"The reason has {len(reason)} characters; at most {MAX_REASON} are kept.")
    permit(actor, action, target, reason=reason)
    try:
        row = intent(actor, action, target, reason=reason)
    except (OperationalError, InterfaceError) as error:
        raise ActionFailed(
            "Nothing changed: the dashboard's database is busy or unavailable. Try again in a few seconds."
        ) from error
    act = AuditEntry()
    try:
        yield act
    except ActionFailed as error:
        settle(row, AuditOutcome.FAILED, before=act.before, after=str(error))
        raise
    except KennelError as error:
        maybe = bool(getattr(error, "maybe_done", False))
        result = AuditOutcome.UNKNOWN if maybe else AuditOutcome.FAILED
        settle(row, result, before=act.before, after=str(error))
        hint = "The action may have been carried out: check before you repeat it."
        said = _sentence(str(error))
        raise ActionFailed(f"{said} {hint}" if maybe else said) from error
    except Exception as error:
        settle(row, AuditOutcome.UNKNOWN, before=act.before, after=type(error).__name__)
        log.exception("%s of %s failed", action, target)
        raise ActionFailed("Something went wrong inside the dashboard; see its log.") from error
    settle(row, AuditOutcome.DONE, before=act.before, after=act.after)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


CONFIRM_PATH = "/accounts/confirm/"


def permit(actor: Actor, action: str, target: str, *, reason: str = "") -> None:
    """Raise `Denied`, and write it to the audit, unless the actor may do this to that by a recent enough sign-in."""
    why = decide(actor, action, target)
    if not why and action in FRESH and not actor.fresh:
        why = f"Your sign-in is too old for this action: confirm it at {CONFIRM_PATH}, then try again."
    if why:
        denied(actor, action, target, reason=reason)
        raise Denied(why)
