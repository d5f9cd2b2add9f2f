"""Removing what is old from the audit so that the rest still proves itself."""

from __future__ import annotations

import json
import time

from django.db import transaction

from dashboard.audit.log import PRUNE
from dashboard.core.actions import ActionFailed, audited
from dashboard.core.actor import Actor
from dashboard.models import AuditHead, AuditRow

DAY_SECONDS = 86400.0
AT_ONCE = 10_000


def prune_audit(actor: Actor, keep_days: float, *, reason: str = "", at_once: int = AT_ONCE) -> int:
    """Remove the rows older than `keep_days` (at least 1), the oldest `at_once` first; returns how many went.

    The chain goes on: the act's own row holds the id and digest of the last row that went, which is what `audit verify`
    asks of a chain that does not start at #1. Row and removal are one transaction: there is never one without the other.
    """
    if not keep_days >= 1:
        raise ActionFailed("The audit is kept for at least 1 day.")
    removed = 0
    while gone := _prune(actor, time.time() - keep_days * DAY_SECONDS, reason, at_once):
        removed += gone
    return removed


@transaction.atomic
def _prune(actor: Actor, before: float, reason: str, at_once: int) -> int:
    AuditHead.objects.select_for_update().get(pk=1)  # of two processes, one does it
    first = AuditRow.objects.order_by("pk").values_list("pk", flat=True).first()
    if first is None:
        return 0
    kept = AuditRow.objects.filter(at__gte=before).order_by("pk").values_list("pk", flat=True).first()
    newest = AuditRow.objects.order_by("-pk").values_list("pk", flat=True)[0]
    last = min((kept if kept is not None else newest + 1) - 1, first + at_once - 1)
    if last < first:
        return 0
    end = AuditRow.objects.get(pk=last)
    with audited(actor, PRUNE, f"#{first} to #{last}", reason) as act:
        gone, _ = AuditRow.objects.filter(pk__lte=last).delete()
        act.after = json.dumps({"last": last, "digest": end.digest, "count": gone})
    return gone
