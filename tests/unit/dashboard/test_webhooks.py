"""Promises of webhooks where nobody answers."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from dashboard import audit, webhooks
from dashboard.actions import Actor
from dashboard.models import AuditRow, Outcome, WebhookMark
from tests.support.ports import free_port

pytestmark = pytest.mark.django_db

OLGA = Actor("olga", "operator")


@pytest.fixture
def address(settings: Any) -> str:
    settings.WEBHOOKS = [f"http://127.0.0.1:{free_port()}/secret-path"]
    settings.WEBHOOK_SECRET = "a secret of the tests"
    webhooks.send_due()
    return str(settings.WEBHOOKS[0])


def _open(gate: str) -> AuditRow:
    return audit.outcome(audit.intent(OLGA, "gate.open", gate), Outcome.DONE, after='{"state": "open"}')


def _due() -> None:
    WebhookMark.objects.update(next_at=0.0)


def test_what_nobody_answers_is_tried_so_often_then_given_up_and_the_next_follows(address: str) -> None:
    first, _second = _open("first-gate"), _open("second-gate")
    for tries in range(1, webhooks.TRIES):
        webhooks.send_due()
        mark = WebhookMark.objects.get()
        assert (mark.tries, mark.last_id < first.pk, mark.next_at > time.time() - 60) == (tries, True, True)
        _due()
    assert not AuditRow.objects.filter(action="webhook.send").exists()
    webhooks.send_due()
    [row] = AuditRow.objects.filter(action="webhook.send", outcome=Outcome.FAILED)
    assert json.loads(row.after) == {"tries": webhooks.TRIES, "problem": "ConnectionError"}
    assert "secret-path" not in row.target + row.after + row.reason
    mark = WebhookMark.objects.get()
    assert (mark.last_id, mark.tries) == (first.pk, 1)  # the second has been tried once


def test_what_happened_before_the_address_was_known_and_what_is_too_late_is_not_sent(settings: Any) -> None:
    _open("long-ago")
    settings.WEBHOOKS = [f"http://127.0.0.1:{free_port()}/"]
    settings.WEBHOOK_SECRET = "a secret of the tests"
    webhooks.send_due()
    assert WebhookMark.objects.get().last_id == audit.head()[0]
    row = _open("late-gate")
    AuditRow.objects.filter(pk=row.pk).update(at=time.time() - webhooks.LATE_SECONDS - 1)
    webhooks.send_due()
    [told] = AuditRow.objects.filter(action="webhook.send", outcome=Outcome.FAILED)
    assert json.loads(told.after) == {"tries": 0, "problem": "more than an hour late; not sent"}
