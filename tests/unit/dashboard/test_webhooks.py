"""Promises of webhooks where nobody answers."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from dashboard.core import audit, webhooks
from dashboard.core.permissions import Actor
from dashboard.models import AuditOutcome, AuditRow, WebhookMark
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
    return audit.outcome(audit.intent(OLGA, "gate.open", gate), AuditOutcome.DONE, after='{"state": "open"}')


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
    [row] = AuditRow.objects.filter(action="webhook.send", outcome=AuditOutcome.FAILED)
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
    [told] = AuditRow.objects.filter(action="webhook.send", outcome=AuditOutcome.FAILED)
    assert json.loads(told.after) == {"tries": 0, "problem": "more than an hour late; not sent"}


class Dripper(threading.Thread):
    """A receiver that begins its answer and never comes to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.server.getsockname()[1])

    def run(self) -> None:
        connection, _ = self.server.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not self.over.wait(0.1):
                connection.sendall(b"x")

    def __enter__(self) -> Dripper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        self.join()
        self.server.close()


class Receiver(BaseHTTPRequestHandler):
    got: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.got.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


def test_a_receiver_that_drips_its_answer_has_a_deadline_and_holds_up_no_other(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "DEADLINE_SECONDS", 1.0)
    Receiver.got.clear()
    with Dripper() as dripper, ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as good:
        serving = threading.Thread(target=good.serve_forever)
        serving.start()
        settings.WEBHOOKS = [f"http://127.0.0.1:{port}/" for port in (dripper.port, good.server_address[1])]
        settings.WEBHOOK_SECRET = "a secret of the tests"
        webhooks.send_due()
        _open("first-gate")
        _open("second-gate")
        assert webhooks.send_due() == 2
        assert not dripper.over.is_set()
        good.shutdown()
        serving.join()
    assert [json.loads(body)["gate"] for body in Receiver.got] == ["first-gate", "second-gate"]
    assert sorted(WebhookMark.objects.values_list("tries", flat=True)) == [0, 1]
