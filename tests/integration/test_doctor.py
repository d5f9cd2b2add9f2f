"""Faults put in on purpose, one a test: the doctor finds each of them and names its cure."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas
from azure.storage.queue import QueueServiceClient
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from coordinator import Storage
from coordinator.clock import SystemClock
from coordinator.doctor import Finding, examine
from coordinator.realtime import protocol
from coordinator.testing.azurite import ACCOUNT, KEY, Azurite
from tests.support.ports import free_port

PROJECT = Path(__file__).resolve().parents[2]
WELL = {"ok", "skipped"}


@pytest.fixture
def environ(connection_string: str, storage_prefix: str) -> dict[str, str]:
    """The environment of a worker that lacks nothing."""
    return {"AZURE_STORAGE_CONNECTION_STRING": connection_string, "KENNEL_PREFIX": storage_prefix}


async def found(environ: dict[str, str], check: str, **options: Any) -> Finding:
    """The one finding about that check."""
    [finding] = [finding for finding in await examine(environ, **options) if finding.check == check]
    return finding


def with_sas(azurite: Azurite, permission: AccountSasPermissions, lasts: timedelta) -> str:
    sas = generate_account_sas(
        ACCOUNT,
        KEY,
        ResourceTypes(service=True, container=True, object=True),
        permission,
        datetime.now(UTC) + lasts,
        start=datetime.now(UTC) - timedelta(days=2),
        services="bqt",
    )
    endpoints = [part for part in azurite.connection_string.split(";") if "Endpoint=" in part]
    return ";".join([*endpoints, f"AccountName={ACCOUNT}", f"SharedAccessSignature={sas}"])


@dataclass
class Dashboard:
    """A hub of a few lines that knows one token and one prefix, and gives an account of itself."""

    prefix: str
    token: str = "sesame"
    version: int = protocol.VERSION
    health: dict[str, Any] = field(default_factory=lambda: {"ok": True, "database": True, "hub": True})
    port: int = 0
    heard: list[protocol.FromWorker] = field(default_factory=list)

    async def handle(self, socket: ServerConnection) -> None:
        hello = protocol.decode_from_worker(await socket.recv())
        self.heard.append(hello)
        assert isinstance(hello, protocol.Hello)
        if hello.prefix != self.prefix:
            await socket.close(protocol.CLOSE_FORBIDDEN, f"this dashboard watches prefix {self.prefix}")
            return
        await socket.send(protocol.encode(protocol.Welcome(self.version, 1.0, time.time())))
        await socket.wait_closed()

    def answer(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/readyz":
            return connection.respond(HTTPStatus.OK, json.dumps(self.health))
        if request.path != "/ws/workers/":
            return connection.respond(HTTPStatus.NOT_FOUND, "nothing here")
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return connection.respond(HTTPStatus.FORBIDDEN, "no")
        return None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[dict[str, str]]:
        async with serve(
            self.handle,
            "127.0.0.1",
            0,
            subprotocols=[protocol.SUBPROTOCOL],  # type: ignore[list-item]
            process_request=self.answer,
        ) as server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            yield {
                "KENNEL_HUB_URL": f"ws://127.0.0.1:{self.port}/ws/workers/",
                "KENNEL_WORKER_TOKEN": self.token,
            }


async def test_a_sound_worker_has_nothing_wrong_and_leaves_nothing_behind(
    environ: dict[str, str], storage_prefix: str, connection_string: str
) -> None:
    async with Storage.from_env(environ) as storage:
        await storage.gate("start").open(by="olga")
    dashboard = Dashboard(storage_prefix)
    async with dashboard.running() as hub:
        findings = await examine(environ | hub)
    assert {finding.verdict for finding in findings} <= WELL, findings
    assert {"blob rights", "queue rights", "table rights", "clock", "hub", "dashboard"} <= {
        finding.check for finding in findings
    }
    [hello] = dashboard.heard
    assert isinstance(hello, protocol.Hello) and hello.state.mode == "stopping"
    async with Storage.from_connection_string(connection_string) as storage:
        containers = [item.name async for item in storage.aio.blobs.list_containers()]
        queues = [item.name async for item in storage.aio.queues.list_queues()]
        tables = [item.name async for item in storage.aio.tables.list_tables()]
    left = [name for name in [*containers, *queues, *tables] if name.startswith(storage_prefix.rstrip("-"))]
    assert left == [f"{storage_prefix}gates", f"{storage_prefix.rstrip('-')}epochs"]


async def test_fault_1_no_account_is_named(environ: dict[str, str]) -> None:
    del environ["AZURE_STORAGE_CONNECTION_STRING"]
    finding = await found(environ, "storage account")
    assert finding.verdict == "fault" and "AZURE_STORAGE_CONNECTION_STRING" in finding.cure


@pytest.mark.parametrize("cut", ["AccountKey=", "=", "Endpoint"])
async def test_fault_2_a_connection_string_that_was_cut_off(environ: dict[str, str], cut: str) -> None:
    whole = environ["AZURE_STORAGE_CONNECTION_STRING"]
    environ["AZURE_STORAGE_CONNECTION_STRING"] = whole[: whole.index(cut)]
    finding = await found(environ, "storage account")
    assert finding.verdict == "fault" and "whole connection string" in finding.cure


async def test_fault_3_a_wrong_account_key(environ: dict[str, str]) -> None:
    text = environ["AZURE_STORAGE_CONNECTION_STRING"]
    environ["AZURE_STORAGE_CONNECTION_STRING"] = text.replace(KEY, "d3Jvbmc=")
    for service in ("blob", "queue", "table"):
        finding = await found(environ, f"{service} rights")
        assert finding.verdict == "fault" and "copy the connection string again" in finding.cure


async def test_fault_3_is_found_without_writing_too_and_no_question_disappears(
    environ: dict[str, str],
) -> None:
    text = environ["AZURE_STORAGE_CONNECTION_STRING"]
    environ["AZURE_STORAGE_CONNECTION_STRING"] = text.replace(KEY, "d3Jvbmc=")
    findings = {
        finding.check: finding for finding in await examine(environ, queues=["orders-in", "b"], write=False)
    }
    for check in ("prefix", "queue orders-in", "queue b"):
        assert findings[check].verdict == "fault"
        assert "403" in findings[check].found
        assert "Access keys" in findings[check].cure


async def test_a_queue_asked_about_is_not_passed_over_when_nobody_answers(environ: dict[str, str]) -> None:
    environ["AZURE_STORAGE_CONNECTION_STRING"] = (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
        + "".join(
            f"{each}Endpoint=http://127.0.0.1:{free_port()}/{ACCOUNT};" for each in ("Blob", "Queue", "Table")
        )
    )
    finding = await found(environ, "queue orders-in", queues=["orders-in"], write=False)
    assert (finding.verdict, finding.found) == ("skipped", "the queue service does not answer")


async def test_fault_4_storage_that_nobody_started(environ: dict[str, str]) -> None:
    environ["AZURE_STORAGE_CONNECTION_STRING"] = (
        f"AccountName=a;AccountKey={KEY};"
        + "".join(f"{s}Endpoint=http://127.0.0.1:{free_port()}/a;" for s in ("Blob", "Queue", "Table"))
    )  # fmt: skip
    findings = await examine(environ)
    assert {"blob rights", "prefix"}.isdisjoint(finding.check for finding in findings)
    for service in ("blob", "queue", "table"):
        [finding] = [finding for finding in findings if finding.check == f"{service} service"]
        assert finding.verdict == "fault" and "connection refused at 127.0.0.1" in finding.found
        assert "Start the emulator" in finding.cure


async def test_fault_5_an_account_name_that_does_not_exist(environ: dict[str, str]) -> None:
    environ["AZURE_STORAGE_CONNECTION_STRING"] = f"AccountName=nosuch;AccountKey={KEY};EndpointSuffix=invalid"
    finding = await found(environ, "table service")
    assert finding.verdict == "fault" and "host nosuch.table.invalid not found" in finding.found
    assert "general-purpose v2" in finding.cure


async def test_fault_6_a_signature_that_allows_reading_alone(azurite: Azurite, storage_prefix: str) -> None:
    text = with_sas(azurite, AccountSasPermissions(read=True, list=True), timedelta(days=30))
    environ = {"AZURE_STORAGE_CONNECTION_STRING": text, "KENNEL_PREFIX": storage_prefix}
    for service in ("blob", "queue", "table"):
        finding = await found(environ, f"{service} rights")
        assert finding.verdict == "fault" and "shared access signature that allows it" in finding.cure
    assert not [finding for finding in await examine(environ, write=False) if finding.verdict == "fault"]


async def test_a_signature_that_does_not_allow_tags_is_told_but_no_fault(azurite: Azurite) -> None:
    allowed = AccountSasPermissions(read=True, write=True, delete=True, list=True, add=True, create=True)
    environ = {"AZURE_STORAGE_CONNECTION_STRING": with_sas(azurite, allowed, timedelta(days=30))}
    finding = await found(environ, "blob rights")
    assert finding.verdict == "ok" and "not tag" in finding.found
    allowed = AccountSasPermissions(
        read=True, write=True, delete=True, list=True, add=True, create=True, tag=True
    )
    environ = {"AZURE_STORAGE_CONNECTION_STRING": with_sas(azurite, allowed, timedelta(days=30))}
    assert "and tag" in (await found(environ, "blob rights")).found


async def test_fault_7_a_signature_that_has_expired(azurite: Azurite) -> None:
    text = with_sas(azurite, AccountSasPermissions(read=True, list=True), -timedelta(hours=1))
    finding = await found({"AZURE_STORAGE_CONNECTION_STRING": text}, "storage signature")
    assert finding.verdict == "fault" and "Create a new one" in finding.cure
    text = with_sas(azurite, AccountSasPermissions(read=True, list=True), timedelta(days=2))
    finding = await found({"AZURE_STORAGE_CONNECTION_STRING": text}, "storage signature")
    assert finding.verdict == "warning" and "expires at" in finding.found


@pytest.mark.parametrize(("ahead", "verdict"), [(30.0, "warning"), (-1800.0, "fault")])
async def test_fault_8_a_clock_that_is_off(environ: dict[str, str], ahead: float, verdict: str) -> None:
    class Wrong(SystemClock):
        def time(self) -> float:
            return super().time() + ahead

    finding = await found(environ, "clock", clock=Wrong())
    assert finding.verdict == verdict and "NTP" in finding.cure


async def test_fault_9_a_prefix_that_no_name_may_begin_with(environ: dict[str, str]) -> None:
    finding = await found(environ | {"KENNEL_PREFIX": "Kennel_"}, "prefix")
    assert finding.verdict == "fault" and "KENNEL_PREFIX" in finding.cure


async def test_fault_10_a_prefix_under_which_no_fleet_lives(environ: dict[str, str]) -> None:
    async with Storage.from_env(environ) as storage:
        await storage.gate("start").open(by="olga")
    well = await found(environ, "prefix")
    assert well.verdict == "ok" and "gates" in well.found
    finding = await found(environ | {"KENNEL_PREFIX": "elsewhere-"}, "prefix")
    assert finding.verdict == "warning" and "set KENNEL_PREFIX" in finding.cure


async def test_fault_11_a_queue_misspelt_misnamed_or_with_poison(
    environ: dict[str, str], connection_string: str, storage_prefix: str
) -> None:
    name = f"{storage_prefix}orders-in"
    with QueueServiceClient.from_connection_string(connection_string) as service:
        for queue in (name, f"{name}-poison"):
            service.create_queue(queue)
        with service.get_queue_client(f"{name}-poison") as poison:
            poison.send_message("bad")
    asked = {"queues": [name, name + "s", "Orders_In"]}
    assert (await found(environ, f"queue {name}", **asked)).verdict == "ok"
    misspelt = await found(environ, f"queue {name}s", **asked)
    assert misspelt.verdict == "warning" and f"Did you mean {name}?" in misspelt.cure
    assert (await found(environ, "queue Orders_In", **asked)).verdict == "fault"
    failed = await found(environ, f"queue {name}-poison", **asked)
    assert failed.verdict == "warning" and "about 1 failed messages" in failed.found


async def test_fault_12_an_old_library(environ: dict[str, str]) -> None:
    def installed(name: str) -> str:
        return "0.17" if name == "msgspec" else version(name)

    finding = await found(environ, "libraries", installed=installed)
    assert finding.verdict == "fault" and "msgspec>=" in finding.cure


async def test_fault_13_another_program_on_the_port_of_storage(environ: dict[str, str]) -> None:
    async with Dashboard("kennel-").running() as hub:
        port = hub["KENNEL_HUB_URL"].split(":")[2].split("/")[0]
        text = environ["AZURE_STORAGE_CONNECTION_STRING"].split(";")
        swapped = [f"QueueEndpoint=http://127.0.0.1:{port}/a" if p.startswith("Queue") else p for p in text]
        finding = await found(
            environ | {"AZURE_STORAGE_CONNECTION_STRING": ";".join(swapped)}, "queue service"
        )
    assert finding.verdict == "fault" and "not as Azure Storage does" in finding.found


@pytest.mark.parametrize(
    ("change", "found_words", "cure_words"),
    [
        ({"KENNEL_WORKER_TOKEN": ""}, "KENNEL_WORKER_TOKEN is not", "worker_token"),
        ({"KENNEL_WORKER_TOKEN": "stale"}, "refused the token", "worker_token"),
        ({"KENNEL_PREFIX": "other-"}, "watches prefix", "same KENNEL_PREFIX"),
    ],
    ids=["no token", "wrong token", "other prefix"],
)
async def test_fault_14_a_hub_that_does_not_take_this_worker(
    environ: dict[str, str], storage_prefix: str, change: dict[str, str], found_words: str, cure_words: str
) -> None:
    async with Dashboard(storage_prefix).running() as hub:
        finding = await found(environ | hub | change, "hub")
    assert finding.verdict == "fault"
    assert found_words in finding.found and cure_words in finding.cure


@pytest.mark.parametrize(
    ("url", "found_words", "cure_words"),
    [
        ("http://127.0.0.1:{port}/", "not a websocket", "wss://"),
        ("ws://127.0.0.1:{port}/sockets/", "no workers' socket", "/ws/workers/"),
        ("ws://127.0.0.1:{closed}/ws/workers/", "no connection", "Start the dashboard"),
    ],
    ids=["not a socket", "wrong path", "nobody there"],
)
async def test_fault_15_a_hub_address_that_is_wrong(
    environ: dict[str, str], storage_prefix: str, url: str, found_words: str, cure_words: str
) -> None:
    dashboard = Dashboard(storage_prefix)
    async with dashboard.running() as hub:
        hub["KENNEL_HUB_URL"] = url.format(port=dashboard.port, closed=free_port())
        finding = await found(environ | hub, "hub")
    assert finding.verdict == "fault"
    assert found_words in finding.found and cure_words in finding.cure


async def test_fault_16_a_dashboard_of_another_release(environ: dict[str, str], storage_prefix: str) -> None:
    async with Dashboard(storage_prefix, version=99).running() as hub:
        finding = await found(environ | hub, "hub")
    assert finding.verdict == "fault" and "same release" in finding.cure


async def test_fault_17_a_dashboard_whose_layer_is_cut(environ: dict[str, str], storage_prefix: str) -> None:
    health = {"ok": True, "database": True, "hub": True, "storage": True, "degraded": "Redis does not answer"}
    async with Dashboard(storage_prefix, health=health).running() as hub:
        finding = await found(environ | hub, "dashboard")
    assert finding.verdict == "warning" and "Redis does not answer" in finding.found


async def test_the_command_exits_1_on_a_fault_and_shows_no_secret(
    environ: dict[str, str], storage_prefix: str
) -> None:
    async def run(env: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
        base = {
            name: value for name, value in os.environ.items() if not name.startswith(("AZURE_", "KENNEL_"))
        }
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "coordinator", "doctor", *options],
            env=base | env,
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=60,
        )

    async with Storage.from_env(environ) as storage:
        await storage.gate("start").open(by="olga")
    async with Dashboard(storage_prefix, token="c4nary-token").running() as hub:
        well, ill = await asyncio.gather(
            run(environ | hub),
            run(environ | hub | {"KENNEL_WORKER_TOKEN": "c4nary-other"}, "--json"),
        )
    assert well.returncode == 0, well.stdout + well.stderr
    assert well.stdout.splitlines()[-1] == "no faults, no warnings"
    assert ill.returncode == 1
    assert [json.loads(line)["check"] for line in ill.stdout.splitlines() if '"fault"' in line] == ["hub"]
    for said in (well, ill):
        assert KEY not in said.stdout + said.stderr and "c4nary" not in said.stdout + said.stderr
