"""Releases told to another service: a real receiver, signed, tried again, in the audit, without secrets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from tests.support.dashboard import Dashboard, Person, audit_of, until

SECRET = "canary-webhook-secret-0123456789"
PATH = "/hook/canary-path-secret"


class Receiver(ThreadingHTTPServer):
    """Keeps what comes; refuses the first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[tuple[str, str, bytes]] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, self.headers["Kennel-Signature"], body))
        self.send_response(500 if len(self.server.got) == 1 else 204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_a_release_is_told_signed_and_again_after_a_refusal_and_no_secret_is_written_down(
    receiver: Receiver, tmp_path: Path, connection_string: str, storage_prefix: str
) -> None:
    # The check that the documentation shows, word for word.
    text = (Path(__file__).parents[3] / "docs" / "webhooks.md").read_text()
    code = "\n".join(line[4:] for line in text.split("more than some minutes old:")[1].splitlines())
    shown: dict[str, object] = {}
    exec(code, shown)  # noqa: S102
    is_genuine = shown["is_genuine"]
    assert callable(is_genuine)

    extra = {
        "KENNEL_WEBHOOKS": f"http://127.0.0.1:{receiver.port}{PATH}",
        "KENNEL_WEBHOOK_SECRET": SECRET,
        "KENNEL_LOG_JSON": "1",
    }
    with Dashboard(tmp_path, connection_string, storage_prefix, extra) as dashboard:
        # Told is what comes after the sender's first look at the audit.
        marks = "from dashboard.models import WebhookMark\nprint(WebhookMark.objects.count())"
        await until(lambda: dashboard.manage(code=marks).strip() == "1", seconds=60)
        with Person(dashboard, "olga") as olga:
            olga.post("/gates/start-it/unleash", {"reason": "tickets"})
            olga.post("/gates/start-it/leash", {"reason": "stock check"})
        await until(lambda: len(receiver.got) >= 3, seconds=60, what="three posts")
        rows = await until(
            lambda: [
                row
                for row in audit_of(dashboard)
                if row["action"] == "webhook.send" and row["outcome"] == "done"
            ],
            seconds=60,
        )
        requests.get(f"{dashboard.url}/nowhere", headers={"X-Request-ID": "traced-0001"}, timeout=20)
        await until(lambda: "traced-0001" in dashboard.said(), seconds=20)
        everything = json.dumps(audit_of(dashboard)) + dashboard.said()
    first, again, closed = (json.loads(body) for _, _, body in receiver.got[:3])
    assert first == again
    assert (again["event"], again["gate"], again["by"], again["reason"]) == (
        "gate.open",
        "start-it",
        "olga",
        "tickets",
    )
    assert again["gate_after"]["state"] == "open"
    assert (closed["event"], closed["gate_after"]["epoch"]) == ("gate.close", 2)
    for path, signature, body in receiver.got:
        assert path == PATH
        assert is_genuine(SECRET, signature, body)
        assert not is_genuine(SECRET, signature, body + b" ")
        assert not is_genuine(SECRET + "x", signature, body)
    assert rows[0]["target"] == f"http://127.0.0.1:{receiver.port}"
    assert json.loads(rows[0]["after"]) == {"tries": 2}
    assert SECRET not in everything
    assert PATH not in everything
    lines = [json.loads(line) for line in dashboard.said().splitlines() if line.startswith("{")]
    assert [line["level"] for line in lines if line.get("request_id") == "traced-0001"] == ["warning"]
