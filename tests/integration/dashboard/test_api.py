"""The API and its client against a live dashboard over a real account: one act, one row; nothing done twice."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from click.testing import CliRunner, Result

from coordinator.__main__ import main
from coordinator.backoff import Backoff
from coordinator.client import Client
from coordinator.errors import ApiError, ApiUnavailable, ConfigurationError
from coordinator.realtime.protocol import GateStatus, WorkerState
from coordinator.storage import Storage
from tests.support.dashboard import PROJECT, BareWorker, Dashboard, Person, audit_of, until
from tests.support.ports import free_port
from tests.support.processes import run_program

TOKENS = {
    "olga": "kp_olga_0123456789_0123456789_0123456789",
    "adam": "kp_adam_0123456789_0123456789_0123456789",
}
_MAKE = f"""
from django.contrib.auth.models import User
from dashboard.core import tokens
for name, token in {TOKENS!r}.items():
    tokens.create("cli", scope="act", role="admin", owner=User.objects.get(username=name), token=token)
"""


@pytest.fixture(scope="module")
def api(dashboard: Dashboard) -> Dashboard:
    dashboard.manage(code=_MAKE)
    return dashboard


@pytest.fixture
def olga(api: Dashboard) -> Iterator[Client]:
    with Client(api.url, TOKENS["olga"]) as client:
        yield client


@pytest.fixture
def adam(api: Dashboard) -> Iterator[Client]:
    with Client(api.url, TOKENS["adam"]) as client:
        yield client


def _environment(api: Dashboard, token: str) -> dict[str, str | None]:
    clean: dict[str, str | None] = {k: None for k in os.environ if k.startswith(("KENNEL_", "AZURE_"))}
    return clean | {"KENNEL_API_URL": api.url, "KENNEL_API_TOKEN": token}


def _command(api: Dashboard, *arguments: str, token: str = TOKENS["olga"]) -> Result:
    return CliRunner().invoke(main, arguments, env=_environment(api, token))


def _process(api: Dashboard, *arguments: str) -> str:
    given = {k: v for k, v in _environment(api, TOKENS["olga"]).items() if v is not None}
    done = run_program(
        [sys.executable, "-m", "coordinator", *arguments],
        env={k: v for k, v in os.environ.items() if not k.startswith(("KENNEL_", "AZURE_"))}
        | given
        | {"PYTHONPATH": str(PROJECT)},
        seconds=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_page_api_and_command_line_leave_the_same_rows_for_the_same_acts(
    api: Dashboard, olga: Client, adam: Client
) -> None:
    gates = {how: f"{how}-{uuid.uuid4().hex[:8]}" for how in ("page", "program", "shell")}
    queues = {how: f"{api.prefix}{how}" for how in gates}
    with Person(api, "olga") as person, Person(api, "adam") as admin:
        page, program, shell = gates.values()
        person.post(f"/gates/{page}/unleash", {"reason": "tickets"})
        assert olga.open_gate(program, reason="tickets").state == "open"
        assert "is open (epoch 1)" in _process(api, "release", shell, "--reason", "tickets")
        person.post(f"/gates/{page}/leash", {"reason": "stock check"})
        assert olga.close_gate(program, reason="stock check").epoch == 2
        assert "is closed" in _command(api, "leash", shell, "--reason", "stock check").stdout
        page, program, shell = queues.values()
        person.post("/queues/", {"name": page}, page="/queues/")
        olga.create_queue(program)
        assert _command(api, "queue", "create", shell).exit_code == 0
        admin.post(f"/queues/{page}/clear", {"typed": page}, page="/queues/")
        adam.clear_queue(program)
        assert _command(api, "queue", "clear", shell, "--yes", token=TOKENS["adam"]).exit_code == 0
        # What is not allowed, too: clearing takes an administrator.
        person.post(f"/queues/{page}/clear", {"typed": page}, page="/queues/")
        with pytest.raises(ApiError, match="needs the role admin") as refused:
            olga.clear_queue(program)
        assert refused.value.status == 403
        assert "needs the role admin" in _command(api, "queue", "clear", shell, "--yes").stderr
    rows = audit_of(api)
    told = {how: _told(rows, {gates[how], queues[how]}) for how in gates}
    assert told["page"] == told["program"] == told["shell"]
    assert [(row["actor"], row["action"], row["outcome"]) for row in told["page"] if row["outcome"] != "intent"] == [
        ("olga", "gate.open", "done"),
        ("olga", "gate.close", "done"),
        ("olga", "queue.create", "done"),
        ("adam", "queue.clear", "done"),
        ("olga", "queue.clear", "denied"),
    ]  # fmt: skip


def _told(rows: list[dict[str, Any]], targets: set[str]) -> list[dict[str, Any]]:
    """The rows without what is each row's own; what was seen before depends on when the sampler looked."""
    own = {"id", "at", "target", "request_id", "intent_id", "previous", "digest", "before"}
    return [
        {key: value for key, value in row.items() if key not in own}
        for row in rows
        if row["target"] in targets
    ]


async def test_a_write_that_is_sent_twice_is_done_once_and_answered_twice(api: Dashboard) -> None:
    queue, key = f"{api.prefix}once", uuid.uuid4().hex
    headers = {"Authorization": f"Bearer {TOKENS['olga']}", "Idempotency-Key": key}
    url = f"{api.url}/api/v1/queues/{queue}/messages"
    answers = [requests.post(url, json={"item": {"order": 1}}, headers=headers, timeout=30) for _ in range(3)]
    assert [each.status_code for each in answers] == [201] * 3
    assert len({each.content for each in answers}) == 1
    assert [each.headers.get("Idempotency-Replayed") for each in answers] == [None, "true", "true"]
    other = requests.post(url, json={"item": {"order": 2}}, headers=headers, timeout=30)
    assert (other.status_code, "another request" in other.json()["detail"]) == (422, True)
    adams = headers | {"Authorization": f"Bearer {TOKENS['adam']}"}
    assert requests.post(url, json={"item": {"order": 3}}, headers=adams, timeout=30).status_code == 201
    async with Storage.from_connection_string(api.connection_string) as storage:
        found = [item for message in await storage.queue(queue, dict).peek() for item in message.items]
    assert sorted(item["order"] for item in found) == [1, 3]


def test_an_act_on_a_name_that_nothing_has_is_answered_404_and_recorded_as_failed(api: Dashboard) -> None:
    name = f"{api.prefix}never"
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {TOKENS['adam']}"
        for method, path in (
            ("POST", f"/gates/{name}/close"),
            ("POST", f"/queues/{name}/clear"),
            ("POST", f"/queues/{name}/requeue"),
            ("DELETE", f"/queues/{name}"),
        ):
            answer = session.request(
                method,
                f"{api.url}/api/v1{path}",
                json={"reason": "x"} if method == "POST" else None,
                timeout=30,
            )
            assert answer.status_code == 404, (path, answer.text)
            assert f"{name} does not exist; nothing changed" in answer.json()["detail"]
        assert session.get(f"{api.url}/api/v1/gates/{name}", timeout=30).status_code == 404
    outcomes = [row["outcome"] for row in audit_of(api) if row["target"] == name]
    assert outcomes == ["intent", "failed"] * 4
    told = _command(api, "leash", name, "--reason", "x")
    assert (told.exit_code, "does not exist" in told.stderr) == (1, True)


async def test_a_gate_that_only_a_worker_knows_can_be_closed_though_it_is_closed(
    api: Dashboard, olga: Client
) -> None:
    gate = f"w{uuid.uuid4().hex[:8]}"
    worker = BareWorker(api, gate)
    worker.state = WorkerState(gates=(GateStatus(gate, "closed", waiting=True),))
    async with worker:
        url, headers = f"{api.url}/api/v1/gates/{gate}", {"Authorization": f"Bearer {TOKENS['olga']}"}
        await until(lambda: requests.get(url, headers=headers, timeout=30).ok, seconds=60)
        state = await asyncio.to_thread(olga.close_gate, gate, reason="x")
    assert (state.state, state.epoch) == ("closed", 0)


def test_a_new_token_is_shown_once_and_not_kept(api: Dashboard) -> None:
    body = {"name": "ci", "scope": "act", "role": "operator", "days": 30}
    url = f"{api.url}/api/v1/tokens"
    with Person(api, "adam") as adam:  # a token makes no other
        adam.get("/access/")
        headers = {
            "X-CSRFToken": adam.http.cookies["csrftoken"],
            "Referer": api.url,
            "Idempotency-Key": uuid.uuid4().hex,
        }
        made = adam.http.post(url, json=body, headers=headers, timeout=30)
        again = adam.http.post(url, json=body, headers=headers, timeout=30)
    assert (made.status_code, again.status_code) == (201, 409)
    token = made.json()["token"]
    assert requests.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=30).status_code == 200
    assert token not in api.manage(
        code="from dashboard.models import ApiAnswer\nprint(list(ApiAnswer.objects.values()))"
    )
    assert token not in api.said()


async def test_a_state_has_a_tag_and_a_change_can_be_for_that_state_alone(
    api: Dashboard, olga: Client
) -> None:
    gate = f"tagged-{uuid.uuid4().hex[:8]}"
    olga.create_gate(gate)
    headers = {"Authorization": f"Bearer {TOKENS['olga']}"}
    url = f"{api.url}/api/v1/gates/{gate}"

    def seen() -> requests.Response | None:
        answer = requests.get(url, headers=headers, timeout=30)
        return answer if answer.status_code == 200 else None

    first = await until(seen, seconds=60)
    assert first is not None
    tag = first.headers["ETag"]
    same = requests.get(url, headers=headers | {"If-None-Match": tag}, timeout=30)
    assert (same.status_code, same.content, same.headers["ETag"]) == (304, b"", tag)
    opened = requests.post(f"{url}/open", json={}, headers=headers | {"If-Match": tag}, timeout=30)
    assert (opened.status_code, opened.headers["ETag"]) == (200, '"e2"')
    late = requests.post(
        f"{url}/close", json={"reason": "x"}, headers=headers | {"If-Match": tag}, timeout=30
    )
    assert (late.status_code, "epoch 2, not 1" in late.json()["detail"]) == (412, True)
    with pytest.raises(ApiError) as refused:
        olga.close_gate(gate, reason="x", epoch=1)
    assert refused.value.status == 412
    assert olga.close_gate(gate, reason="x", epoch=2).state == "closed"
    changed = requests.get(url, headers=headers | {"If-None-Match": tag}, timeout=30)
    assert changed.status_code == 200


def test_a_request_id_goes_from_the_caller_into_the_answer_and_the_audit(api: Dashboard) -> None:
    mine, gate = uuid.uuid4().hex[:16], f"traced-{uuid.uuid4().hex[:8]}"
    headers = {"Authorization": f"Bearer {TOKENS['olga']}", "X-Request-ID": mine}
    answer = requests.post(f"{api.url}/api/v1/gates/{gate}/open", json={}, headers=headers, timeout=30)
    assert answer.headers["X-Request-ID"] == mine
    with Client(api.url, TOKENS["olga"]) as client:
        found = [row for row in client.audit(mine) if row.outcome == "done"]
    assert [(row.action, row.target, row.actor) for row in found] == [("gate.open", gate, "olga")]


def test_lists_come_in_pages_that_miss_and_repeat_nothing(api: Dashboard, olga: Client) -> None:
    for number in range(5):
        olga.open_gate(f"page-{number}-{uuid.uuid4().hex[:8]}")
    headers = {"Authorization": f"Bearer {TOKENS['olga']}"}
    ids, cursor = [], ""
    while True:
        page = requests.get(
            f"{api.url}/api/v1/audit?limit=3&cursor={cursor}", headers=headers, timeout=30
        ).json()
        ids += [row["id"] for row in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert ids == sorted(set(ids), reverse=True)
    assert set(ids) <= {row.id for row in olga.audit()}
    assert len(ids) >= 5


def test_a_body_that_is_too_large_or_no_json_is_refused_with_the_bound(api: Dashboard) -> None:
    headers = {"Authorization": f"Bearer {TOKENS['olga']}", "Content-Type": "application/json"}
    url = f"{api.url}/api/v1/queues/{api.prefix}big/messages"
    large = requests.post(url, data=b'{"item": "' + b"x" * 300_000 + b'"}', headers=headers, timeout=30)
    assert (large.status_code, "256 KiB" in large.json()["detail"]) == (413, True)
    chunked = requests.post(
        url, data=iter([b'{"item": "' + b"x" * 300_000, b'"}']), headers=headers, timeout=30
    )
    assert chunked.status_code == 413
    item = requests.post(url, data=b'{"item": "' + b"x" * 70_000 + b'"}', headers=headers, timeout=30)
    assert (item.status_code, "65536" in item.json()["detail"]) == (413, True)
    for body in (b"{", b'{"item": NaN}', b'{"item": "\\ud800"}', b"\xff"):
        assert requests.post(url, data=body, headers=headers, timeout=30).status_code == 400


def test_the_client_tells_what_is_wrong_and_tries_again_in_vain_for_a_bounded_time(api: Dashboard) -> None:
    with Client(api.url, "kp_nobody_0123456789_0123456789") as stranger, pytest.raises(ApiError) as refused:
        next(stranger.gates())
    assert (refused.value.status, "valid token" in str(refused.value)) == (401, True)
    with Client(api.url, TOKENS["olga"]) as olga, pytest.raises(ApiError, match="path.name"):
        olga.open_gate("No Name")
    patience = Backoff(base_seconds=0.01, cap_seconds=0.05, deadline_seconds=0.3)
    with (
        Client(f"http://127.0.0.1:{free_port()}", TOKENS["olga"], backoff=patience) as nobody,
        pytest.raises(ApiUnavailable) as away,
    ):
        nobody.open_gate("start-it")
    assert away.value.maybe_done
    for url, token in (
        ("ftp://x", "t"),
        ("https://user:pw@x", "t"),
        ("https://x", ""),
        ("https://x", "a\nb"),
    ):
        with pytest.raises(ConfigurationError):
            Client(url, token)


def test_the_command_line_wants_both_or_none_and_the_token_says_who(api: Dashboard) -> None:
    one = _command(api, "release", "start-it", token="")
    assert (one.exit_code, "KENNEL_API_TOKEN is missing" in one.stderr) == (2, True)
    by = _command(api, "release", "start-it", "--by", "somebody")
    assert (by.exit_code, "the token identifies you" in by.stderr) == (2, True)
    assert TOKENS["olga"] not in by.stdout + by.stderr
