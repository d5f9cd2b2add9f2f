"""What people do about alerts: rules and channels for administrators; silences and acknowledgements for operators."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from django.db import transaction

from coordinator.config import check_name
from coordinator.errors import ConfigurationError
from dashboard.core import alert_channels as channels
from dashboard.core.audit import ActionFailed, audited
from dashboard.core.permissions import Actor, Patterns
from dashboard.live import alerting
from dashboard.live.alert_figures import FIGURES, LEVELS
from dashboard.models import Alert, AlertChannel, AlertDelivery, AlertRule, AlertSilence

MOST_RULES, MOST_CHANNELS, MOST_SILENCES = 100, 50, 200
LONGEST_SECONDS = 7 * 86_400.0
LONGEST_SILENCE = 30 * 86_400.0


class RuleForm(NamedTuple):
    """A rule as somebody wants it."""

    figure: str
    value: float
    below: bool = False
    for_seconds: float = 0.0
    clear_seconds: float = 60.0
    names: str = "*"
    level: str = "warning"
    enabled: bool = True
    channels: tuple[str, ...] = ()


def save_rule(actor: Actor, name: str, form: RuleForm, *, reason: str = "") -> None:
    """Create the rule of that name, or replace it. It counts at the next look."""
    with audited(actor, "alert.rule", name, reason) as act:
        _named("rule", name)
        check_rule(form)
        with transaction.atomic():
            rule = AlertRule.objects.filter(name=name).first()
            if rule is None and AlertRule.objects.count() >= MOST_RULES:
                raise ActionFailed(f"There are {MOST_RULES} rules already; delete one first.")
            act.before = described(rule) if rule else ""
            wanted = list(AlertChannel.objects.filter(name__in=form.channels))
            if missing := set(form.channels) - {each.name for each in wanted}:
                raise ActionFailed(f"Channel {min(missing)[:48]!r} does not exist.")
            values = form._asdict() | {"by": actor.name, "at": time.time()}
            del values["channels"]
            rule, _ = AlertRule.objects.update_or_create(name=name, defaults=values)
            rule.channels.set(wanted)
            if not rule.enabled:
                _resolve(rule)
        act.after = described(rule)


def check_rule(form: RuleForm) -> None:
    """Raise `ActionFailed` with what is wrong, if anything is."""
    if form.figure not in FIGURES:
        raise ActionFailed(f"A rule watches one of {', '.join(FIGURES)}, not {form.figure[:40]!r}.")
    if form.level not in LEVELS:
        raise ActionFailed("A level is warning or critical.")
    if not math.isfinite(form.value):
        raise ActionFailed("The value is not a number.")
    for what, seconds in (("time", form.for_seconds), ("quiet time", form.clear_seconds)):
        if not 0 <= seconds <= LONGEST_SECONDS:
            raise ActionFailed(f"The {what} of a rule is 0 to 604,800 seconds (7 days).")
    check_patterns(form.names)


def check_patterns(names: str) -> None:
    """Raise `ActionFailed` unless these are patterns."""
    try:
        msgspec.convert(names, Patterns)
    except msgspec.ValidationError:
        raise ActionFailed(
            "Names are patterns such as orders-*, with single spaces between several."
        ) from None


def delete_rule(actor: Actor, name: str, *, reason: str = "") -> None:
    """Take the rule away; its alerts are resolved."""
    with audited(actor, "alert.rule", name, reason) as act:
        rule = found_rule(name)
        act.before = described(rule)
        _resolve(rule)
        rule.delete()


def _resolve(rule: AlertRule) -> None:
    now = time.time()
    for alert in Alert.objects.filter(rule=rule, resolved_at=None):
        if alert.fired_at is None:
            alert.delete()
        else:
            alerting.resolve(alert, now)


def save_channel(actor: Actor, name: str, kind: str, address: str, *, reason: str = "") -> str:
    """Create the channel of that name, or give it another address; returns the secret that webhooks are signed with.

    The secret is returned here alone. Address and secret are in neither audit nor log.
    """
    with audited(actor, "alert.channel", name, reason) as act:
        _named("channel", name)
        try:
            address = channels.checked(kind, address)
        except channels.Refused as error:
            raise ActionFailed(str(error)) from error
        old = AlertChannel.objects.filter(name=name).first()
        if old is None and AlertChannel.objects.count() >= MOST_CHANNELS:
            raise ActionFailed(f"There are {MOST_CHANNELS} channels already; delete one first.")
        secret = channels.new_secret() if kind == "webhook" else ""
        act.before = str(old) if old else ""
        row, _ = AlertChannel.objects.update_or_create(
            name=name,
            defaults={
                "kind": kind,
                "address": channels.sealed(address),
                "secret": channels.sealed(secret),
                "shown": channels.shown(kind, address),
                "by": actor.name,
                "at": time.time(),
            },
        )
        act.after = str(row)
        return secret


def delete_channel(actor: Actor, name: str, *, reason: str = "") -> None:
    """Take the channel away, and what was still to be sent to it."""
    with audited(actor, "alert.channel", name, reason) as act:
        channel = found_channel(name)
        act.before = str(channel)
        channel.delete()


def try_channel(actor: Actor, name: str, *, reason: str = "") -> None:
    """Send a test through the channel, as alerts are sent."""
    with audited(actor, "alert.test", name, reason):
        channel, now = found_channel(name), time.time()
        if AlertDelivery.objects.filter(channel=channel, alert=None, at__gt=now - 60).count() >= 5:
            raise ActionFailed("Five tests were sent within the last minute; wait a little.")
        key = f"test-{channel.pk}-{time.time_ns()}"
        AlertDelivery.objects.create(key=key, channel=channel, event="test", at=now)


def acknowledge(actor: Actor, alert_id: int, *, reason: str = "") -> None:
    """Somebody sees to it: it counts no more in the title, and nothing more is sent until it is resolved."""
    row = Alert.objects.filter(pk=alert_id, fired_at__isnull=False).first()
    with audited(actor, "alert.acknowledge", str(row) if row else f"#{alert_id}", reason) as act:
        if row is None or row.resolved_at is not None:
            raise ActionFailed("This alert does not fire any more.")
        if row.acknowledged_at is not None:
            raise ActionFailed(f"{row.acknowledged_by} has acknowledged this alert already.")
        mine = Alert.objects.filter(pk=row.pk, acknowledged_at=None)
        if mine.update(acknowledged_at=time.time(), acknowledged_by=actor.name):
            act.after = json.dumps({"what": row.what})


def silence(actor: Actor, rule_name: str, seconds: float, *, names: str = "*", reason: str = "") -> int:
    """Send nothing for what the patterns of a rule cover, for so long; what still fires then is sent. Returns its id."""
    with audited(actor, "alert.silence", rule_name, reason) as act:
        rule = found_rule(rule_name)
        check_patterns(names)
        if not 60 <= seconds <= LONGEST_SILENCE:
            raise ActionFailed("A silence takes 1 minute to 30 days.")
        if AlertSilence.objects.filter(until__gt=time.time()).count() >= MOST_SILENCES:
            raise ActionFailed(f"There are {MOST_SILENCES} silences already; end one first.")
        row = AlertSilence.objects.create(
            rule=rule, names=names, until=time.time() + seconds, by=actor.name, reason=reason
        )
        act.after = json.dumps({"names": names, "until": row.until})
        return int(row.pk)


def end_silence(actor: Actor, silence_id: int, *, reason: str = "") -> None:
    """End it now."""
    row = AlertSilence.objects.select_related("rule").filter(pk=silence_id).first()
    with audited(actor, "alert.silence", row.rule.name if row else f"#{silence_id}", reason) as act:
        if row is None:
            raise ActionFailed("This silence has ended.")
        act.before = json.dumps({"names": row.names, "until": row.until})
        row.delete()


def found_rule(name: str) -> AlertRule:
    """The rule; raises `ActionFailed`."""
    row = AlertRule.objects.filter(name=name).first()
    if row is None:
        raise ActionFailed(f"Rule {name[:48]!r} does not exist.")
    return row


def found_channel(name: str) -> AlertChannel:
    """The channel; raises `ActionFailed`."""
    row = AlertChannel.objects.filter(name=name).first()
    if row is None:
        raise ActionFailed(f"Channel {name[:48]!r} does not exist.")
    return row


def form_of(rule: AlertRule) -> RuleForm:
    """The rule as its form has it."""
    values: dict[str, Any] = {name: getattr(rule, name) for name in RuleForm._fields if name != "channels"}
    names: Iterable[str] = rule.channels.order_by("name").values_list("name", flat=True)
    return RuleForm(**values, channels=tuple(names))


def described(rule: AlertRule) -> str:
    """The rule as the audit has it."""
    return json.dumps(form_of(rule)._asdict())


def _named(kind: str, name: str) -> None:
    try:
        check_name(kind, name)
    except ConfigurationError as error:
        raise ActionFailed(str(error)) from error
