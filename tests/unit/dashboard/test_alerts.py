"""Promises of alerts: what fires, once; what a restart, unknown figures, silences and acknowledgements change; who may do what."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import time
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from msgspec.structs import replace

from dashboard.alerts import actions, queries
from dashboard.alerts.actions import RuleForm
from dashboard.core import alert_channels as channels
from dashboard.core.audit import ActionFailed, Denied
from dashboard.core.permissions import Actor
from dashboard.live import alerting
from dashboard.live.alert_figures import FIGURES, MOST_SUBJECTS, REST, episodes, find
from dashboard.live.conditions import conditions_of
from dashboard.live.fleet import Fleet, Headline, Point, QueueView, StorageView
from dashboard.models import Alert, AlertChannel, AlertDelivery, AlertRule, AlertSilence, AuditRow
from tests.support.ports import free_port
from tests.unit.dashboard.making import worker

pytestmark = pytest.mark.django_db

ADAM, OLGA, VERA = Actor("adam", "admin"), Actor("olga", "operator"), Actor("vera", "viewer")
NOW = 1_800_000_000.0


def fleet(at: float = 0.0, *, away: bool = False, **depths: int | None) -> Fleet:
    queues = tuple(QueueView(name.replace("_", "-"), depth, as_of=NOW + at) for name, depth in depths.items())
    storage = StorageView(NOW + at, NOW + at if away else None, "no answer" if away else "")
    return Fleet(NOW + at, Headline("running", ""), storage, queues=queues)


@pytest.fixture(autouse=True)
def _no_other_rules() -> None:
    AlertRule.objects.all().delete()


def rule(**more: Any) -> AlertRule:
    channel = AlertChannel.objects.filter(name="ops-mail").first()
    if channel is None:
        actions.save_channel(ADAM, "ops-mail", "email", "ops@example.org")
    values: dict[str, Any] = {
        "figure": "queue.depth",
        "value": 10,
        "clear_seconds": 0,
        "channels": ("ops-mail",),
    }
    actions.save_rule(ADAM, "deep-queues", RuleForm(**(values | more)))
    return AlertRule.objects.get(name="deep-queues")


def events() -> list[str]:
    return list(AlertDelivery.objects.order_by("pk").values_list("event", flat=True))


def test_it_fires_once_when_it_has_held_for_long_enough_and_is_resolved_when_it_ended() -> None:
    rule(for_seconds=60)
    for at in (0, 20, 40, 59):
        alerting.evaluate(fleet(at, orders_in=11, other=10))
    assert (alerting.firing(), events()) == ((), [])
    for at in (60, 61):
        alerting.evaluate(fleet(at, orders_in=12, other=10))
    [alert] = alerting.firing()
    assert (alert.subject, alert.since, alert.fired_at) == ("orders-in", NOW, NOW + 60)
    assert alert.what == "12 messages in orders-in"
    assert events() == ["fired"]
    alerting.evaluate(fleet(62, orders_in=3))
    assert (alerting.firing(), events()) == ((), ["fired", "resolved"])
    assert [each.resolved_at for each in queries.history()] == [NOW + 62]


def test_what_ended_in_time_never_fires_and_leaves_nothing() -> None:
    rule(for_seconds=60)
    alerting.evaluate(fleet(0, orders_in=11))
    alerting.evaluate(fleet(30, orders_in=1))
    assert not Alert.objects.exists()
    alerting.evaluate(fleet(31, orders_in=11))
    alerting.evaluate(fleet(50, orders_in=11))
    assert Alert.objects.get().since == NOW + 31


def test_a_time_in_which_nobody_looked_does_not_count() -> None:
    rule(for_seconds=60)
    alerting.evaluate(fleet(0, orders_in=11))
    alerting.evaluate(fleet(300, orders_in=11))
    assert Alert.objects.get().since == NOW + 300


def test_what_is_unknown_neither_fires_nor_resolves() -> None:
    rule()
    alerting.evaluate(fleet(0, orders_in=11))
    for at, look in (
        (1, fleet(1, orders_in=None)),
        (2, fleet(2, away=True, orders_in=0)),
        (90, replace(fleet(3, orders_in=0), taken_at=NOW + 90)),
    ):
        alerting.evaluate(look)
        assert len(alerting.firing()) == 1, at
    alerting.evaluate(fleet(91, orders_in=0), may_resolve=False)
    assert len(alerting.firing()) == 1
    alerting.evaluate(fleet(92, orders_in=0))
    assert alerting.firing() == ()


def test_a_condition_that_comes_and_goes_within_the_quiet_time_is_sent_once() -> None:
    rule(clear_seconds=60)
    for at in range(0, 100, 10):
        alerting.evaluate(fleet(at, orders_in=11 if at % 20 else 9))
    assert events() == ["fired"]
    for at in (100, 159, 161):
        alerting.evaluate(fleet(at, orders_in=9))
    assert events() == ["fired", "resolved"]


def test_a_silence_holds_back_and_what_still_fires_at_its_end_is_sent() -> None:
    made = rule()
    silence = actions.silence(OLGA, "deep-queues", 3600, names="orders-*", reason="stock check")
    AlertSilence.objects.update(until=NOW + 50)
    alerting.evaluate(fleet(0, orders_in=11, other=11))
    assert [alert.subject for alert in alerting.firing()] == ["orders-in", "other"]
    assert AlertDelivery.objects.get().alert.subject == "other"  # type: ignore[union-attr]
    assert alerting.is_silenced(made, "orders-in", NOW)
    alerting.evaluate(fleet(51, orders_in=11, other=11))
    assert events() == ["fired", "fired"]
    actions.end_silence(OLGA, silence)
    with pytest.raises(ActionFailed, match="has ended"):
        actions.end_silence(OLGA, silence)


def test_what_is_acknowledged_while_silenced_is_not_sent_and_counts_no_more() -> None:
    rule()
    actions.silence(OLGA, "deep-queues", 3600)
    AlertSilence.objects.update(until=NOW + 50)
    alerting.evaluate(fleet(0, orders_in=11))
    [alert] = alerting.firing()
    actions.acknowledge(OLGA, alert.id)
    with pytest.raises(ActionFailed, match="olga has acknowledged"):
        actions.acknowledge(ADAM, alert.id)
    alerting.evaluate(fleet(51, orders_in=11))
    alerting.evaluate(fleet(52, orders_in=1))
    assert events() == []
    with pytest.raises(ActionFailed, match="does not fire"):
        actions.acknowledge(OLGA, alert.id)


def test_of_many_names_some_have_alerts_of_their_own_and_one_is_for_the_rest() -> None:
    rule()
    deep = {f"queue_{n:02}": 11 for n in range(MOST_SUBJECTS + 3)}
    alerting.evaluate(fleet(0, **deep))
    alerting.evaluate(fleet(1, aaa=11, **deep))
    subjects = [alert.subject for alert in alerting.firing()]
    assert len(subjects) == MOST_SUBJECTS + 1
    assert (REST in subjects, "aaa" in subjects) == (True, False)
    assert len(events()) == MOST_SUBJECTS + 1


def test_a_condition_is_one_alert_for_each_thing_however_its_text_changes() -> None:
    rule(figure="condition", value=1)
    lost = [worker(f"w-{n}", presence="lost") for n in range(3)]
    for at, workers in ((0, lost[:1]), (1, lost), (2, lost[1:])):
        look = replace(fleet(at), workers=tuple(workers))
        alerting.evaluate(replace(look, attention=conditions_of(look, 1.0)))
    assert [alert.subject for alert in Alert.objects.order_by("pk")] == [
        f"workers lost: w-{n}" for n in range(3)
    ]
    assert [alert.subject for alert in alerting.firing()] == ["workers lost: w-1", "workers lost: w-2"]


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_can_be_read_of_an_empty_fleet(figure: str) -> None:
    found = find(RuleForm(figure, 0.0), fleet())
    assert (found.holding, found.all_unknown) == ({}, False)


def test_a_deleted_or_disabled_rule_resolves_its_alerts() -> None:
    rule()
    alerting.evaluate(fleet(0, orders_in=11))
    actions.delete_rule(ADAM, "deep-queues")
    assert (alerting.firing(), events()) == ((), ["fired", "resolved"])
    rule()
    alerting.evaluate(fleet(1, orders_in=11))
    rule(enabled=False)
    assert alerting.firing() == ()


def test_of_two_looks_at_one_time_one_makes_the_alert_and_its_delivery() -> None:
    made, look = rule(), fleet(0, orders_in=11)
    reading = find(made, look).holding["orders-in"]
    for _ in range(2):  # both read that there was none
        alerting._holds(made, None, reading, NOW)
    assert (Alert.objects.count(), events()) == (1, ["fired"])
    alert = Alert.objects.get()
    assert [alerting.resolve(alert, NOW), alerting.resolve(alert, NOW)] == [1, 0]


def test_a_delivery_is_claimed_by_one_tried_again_with_its_id_and_given_up_with_the_reason() -> None:
    rule()
    alerting.evaluate(fleet(0, orders_in=11))
    alerting.evaluate(fleet(1, orders_in=1))
    now, keys = NOW + 2, set()
    for attempt in range(1, channels.TRIES + 1):
        [(row, message)] = channels.claim(now)
        assert channels.claim(now) == []
        assert (row.tries, message.event) == (attempt, "fired")
        keys.add(message.key)
        if attempt == 2:  # its process ended: the claim expires
            now += channels.CLAIM_SECONDS + 1
            continue
        channels.settle(row, "answered 500", now)
        now += 70
    assert len(keys) == 1
    [failure] = queries.failures()
    assert (failure.state, failure.tries, failure.problem) == ("failed", channels.TRIES, "answered 500")
    [(_, message)] = channels.claim(now)
    assert message.event == "resolved"  # it waited for what was before it


def test_a_channel_gets_so_many_a_minute_and_the_others_wait() -> None:
    rule()
    channel = AlertChannel.objects.get()
    AlertDelivery.objects.bulk_create(
        AlertDelivery(key=f"k-{n}", channel=channel, event="test", at=NOW)
        for n in range(channels.PER_MINUTE + 5)
    )
    claimed = [row for n in range(8) for row, _ in channels.claim(NOW + n)]
    assert len(claimed) == channels.PER_MINUTE
    for row in claimed:
        channels.settle(row, "", NOW + 8)
    assert len(channels.claim(NOW + 69)) == 5


async def test_nothing_is_sent_to_link_local_addresses_not_even_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for url in (
        "http://169.254.169.254/latest",
        "http://[fe80::1]/",
        "http://[::ffff:169.254.169.254]/",
        "ftp://x/y",
        "nothing",
    ):
        with pytest.raises(channels.Refused):
            channels.checked("webhook", url)

    async def resolve(*_: Any) -> list[dict[str, Any]]:
        return [{"hostname": "x", "host": "169.254.169.254", "port": 80, "family": 2, "proto": 0, "flags": 0}]

    monkeypatch.setattr(channels.DefaultResolver, "resolve", resolve)
    row = AlertChannel(kind="webhook", address=channels.sealed("http://metadata.example/"), name="x")
    message = channels.AlertMessage("k", "fired", "alert-1", "r", "s", "w", "warning", NOW, NOW)
    assert await channels.send(row, message) != ""


async def test_the_reason_of_a_failure_names_neither_address_nor_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"http://127.0.0.1:{free_port()}/canary-path"
    row = AlertChannel(kind="slack", address=channels.sealed(url), name="chat")
    message = channels.AlertMessage("k", "fired", "alert-1", "r", "s", "w", "warning", NOW, NOW)
    problem = await channels.send(row, message)
    assert problem == "no connection"
    assert "canary" not in problem + caplog.text
    row.address = "damaged"
    assert "KENNEL_SECRET_KEY" in await channels.send(row, message)
    mail = AlertChannel(kind="email", address=channels.sealed("ops@example.org"), name="mail")
    assert "KENNEL_EMAIL_URL" in await channels.send(mail, message)


def test_the_signature_is_that_of_standard_webhooks() -> None:
    secret = channels.new_secret()
    headers = channels.signature(secret, "alert-1", b"{}", 1_700_000_000)
    digest = hmac.new(base64.b64decode(secret[6:]), b"alert-1.1700000000.{}", hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


def test_every_form_says_what_fires() -> None:
    message = channels.AlertMessage(
        "k", "resolved", "alert-1", "r", "s", "12 messages", "critical", NOW, NOW, "https://x/"
    )
    for kind, form in channels.KINDS.items():
        assert "12 messages" in json.dumps(form(channels.Channel(kind, "key", ""), message)), kind
    events = channels.KINDS["pagerduty"](channels.Channel("pagerduty", "key", ""), message)
    assert (events["event_action"], events["dedup_key"], events["routing_key"]) == (
        "resolve",
        "alert-1",
        "key",
    )


def test_secrets_are_shown_once_and_are_in_neither_database_nor_audit_nor_pages(client: Client) -> None:
    admin = User.objects.create_user("adam")
    admin.groups.add(Group.objects.get(name="admin"))
    client.force_login(admin)
    form = {"name": "ops-hook", "kind": "webhook", "address": "https://hooks.example.org/canary-path"}
    answer = client.post("/alerts/channels", form)
    assert "whsec_" in answer.text
    assert "no-store" in answer["Cache-Control"]
    secret = answer.text.split('value="whsec_')[1].split('"')[0]
    pages = client.get("/alerts/").text + json.dumps(list(AuditRow.objects.values()))
    row = AlertChannel.objects.get()
    for text in (pages, row.address + row.secret):
        assert "canary-path" not in text
        assert secret not in text
    assert "https://hooks.example.org" in pages
    assert channels.opened(row) == ("webhook", form["address"], f"whsec_{secret}")


def test_who_may_do_what_is_in_the_audit() -> None:
    rule()
    alerting.evaluate(fleet(0, orders_in=11))
    [alert] = alerting.firing()
    for actor, allowed in ((VERA, 0), (OLGA, 2), (ADAM, 6)):
        done = 0
        for act in (
            lambda actor: actions.silence(actor, "deep-queues", 60),
            lambda actor: actions.acknowledge(actor, alert.id),
            lambda actor: actions.save_rule(actor, "deep-queues", RuleForm("queue.depth", 11)),
            lambda actor: actions.save_channel(actor, "ops-mail", "email", "ops@example.org"),
            lambda actor: actions.try_channel(actor, "ops-mail"),
            lambda actor: actions.delete_channel(actor, "ops-mail"),
        ):
            Alert.objects.update(acknowledged_at=None)
            try:
                act(actor)
                done += 1
            except Denied:
                pass
        assert done == allowed, actor.name
    outcomes = AuditRow.objects.filter(actor="olga").values_list("action", "outcome")
    assert ("alert.acknowledge", "done") in outcomes
    assert ("alert.rule", "denied") in outcomes


@pytest.mark.parametrize(
    ("form", "wrong"),
    [
        (RuleForm("nothing", 1), "watches one of"),
        (RuleForm("queue.depth", float("nan")), "not a number"),
        (RuleForm("queue.depth", 1, for_seconds=-1), "604,800"),
        (RuleForm("queue.depth", 1, names="a  b"), "patterns"),
        (RuleForm("queue.depth", 1, level="loud"), "level"),
        (RuleForm("queue.depth", 1, channels=("nowhere",)), "does not exist"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(form: RuleForm, wrong: str) -> None:
    with pytest.raises(ActionFailed, match=wrong):
        actions.save_rule(ADAM, "some-rule", form)
    assert not AlertRule.objects.exists()


def test_a_preview_counts_how_often_a_rule_would_have_fired() -> None:
    values = [0, 20, 20, 20, 0, 20, 0, 20, 20, None, 20]
    points = [Point(NOW + 10 * n, None if value is None else float(value)) for n, value in enumerate(values)]
    form = RuleForm("queue.depth", 10)
    assert len(episodes(form, points, 0)) == 4
    assert [each.fired_at - NOW for each in episodes(form, points, 10)] == [20, 80]
    assert queries.preview(form) == queries.Preview({}, 0)
    assert queries.preview(RuleForm("worker.lost", 0)) is None


def test_the_pages_say_what_fires_and_take_what_people_want(client: Client) -> None:
    admin = User.objects.create_user("adam")
    admin.groups.add(Group.objects.get(name="admin"))
    client.force_login(admin)
    assert "nobody is notified" in client.get("/alerts/").text
    client.post("/alerts/channels", {"name": "ops-mail", "kind": "email", "address": "ops@example.org"})
    form = {
        "name": "deep-queues",
        "figure": "queue.depth",
        "comparison": "above",
        "value": "10",
        "for_seconds": "0",
        "clear_seconds": "60",
        "names": "orders-*",
        "level": "critical",
        "channel": "ops-mail",
        "enabled": "on",
    }
    assert "No history" not in client.post("/alerts/new", form | {"preview": "1"}).text
    assert not AlertRule.objects.exists()
    assert client.post("/alerts/new", form | {"value": "many"}).status_code == 422
    assert client.post("/alerts/new", form).status_code == 302
    assert queries.rule_form("deep-queues") == RuleForm(
        "queue.depth", 10.0, False, 0.0, 60.0, "orders-*", "critical", True, ("ops-mail",)
    )
    alerting.evaluate(fleet(time.time() - NOW, orders_in=11))
    page = client.get("/alerts/").text
    assert "11 messages in orders-in" in page
    assert "<title>(1) " in page
    assert client.post(f"/alerts/{Alert.objects.get().pk}/acknowledge").status_code == 302
    assert "<title>(1) " not in client.get("/alerts/").text
    assert client.post("/alerts/rules/deep-queues/silence", {"hours": "1"}).status_code == 302
    assert "until" in client.get("/alerts/").text
    assert client.post("/alerts/channels/ops-mail/test").status_code == 302
    client.post("/alerts/rules/deep-queues/delete", {"typed": "deep-queues"})
    client.post("/alerts/channels/ops-mail/delete", {"typed": "ops-mail"})
    assert (AlertRule.objects.count(), AlertChannel.objects.count()) == (0, 0)
