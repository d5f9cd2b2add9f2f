"""What keeps each table of the dashboard's database from growing for ever, and the part of it that is done once an hour."""

from __future__ import annotations

import datetime
import json
import time

from allauth.usersessions.models import UserSession
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from dashboard.core.audit import ActionFailed, audited
from dashboard.core.audit_chain import PRUNE
from dashboard.core.permissions import Actor
from dashboard.models import (
    Alert,
    AlertDelivery,
    AlertSilence,
    AuditHead,
    AuditRow,
    BulkAct,
    PoisonMessage,
    WorkerToken,
)

DEAD_TOKENS = datetime.timedelta(days=90)
DAY_SECONDS = 86400.0
ALERT_DAYS = BULK_DAYS = 30
POISON_SECONDS = 3600.0


# Model -> what bounds it. A test holds this against the models there are.
BOUNDS = {
    "dashboard.AuditRow": "its retention: KENNEL_AUDIT_DAYS, manage.py audit prune",
    "dashboard.AuditHead": "one row",
    "dashboard.WorkerToken": "remove_expired: 90 days after it was revoked or has expired",
    "dashboard.TeamRule": "people",
    "dashboard.SignInTries": "trimmed with each wrong try",
    "dashboard.ApiAnswer": "trimmed with each new one: a day",
    "dashboard.WebhookMark": "as many as addresses in KENNEL_WEBHOOKS",
    "dashboard.GatePeak": "as many as gates there ever were in storage",
    "dashboard.PastWorker": "housekeeping: 30 days after it was last seen, and 20,000",
    "dashboard.LastIssued": "housekeeping: 400 days after its process was last seen, and 100,000",
    "dashboard.PastRelease": "housekeeping: 30 days after it last changed",
    "dashboard.PoisonMessage": "an hour after it was read, and 20,000 a queue",
    "dashboard.BulkAct": "housekeeping: 30 days after it began",
    "dashboard.SavedView": "people, and 50 each",
    "dashboard.Pricing": "one row",
    "dashboard.Tally": "housekeeping: a day by minute, a month by hour and by day, and 2,000 listeners",
    "dashboard.TallyMark": "housekeeping: 31 days after its process reported work",
    "dashboard.AlertChannel": "people",
    "dashboard.AlertRule": "people",
    "dashboard.AlertSilence": "remove_expired: when it has ended",
    "dashboard.Alert": "remove_expired: 30 days after it was resolved",
    "dashboard.AlertDelivery": "with its alert; tests of channels: remove_expired after 30 days",
    "dashboard.Series": "trimmed by the sampler: when it has no chunk any more",
    "dashboard.Chunk": "trimmed by the sampler: an hour, a day, a month by level",
    "dashboard.LedgerBook": "as many as sequences",
    "dashboard.LedgerOwner": "as many as owners in the ledger in storage",
    "dashboard.LedgerRow": "as many as rows of the ledger in storage",
    "sessions.Session": "remove_expired: when it has expired",
    "usersessions.UserSession": "remove_expired: with its session",
    "auth.User": "people",
    "auth.Group": "people",
    "auth.Permission": "as many as models",
    "contenttypes.ContentType": "as many as models",
    "account.EmailAddress": "people",
    "account.EmailConfirmation": "people",
    "socialaccount.SocialApp": "people",
    "socialaccount.SocialAccount": "people",
    "socialaccount.SocialToken": "people",
    "mfa.Authenticator": "people",
}


def remove_expired() -> int:
    """Remove sessions that have expired and tokens that are long dead (the audit remembers them); returns how many rows."""
    now = timezone.now()
    sessions, _ = Session.objects.filter(expire_date__lt=now).delete()
    living = Session.objects.values("session_key")
    gone, _ = UserSession.objects.exclude(session_key__in=living).delete()
    dead = Q(revoked_at__lt=now - DEAD_TOKENS) | Q(expires_at__lt=now - DEAD_TOKENS)
    tokens, _ = WorkerToken.objects.filter(dead).delete()
    oldest = time.time() - ALERT_DAYS * DAY_SECONDS
    AlertSilence.objects.filter(until__lt=time.time()).delete()
    Alert.objects.filter(resolved_at__lt=oldest).delete()
    AlertDelivery.objects.filter(alert=None, at__lt=oldest).delete()
    PoisonMessage.objects.filter(read_at__lt=time.time() - POISON_SECONDS).delete()
    BulkAct.objects.filter(started_at__lt=time.time() - BULK_DAYS * DAY_SECONDS).delete()
    return int(sessions + gone + tokens)


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
