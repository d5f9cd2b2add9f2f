"""What keeps each table of the dashboard's database from growing for ever, and the part of it that is done once an hour."""

from __future__ import annotations

import datetime

from allauth.usersessions.models import UserSession
from django.contrib.sessions.models import Session
from django.db.models import Q
from django.utils import timezone

from dashboard.models import WorkerToken

DEAD_TOKENS = datetime.timedelta(days=90)

# Model -> what bounds it. A test holds this against the models there are.
BOUNDS = {
    "dashboard.AuditRow": "its retention: KENNEL_AUDIT_DAYS, manage.py audit prune",
    "dashboard.AuditHead": "one row",
    "dashboard.WorkerToken": "tidy: 90 days after it was revoked or has expired",
    "dashboard.TeamRule": "people",
    "dashboard.SignInTries": "trimmed with each wrong try",
    "dashboard.ApiAnswer": "trimmed with each new one: a day",
    "dashboard.WebhookMark": "as many as addresses in KENNEL_WEBHOOKS",
    "dashboard.GatePeak": "as many as gates there ever were in storage",
    "dashboard.Pricing": "one row",
    "dashboard.Series": "trimmed by the sampler: when it has no chunk any more",
    "dashboard.Chunk": "trimmed by the sampler: an hour, a day, a month by level",
    "dashboard.LedgerBook": "as many as sequences",
    "dashboard.LedgerOwner": "as many as owners in the ledger in storage",
    "dashboard.LedgerRow": "as many as rows of the ledger in storage",
    "sessions.Session": "tidy: when it has expired",
    "usersessions.UserSession": "tidy: with its session",
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


def tidy() -> int:
    """Remove sessions that have expired and tokens that are long dead (the audit remembers them); returns how many rows."""
    now = timezone.now()
    sessions, _ = Session.objects.filter(expire_date__lt=now).delete()
    living = Session.objects.values("session_key")
    gone, _ = UserSession.objects.exclude(session_key__in=living).delete()
    dead = Q(revoked_at__lt=now - DEAD_TOKENS) | Q(expires_at__lt=now - DEAD_TOKENS)
    tokens, _ = WorkerToken.objects.filter(dead).delete()
    return int(sessions + gone + tokens)
