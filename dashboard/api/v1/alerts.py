"""Alerts: what fires and what was, the rules, the channels, silences and acknowledgements."""

from __future__ import annotations

from typing import Annotated

import msgspec
from django.http import HttpRequest, HttpResponse
from ninja import Path, Router

from dashboard.alerts import actions, queries
from dashboard.alerts.queries import ChannelView, PastAlert, RuleView, SilenceView
from dashboard.api.v1 import idempotency as replays
from dashboard.api.v1 import responses as answering
from dashboard.api.v1.bodies import AlertRuleBody, Name, NewChannel, NewSilence, Text, Why
from dashboard.api.v1.operations import ActDone, actor_of, acts, done, reads
from dashboard.live.fleet import AlertView
from dashboard.models import AlertRule

router = Router(tags=["alerts"])

AlertId = Annotated[int, Path(ge=1, le=2**62)]


class Alerts(msgspec.Struct, frozen=True):
    """The alerts that fire, and the newest that were resolved within 30 days."""

    firing: tuple[AlertView, ...]
    resolved: tuple[PastAlert, ...]
    silences: tuple[SilenceView, ...]


class Rules(msgspec.Struct, frozen=True):
    """All rules."""

    rules: tuple[RuleView, ...]


class Channels(msgspec.Struct, frozen=True):
    """All channels, without addresses and secrets."""

    channels: tuple[ChannelView, ...]


class ChannelSaved(msgspec.Struct, frozen=True):
    """The secret that a webhook's messages are signed with, "" for other kinds. This is the only time that it is shown."""

    secret: str


class Silenced(msgspec.Struct, frozen=True):
    """The id to end it by."""

    id: int


@router.get("/alerts", **reads(Alerts, "alerts"))
def alerts(request: HttpRequest) -> HttpResponse:
    """What fires, what was resolved lately, and which silences last."""
    return answering.answer(Alerts(queries.firing(), queries.history(), queries.silences()))


@router.post(
    "/alerts/{alert_id}/acknowledge", **acts(ActDone, "acknowledge_alert", action="alert.acknowledge")
)
def acknowledge(request: HttpRequest, alert_id: AlertId, body: Why) -> HttpResponse:
    """Somebody sees to it: it counts no more in the title, and nothing more is sent until it is resolved."""
    actions.acknowledge(actor_of(request), alert_id, reason=body.reason)
    queries.firing()
    return done("alert.acknowledge", str(alert_id))


@router.get("/alerts/rules", **reads(Rules, "alert_rules"))
def rules(request: HttpRequest) -> HttpResponse:
    """All rules by name."""
    return answering.answer(Rules(queries.rules()))


@router.put("/alerts/rules/{name}", **acts(RuleView, "save_alert_rule", action="alert.rule"))
def save_rule(request: HttpRequest, name: Name, body: AlertRuleBody) -> HttpResponse:
    """Create the rule of that name, or replace it."""
    form = actions.RuleForm(
        **body.model_dump(exclude={"reason", "channels"}) | {"channels": tuple(body.channels)}
    )
    actions.save_rule(actor_of(request), name, form, reason=body.reason)
    return answering.answer(queries.rule_view(AlertRule.objects.get(name=name)))


@router.delete("/alerts/rules/{name}", **acts(ActDone, "delete_alert_rule", action="alert.rule"))
def delete_rule(request: HttpRequest, name: Name, reason: Text = "") -> HttpResponse:
    """Take a rule away; its alerts are resolved."""
    actions.delete_rule(actor_of(request), name, reason=reason)
    return done("alert.rule", name)


@router.post(
    "/alerts/rules/{name}/silences", **acts(Silenced, "silence_alerts", action="alert.silence", status=201)
)
def silence(request: HttpRequest, name: Name, body: NewSilence) -> HttpResponse:
    """Send nothing for what the patterns of a rule cover, for some seconds."""
    made = actions.silence(actor_of(request), name, body.seconds, names=body.names, reason=body.reason)
    return answering.answer(Silenced(made), status=201)


@router.delete("/alerts/silences/{alert_id}", **acts(ActDone, "end_silence", action="alert.silence"))
def end_silence(request: HttpRequest, alert_id: AlertId, reason: Text = "") -> HttpResponse:
    """End a silence now."""
    actions.end_silence(actor_of(request), alert_id, reason=reason)
    return done("alert.silence", str(alert_id))


@router.get("/alerts/channels", **reads(Channels, "alert_channels"))
def channels(request: HttpRequest) -> HttpResponse:
    """All channels by name, with how their newest delivery went."""
    return answering.answer(Channels(queries.channels()))


@router.put("/alerts/channels/{name}", **acts(ChannelSaved, "save_alert_channel", action="alert.channel"))
def save_channel(request: HttpRequest, name: Name, body: NewChannel) -> HttpResponse:
    """Create the channel of that name, or give it another address and secret."""
    secret = actions.save_channel(actor_of(request), name, body.kind, body.address, reason=body.reason)
    return answering.answer(ChannelSaved(secret))


setattr(save_channel, replays.SECRET, True)


@router.delete("/alerts/channels/{name}", **acts(ActDone, "delete_alert_channel", action="alert.channel"))
def delete_channel(request: HttpRequest, name: Name, reason: Text = "") -> HttpResponse:
    """Take a channel away, with what was still to be sent to it."""
    actions.delete_channel(actor_of(request), name, reason=reason)
    return done("alert.channel", name)


@router.post("/alerts/channels/{name}/test", **acts(ActDone, "try_alert_channel", action="alert.test"))
def try_channel(request: HttpRequest, name: Name, body: Why) -> HttpResponse:
    """Send a test through the channel."""
    actions.try_channel(actor_of(request), name, reason=body.reason)
    return done("alert.test", name)
