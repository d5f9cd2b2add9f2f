"""One act, whichever way it is asked for: the same row in the audit; and a team's gate is closed to others every way."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import ClientConnection

from coordinator.client import Client
from coordinator.errors import ApiError
from coordinator.realtime import protocol
from tests.support.dashboard import PROJECT, Dashboard, Person, audit_of
from tests.support.processes import run_program

REASON = "stock check"


def token_of(person: Person) -> str:
    """A personal token that acts, made on the page."""
    form = {"name": "tests", "role": "operator", "days": "1"}
    found = re.search(r'value="(kp_[^"]+)"', person.post("/access/tokens", form, page="/access/").text)
    assert found is not None
    return found[1]


def set_member(admin: Person, team: str, name: str, *, leave: bool = False) -> None:
    form = {"team": team, "user": name} | ({"leave": "1"} if leave else {})
    assert admin.post("/access/members", form, page="/access/").ok


def by_command(dashboard: Dashboard, token: str, *command: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("KENNEL_", "AZURE_"))}
    env = kept | {"KENNEL_API_URL": dashboard.url, "KENNEL_API_TOKEN": token, "PYTHONPATH": str(PROJECT)}
    return run_program([sys.executable, "-m", "coordinator", *command], env=env, seconds=90)


async def by_socket(person: Person, action: str, target: str) -> dict[str, Any]:
    async with person.socket("gates") as socket:
        await socket.send(person.frame(action, target, reason=REASON))
        return await _answer(socket)


async def _answer(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            frame = str(await socket.recv())
            if frame.startswith("{"):
                answer: dict[str, Any] = json.loads(frame)
                return answer


@pytest.fixture
def olga(dashboard: Dashboard) -> Iterator[Person]:
    with Person(dashboard, "olga") as person:
        yield person


@pytest.fixture
def adam(dashboard: Dashboard) -> Iterator[Person]:
    with Person(dashboard, "adam") as person:
        yield person


def told(rows: list[dict[str, Any]], gate: str) -> list[dict[str, Any]]:
    """The rows of a gate without what differs each time; its name and epoch as words."""
    same = ("actor", "address", "action", "outcome", "reason", "before", "after")
    return [{name: row[name] for name in same} for row in rows if row["target"] == gate]


async def test_page_socket_api_and_command_line_write_the_same_rows(
    dashboard: Dashboard, olga: Person
) -> None:
    token = token_of(olga)

    def page(gate: str) -> None:
        assert olga.post(f"/gates/{gate}/unleash", {"reason": REASON}).ok
        assert olga.post(f"/gates/{gate}/leash", {"reason": REASON}).ok

    def api(gate: str) -> None:
        with Client(dashboard.url, token) as client:
            client.open_gate(gate, reason=REASON)
            client.close_gate(gate, reason=REASON)

    def command(gate: str) -> None:
        for verb in ("release", "leash"):
            done = by_command(dashboard, token, verb, gate, "--reason", REASON)
            assert done.returncode == 0, done.stderr

    ways: dict[str, Callable[[str], None]] = {"by-page": page, "by-api": api, "by-command": command}
    for gate, way in ways.items():
        await asyncio.to_thread(way, gate)
    for action in ("gate.open", "gate.close"):
        assert (await by_socket(olga, action, "by-socket"))["ok"]
    rows = await asyncio.to_thread(audit_of, dashboard)
    expected = told(rows, "by-page")
    assert [(row["action"], row["outcome"]) for row in expected] == [
        ("gate.open", "intent"),
        ("gate.open", "done"),
        ("gate.close", "intent"),
        ("gate.close", "done"),
    ]
    assert {row["actor"] for row in expected} == {"olga"}
    for gate in ("by-api", "by-command", "by-socket"):
        assert told(rows, gate) == expected, gate


async def test_another_teams_gate_is_closed_to_others_every_way(
    dashboard: Dashboard, olga: Person, adam: Person
) -> None:
    token = token_of(olga)
    rule = {"team": "payments", "kind": "gate", "pattern": "pay-*", "role": "operator"}
    assert adam.post("/access/rules", rule, page="/access/").ok
    answer = await asyncio.to_thread(olga.post, "/gates/pay-page/unleash")
    assert answer.status_code == 403
    done = await by_socket(olga, "gate.open", "pay-socket")
    assert "team payments" in done["error"]
    with Client(dashboard.url, token) as client, pytest.raises(ApiError):
        client.open_gate("pay-api", reason=REASON)
    refused = by_command(dashboard, token, "release", "pay-command")
    assert refused.returncode != 0
    rows = [row for row in audit_of(dashboard) if row["target"].startswith("pay-")]
    assert [(row["target"], row["actor"], row["outcome"]) for row in rows] == [
        (f"pay-{way}", "olga", "denied") for way in ("page", "socket", "api", "command")
    ]
    set_member(adam, "payments", "olga")
    assert (await by_socket(olga, "gate.open", "pay-socket"))["ok"]
    set_member(adam, "payments", "olga", leave=True)


async def test_who_leaves_a_team_loses_the_open_socket(olga: Person, adam: Person) -> None:
    set_member(adam, "shipping", "olga")
    async with olga.socket("gates") as socket:
        await socket.recv()
        set_member(adam, "shipping", "olga", leave=True)
        with pytest.raises(websockets.ConnectionClosed):  # noqa: PT012 - regions may come first
            async with asyncio.timeout(30):
                while True:
                    await socket.recv()
        assert socket.close_code == protocol.CLOSE_FORBIDDEN
