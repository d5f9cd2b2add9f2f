"""Alerts: from the fleet to rows in the database, and what is to be sent of them.

1. A condition that begins to hold gets a row, pending. The database allows one open row for each rule and subject, so two
   processes that look at the same moment make one.
2. When it has held for the rule's time, the row fires. One that ends before is removed.
3. A firing row that is neither silenced nor acknowledged is marked as notified, and in the same transaction a delivery is
   queued for each channel. The process that marks it queues; a second one finds it marked.
4. When the condition has not held for the rule's quiet time, the row is resolved, and in the same transaction the channels
   that heard of it are queued a second delivery.
5. An unknown figure neither fires nor resolves. A process that has just started resolves nothing: it has not heard of everybody.

All state is in rows: a restart between two steps goes on with the next. The numbers are repeated at the lines that do it.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction
from django.db.models import F

from dashboard.core.permissions import matches
from dashboard.live.alert_figures import Reading, find
from dashboard.live.fleet import AlertView, Fleet
from dashboard.models import Alert, AlertDelivery, AlertRule, AlertSilence

UNSEEN_SECONDS = 30.0
"""A pending condition that nobody has looked at for so long begins again."""
NOTED_SECONDS = 5.0
YOUNG_SECONDS = 15.0
MOST_SHOWN = 200


def evaluate(fleet: Fleet, *, may_resolve: bool = True) -> int:
    """One look at all rules; returns how many deliveries were queued. Blocking. `may_resolve`: this process knows all (5)."""
    rules = list(AlertRule.objects.filter(enabled=True))
    open_alerts: dict[int, dict[str, Alert]] = {}
    for alert in Alert.objects.filter(resolved_at=None):
        if alert.rule_id is not None:
            open_alerts.setdefault(alert.rule_id, {})[alert.subject] = alert
    now, queued = fleet.taken_at, 0
    for rule in rules:
        mine = open_alerts.pop(rule.pk, {})
        found = find(rule, fleet, mine)
        for subject, reading in found.holding.items():
            queued += _holds(rule, mine.get(subject), reading, now)
        if may_resolve and not found.all_unknown:
            for subject, alert in mine.items():
                if subject not in found.holding and subject not in found.unknown:
                    queued += _ended(rule, alert, now)
    return queued


def _holds(rule: AlertRule, alert: Alert | None, reading: Reading, now: float) -> int:
    if alert is None:
        made = Alert(
            rule=rule,
            rule_name=rule.name,
            subject=reading.subject,
            what=reading.what,
            level=reading.level or rule.level,
            url=reading.url,
            since=now,
            seen_at=now,
        )
        Alert.objects.bulk_create([made], ignore_conflicts=True)  # (1)
        alert = Alert.objects.filter(rule=rule, subject=reading.subject, resolved_at=None).first()
        if alert is None:
            return 0
    rows = Alert.objects.filter(pk=alert.pk, resolved_at=None)
    if alert.fired_at is None:
        if now - alert.seen_at > UNSEEN_SECONDS:
            rows.filter(fired_at=None).update(since=now, seen_at=now)
            return 0
        if now - alert.since < rule.for_seconds:
            if now - alert.seen_at > NOTED_SECONDS:
                rows.update(seen_at=now)
            return 0
        rows.filter(fired_at=None).update(fired_at=now, seen_at=now, what=reading.what)  # (2)
    elif alert.clear_since is not None:
        rows.update(clear_since=None)
    if alert.notified or alert.acknowledged_at is not None or is_silenced(rule, reading.subject, now):
        return 0
    return _notify(rule, alert.pk, now)


def _notify(rule: AlertRule, alert_id: int, now: float) -> int:
    with transaction.atomic():  # (3)
        if not Alert.objects.filter(pk=alert_id, notified=False, resolved_at=None).update(notified=True):
            return 0
        channels = list(rule.channels.values_list("pk", flat=True))
        return _queue(alert_id, channels, "fired", now)


def _ended(rule: AlertRule, alert: Alert, now: float) -> int:
    rows = Alert.objects.filter(pk=alert.pk, resolved_at=None)
    if alert.fired_at is None:
        rows.filter(fired_at=None).delete()  # (2)
        return 0
    if alert.clear_since is None and rule.clear_seconds > 0:
        rows.update(clear_since=now)
        return 0
    if now - (alert.clear_since or now) < rule.clear_seconds:
        return 0
    return resolve(alert, now)


def resolve(alert: Alert, now: float) -> int:
    """Resolve it (4); returns how many deliveries were queued."""
    with transaction.atomic():
        if not Alert.objects.filter(pk=alert.pk, resolved_at=None).update(resolved_at=now):
            return 0
        channels = AlertDelivery.objects.filter(alert=alert, event="fired").values_list(
            "channel_id", flat=True
        )
        return _queue(alert.pk, list(channels), "resolved", now)


def _queue(alert_id: int, channels: Iterable[int], event: str, at: float) -> int:
    rows = [
        AlertDelivery(
            key=f"alert-{alert_id}-{event}-{pk}", alert_id=alert_id, channel_id=pk, event=event, at=at
        )
        for pk in channels
    ]
    AlertDelivery.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def is_silenced(rule: AlertRule, subject: str, now: float) -> bool:
    """Whether nothing is sent for it now."""
    silences = AlertSilence.objects.filter(rule=rule, until__gt=now).values_list("names", flat=True)
    return any(matches(names, subject) for names in silences)


def firing() -> tuple[AlertView, ...]:
    """The alerts that fire, the unacknowledged first, the newest first."""
    rows = Alert.objects.filter(resolved_at=None, fired_at__isnull=False)
    rows = rows.order_by(F("acknowledged_at").asc(nulls_first=True), "-fired_at")[:MOST_SHOWN]
    return tuple(
        AlertView(
            id=row.pk,
            rule=row.rule_name,
            subject=row.subject,
            what=row.what,
            level=row.level,
            since=row.since,
            fired_at=row.fired_at or row.since,
            url=row.url,
            acknowledged_by=row.acknowledged_by,
            acknowledged_at=row.acknowledged_at,
        )
        for row in rows
    )


def quick_look_wanted() -> bool:
    """Whether somebody is to be notified by a rule: then storage is sampled more often while nobody looks."""
    return AlertRule.objects.filter(enabled=True, channels__isnull=False).exists()
