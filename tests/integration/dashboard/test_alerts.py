"""An alert from its condition to a mail server and a webhook, by two dashboards, over a restart, until it is resolved."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope

from coordinator import Queue, Storage
from coordinator.config import StorageConfig
from coordinator.testing.azurite import Azurite
from tests.support.dashboard import Dashboard, Person, audit_of, until
from tests.support.ports import free_port

PATH = "/hook/canary-path-secret"
QUEUE = "alerted"
WITHIN_SECONDS = 5.0


class Hook(ThreadingHTTPServer):
    """Keeps what comes, with when."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[tuple[float, dict[str, str], bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Hook)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.got.append((time.time(), headers, body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


class Mailbox:
    """Keeps what a mail server takes, with when."""

    def __init__(self) -> None:
        self.got: list[tuple[float, str]] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        assert envelope.rcpt_tos == ["ops@example.org"]
        self.got.append((time.time(), envelope.content.decode()))
        return "250 taken"


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    box, port = Mailbox(), free_port()
    controller = Controller(box, hostname="127.0.0.1", port=port)
    controller.start()
    yield box, port
    controller.stop()


async def test_an_alert_is_delivered_within_seconds_once_by_two_dashboards_survives_a_restart_and_resolves(
    tmp_path: Path,
    own_azurite: Azurite,
    storage_prefix: str,
    redis_url: str,
    hook: Hook,
    mailbox: tuple[Mailbox, int],
) -> None:
    box, port = mailbox
    connection_string = own_azurite.connection_string  # of few queues: all are read in each round
    extra = {
        "REDIS_URL": redis_url,
        "KENNEL_PROCESSES": "2",
        "KENNEL_EMAIL_URL": f"smtp://127.0.0.1:{port}",
        "KENNEL_EMAIL_FROM": "kennel@example.org",
    }
    config = StorageConfig(prefix=storage_prefix)
    storage = Storage.from_connection_string(connection_string, config=config)
    queue = storage.queue(QUEUE, type=int)
    await queue.create()
    one = Dashboard(tmp_path, connection_string, storage_prefix, extra).prepare().start()
    other = one.sibling().start()
    try:
        with Person(one, "adam") as adam:

            def prepare() -> str:
                address = f"http://127.0.0.1:{hook.server_address[1]}{PATH}"
                mail = {"name": "ops-mail", "kind": "email", "address": "ops@example.org"}
                adam.post("/alerts/channels", mail, page="/alerts/")
                page = adam.post(
                    "/alerts/channels",
                    {"name": "ops-hook", "kind": "webhook", "address": address},
                    page="/alerts/",
                ).text
                for name in ("critical-conditions", "poison-messages", "old-messages", "not-passed"):
                    adam.post(f"/alerts/rules/{name}/delete", {"typed": name}, page="/alerts/")
                rule = {
                    "figure": "queue.depth", "value": 2, "clear_seconds": 1, "names": QUEUE, "level": "critical",
                    "channels": ["ops-mail", "ops-hook"],
                }  # fmt: skip
                token = adam.http.cookies["csrftoken"]
                saved = adam.http.put(
                    f"{one.url}/api/v1/alerts/rules/deep-queues",
                    json=rule,
                    headers={"X-CSRFToken": token, "Referer": one.url, "Origin": one.url},
                    timeout=20,
                )
                assert saved.status_code == 200, saved.text
                found = re.search(r'value="(whsec_[^"]+)"', page)
                assert found
                return found[1]

            secret = await asyncio.to_thread(prepare)
            await until(lambda: _depth(adam) == 0)
            delays = [await _delay(queue, hook, box, rounds=0)]
            # A process that ends before it has noted what it sent leaves it to be sent once more.
            await until(lambda: "to be sent" not in adam.get("/alerts/").text)
        # The process that found it ends; the rows are there for the other, and for this one when it is back.
        one.stop(kill=True)
        one.start()
        with Person(other, "olga") as olga:
            await until(lambda: "messages in alerted" in olga.get("/alerts/").text)
            await _resolved(queue, hook, box, rounds=1)
            listed = olga.get("/api/v1/alerts").json()
            assert (listed["firing"], [each["subject"] for each in listed["resolved"]]) == ([], [QUEUE])
            assert PATH not in olga.get("/alerts/").text
            # On a machine that does much else one round may be late.
            while min(delays) > WITHIN_SECONDS and len(delays) < 4:
                await until(lambda: _depth(olga) == 0)
                delays.append(await _delay(queue, hook, box, rounds=len(delays)))
                await _resolved(queue, hook, box, rounds=len(delays))
        kept = json.dumps(audit_of(one)) + one.said() + other.said()
    finally:
        one.stop()
        other.stop()
        await storage.aclose()
        await asyncio.to_thread(storage.close)
    said = [json.loads(body) for _, _, body in hook.got]
    assert [each["type"] for each in said] == ["alert.fired", "alert.resolved"] * len(delays)
    assert {each["data"]["subject"] for each in said} == {QUEUE}
    subjects = [
        found[1] for _, text in box.got if (found := re.search(r"^Subject: (\S+)", text, re.MULTILINE))
    ]
    assert subjects == ["[CRITICAL]", "[RESOLVED]"] * len(delays)
    for _, headers, body in hook.got:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        digest = hmac.new(base64.b64decode(secret.removeprefix("whsec_")), signed, hashlib.sha256).digest()
        assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert PATH not in kept
    assert secret not in kept
    assert min(delays) < WITHIN_SECONDS, delays


async def _delay(queue: Queue[int], hook: Hook, box: Mailbox, *, rounds: int) -> float:
    """Seconds from the condition to the later of mail and webhook."""
    began = time.time()
    for number in range(3):
        await queue.put(number)
    await until(lambda: len(hook.got) > 2 * rounds and len(box.got) > 2 * rounds)
    return max(hook.got[2 * rounds][0], box.got[2 * rounds][0]) - began


async def _resolved(queue: Queue[int], hook: Hook, box: Mailbox, *, rounds: int) -> None:
    await queue.clear()
    await until(lambda: len(hook.got) == 2 * rounds and len(box.got) == 2 * rounds, seconds=90)


def _depth(person: Person) -> int | None:
    queues = person.get("/api/v1/fleet").json()["queues"]
    return next((row["depth"] for row in queues if row["name"] == QUEUE), None)
