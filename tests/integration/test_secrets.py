"""Secrets planted everywhere come out nowhere: not in pages, sockets, answers, logs, the database, or what commands print."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator import Storage
from coordinator.testing.azurite import KEY, Azurite
from tests.support.dashboard import PASSWORD, PROJECT, TOKEN, Dashboard, Person
from tests.support.ports import free_port
from tests.support.processes import start_server, stop_server
from tests.support.stack import wait_until

SECRET_KEY = "planted-secret-key-" * 3
BODY = "planted-in-a-message"
PLANTED = {"account key": KEY, "worker token": TOKEN, "secret key": SECRET_KEY, "password": PASSWORD}
PAGES = (
    "/",
    "/gates/",
    "/queues/",
    "/workers/",
    "/leaders/",
    "/sequences/",
    "/scaling/",
    "/cost/",
    "/tv",
    "/audit/",
    "/audit.csv",
    "/search/?q=kw_",
)
ANSWERS = (
    "/api/v1/fleet",
    "/api/v1/attention",
    "/metrics",
    "/healthz",
    "/readyz",
    "/nowhere",
    "/accounts/login/",
)
WORKER = """
from coordinator import RetryPolicy, Worker

worker = Worker("planted")

@worker.listen("{queue}", tasks=range(1, 3), retries=RetryPolicy(attempts=1))
def fail(order: dict) -> None:
    raise RuntimeError("the handler's own words")

@worker.lead("month-end")
async def lead(term) -> None: ...
"""


def assert_none(text: str, where: str, **more: str) -> None:
    for what, secret in {**PLANTED, **more}.items():
        assert secret not in text, f"the {what} is in {where}"


@pytest.mark.timeout(180)
async def test_planted_secrets_are_nowhere_in_what_comes_out(
    azurite: Azurite, storage_prefix: str, tmp_path: Path
) -> None:
    queue = f"{storage_prefix}orders"
    dashboard = Dashboard(
        tmp_path, azurite.connection_string, storage_prefix, {"KENNEL_SECRET_KEY": SECRET_KEY}
    )
    (tmp_path / "planted.py").write_text(WORKER.format(queue=queue))
    async with Storage.from_env(dashboard.env) as storage:
        await storage.gate("start").open(by="olga", reason="x")
        await storage.queue(queue).put({"card": BODY})
        await storage.queue(queue).put_text(f"{{{BODY}")
    log = tmp_path / "worker.log"
    with dashboard:
        worker = start_server(
            [sys.executable, "-m", "coordinator", "--log-level", "debug", "run", "planted:worker"],
            log=log,
            env=dashboard.env
            | {
                "KENNEL_HUB_URL": dashboard.hub_url,
                "KENNEL_WORKER_TOKEN": TOKEN,
                "PYTHONPATH": f"{PROJECT}{os.pathsep}{tmp_path}",
            },
        )
        try:
            wait_until(lambda: "the handler's own words" in log.read_text(), "the handler has failed")
            wait_until(lambda: "Connected to the hub" in log.read_text(), "the worker is connected")
            came_out, session = await asyncio.to_thread(browse, dashboard)
            with Person(dashboard, "olga") as olga:
                async with olga.socket() as socket:
                    came_out["socket"] = str(await asyncio.wait_for(socket.recv(), 10))
        finally:
            stop_server(worker)
        read_token = dashboard.manage("worker_token", "create", "reader", "--scope", "read").split()[-1]
        came_out["list of tokens"] = dashboard.manage("worker_token", "list")
    came_out["log of the dashboard"] = dashboard.said()
    came_out["log of the worker"] = log.read_text()
    for where, text in came_out.items():
        assert_none(text, where, session=session, read_token=read_token)
    for where in ("log of the dashboard", "log of the worker"):
        assert_none(came_out[where], where, body=BODY)
    database = b"".join(path.read_bytes() for path in tmp_path.glob("dashboard.sqlite3*"))
    assert len(database) > 100_000
    assert_none(database.decode("latin-1"), "the database", read_token=read_token)


def browse(dashboard: Dashboard) -> tuple[dict[str, str], str]:
    """Everything that an administrator's browser gets, a failed sign-in among it; and the session's key."""
    came_out = {}
    with Person(dashboard, "adam") as adam:
        for path in (*PAGES, *ANSWERS):
            answer = adam.get(path)
            assert answer.status_code == (404 if path == "/nowhere" else 200), path
            came_out[path] = answer.text
        session = str(adam.http.cookies["sessionid"])
        came_out["press"] = adam.post("/gates/start/leash", {"reason": "because"}).text
        stranger = Person(dashboard, "mallory")
        wrong = {"username": "adam", "password": PASSWORD + "x"}
        came_out["failed sign-in"] = stranger.post("/accounts/login/", wrong, page="/accounts/login/").text
        stranger.http.close()
    return came_out, session


@pytest.mark.parametrize("command", [["doctor"], ["queue", "count", "orders"], ["ids", "list", "orders"]])
def test_commands_that_fail_tell_no_secret(command: list[str], tmp_path: Path) -> None:
    port = free_port()
    text = f"AccountName=devstoreaccount1;AccountKey={KEY};" + "".join(
        f"{service}Endpoint=http://127.0.0.1:{port}/devstoreaccount1;"
        for service in ("Blob", "Queue", "Table")
    )
    done = subprocess.run(
        [sys.executable, "-m", "coordinator", "--log-level", "debug", *command],
        env=os.environ | {"AZURE_STORAGE_CONNECTION_STRING": text, "KENNEL_WORKER_TOKEN": TOKEN},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert_none(done.stdout + done.stderr, " ".join(command))
