"""What the Alerts page and the API read."""

from __future__ import annotations

import time

import msgspec
from django.db.models import Q

from dashboard.alerts.actions import RuleForm, form_of
from dashboard.core.permissions import matches
from dashboard.hub.runtime import current
from dashboard.live import alerting
from dashboard.live import history as past
from dashboard.live.alert_figures import FIGURES, AlertFigure, episodes
from dashboard.live.fleet import AlertView
from dashboard.models import Alert, AlertChannel, AlertDelivery, AlertRule, AlertSilence, Series

HISTORY, FAILURES = 50, 20
PREVIEW_SECONDS = 86_400.0
MOST_PREVIEWED = 50


class RuleView(msgspec.Struct, frozen=True, kw_only=True):
    """A rule. It fires for each name that `names` covers whose figure is above (or `below`) the value for `for_seconds`."""

    name: str
    figure: str
    value: float
    below: bool
    for_seconds: float
    clear_seconds: float
    names: str
    level: str
    enabled: bool
    channels: tuple[str, ...]
    by: str

    @property
    def about(self) -> AlertFigure | None:
        """Its figure."""
        return FIGURES.get(self.figure)


class ChannelView(msgspec.Struct, frozen=True, kw_only=True):
    """A channel, without what may be secret. `problem`: why the newest delivery was not taken; "" if it was."""

    name: str
    kind: str
    shown: str
    by: str
    problem: str = ""
    waiting: int = 0


class SilenceView(msgspec.Struct, frozen=True, kw_only=True):
    """A silence that has not ended."""

    id: int
    rule: str
    names: str
    until: float
    by: str
    reason: str


class PastAlert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert that was resolved."""

    id: int
    rule: str
    subject: str
    what: str
    level: str
    fired_at: float
    resolved_at: float
    acknowledged_by: str


class DeliveryView(msgspec.Struct, frozen=True, kw_only=True):
    """A message to a channel that was not taken (yet)."""

    channel: str
    event: str
    what: str
    state: str
    tries: int
    problem: str
    at: float


class Preview(msgspec.Struct, frozen=True):
    """How often a rule would have fired, by name, and how many names were looked at; None if there is no history of it."""

    times: dict[str, int]
    looked_at: int


def firing() -> tuple[AlertView, ...]:
    """The alerts that fire, read now, and from here on shown by this process."""
    alerts = alerting.firing()
    current().fleet_state.show_alerts(alerts)
    return alerts


def rules() -> tuple[RuleView, ...]:
    """All rules by name."""
    rows = AlertRule.objects.prefetch_related("channels").order_by("name")
    return tuple(rule_view(row) for row in rows)


def rule_view(row: AlertRule) -> RuleView:
    """One rule."""
    values = {name: getattr(row, name) for name in RuleView.__struct_fields__ if name != "channels"}
    return RuleView(**values, channels=tuple(sorted(each.name for each in row.channels.all())))


def channels() -> tuple[ChannelView, ...]:
    """All channels by name, with how they do."""
    found = []
    for row in AlertChannel.objects.order_by("name"):
        sent = AlertDelivery.objects.filter(channel=row)
        newest = (
            sent.exclude(state="waiting", tries=0).order_by("-pk").values_list("problem", flat=True).first()
        )
        waiting = sent.filter(state__in=("waiting", "sending")).count()
        found.append(
            ChannelView(
                name=row.name,
                kind=row.kind,
                shown=row.shown,
                by=row.by,
                problem=newest or "",
                waiting=waiting,
            )
        )
    return tuple(found)


def silences() -> tuple[SilenceView, ...]:
    """Those that last, the first to end first."""
    rows = AlertSilence.objects.filter(until__gt=time.time()).select_related("rule").order_by("until")
    return tuple(
        SilenceView(
            id=row.pk, rule=row.rule.name, names=row.names, until=row.until, by=row.by, reason=row.reason
        )
        for row in rows
    )


def history(*, before: int | None = None, limit: int = HISTORY) -> tuple[PastAlert, ...]:
    """The alerts that were resolved within 30 days, the newest first."""
    rows = Alert.objects.filter(resolved_at__isnull=False, fired_at__isnull=False)
    if before is not None:
        rows = rows.filter(pk__lt=before)
    return tuple(
        PastAlert(
            id=row.pk,
            rule=row.rule_name,
            subject=row.subject,
            what=row.what,
            level=row.level,
            fired_at=row.fired_at or row.since,
            resolved_at=row.resolved_at or row.since,
            acknowledged_by=row.acknowledged_by,
        )
        for row in rows.order_by("-pk")[:limit]
    )


def failures() -> tuple[DeliveryView, ...]:
    """The newest deliveries that failed, or that were refused and are tried again."""
    rows = AlertDelivery.objects.filter(Q(state="failed") | Q(state__in=("waiting", "sending"), tries__gt=0))
    rows = rows.exclude(problem="").select_related("alert", "channel").order_by("-pk")[:FAILURES]
    return tuple(
        DeliveryView(
            channel=row.channel.name,
            event=row.event,
            what=row.alert.what if row.alert else "Test",
            state=row.state,
            tries=row.tries,
            problem=row.problem,
            at=row.at,
        )
        for row in rows
    )


def rule_form(name: str) -> RuleForm | None:
    """The rule of that name, as its form has it."""
    row = AlertRule.objects.filter(name=name).first()
    return form_of(row) if row else None


def preview(form: RuleForm) -> Preview | None:
    """How often the rule would have fired within the last 24 hours, by the history that is kept."""
    figure = FIGURES.get(form.figure)
    if figure is None or not figure.series:
        return None
    rows = (
        Series.objects.filter(name__startswith=figure.series).values_list("name", flat=True).order_by("name")
    )
    names = [name.removeprefix(figure.series) for name in rows]
    chosen = [name for name in names if matches(form.names, name)]
    until = time.time()
    times = {}
    for name in chosen[:MOST_PREVIEWED]:
        points = past.read(f"{figure.series}{name}", until - PREVIEW_SECONDS, until)
        if number := len(episodes(form, points, form.for_seconds)):
            times[name] = number
    return Preview(times, len(chosen[:MOST_PREVIEWED]))
