"""A fleet in the middle of its upgrade: workers of 0.1 at this dashboard, this worker at a hub of 0.1 and at a newer one.

The frames of 0.1 are literal, as it wrote them; what is said to it is read by the messages that it knew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

from coordinator import Storage, Worker
from coordinator.realtime import protocol
from tests.support.dashboard import TOKEN, Dashboard, Person, until

GATE = "start-order-processing"
WAITING = '{"gates":[{"name":"%s","state":"closed","waiting":true}],"requests":{"blob.read":3},"memory_bytes":7340032}'
HELLO = (
    '{"type":"hello","version":1,"worker":"NAME","instance":"NAME-1","host":"node-7","pid":4711,'
    f'"started_at":1763700000.5,"software":"kennel 0.1.0","prefix":"PREFIX","state":{WAITING % GATE}}}'
)
PASSED = '{"gates":[{"name":"%s","state":"open","epoch":%d,"passed_epoch":%d}]}'


class Notification(msgspec.Struct):
    topic: str
    epoch: int = 0
    size: int = 0
    origin: str = ""


class Welcome(msgspec.Struct, tag="welcome"):
    version: int
    heartbeat_seconds: float
    server_time: float


class Hinted(msgspec.Struct, tag="hint"):
    hint: Notification


class Command(msgspec.Struct, tag="command"):
    verb: str
    id: str
    target: str = ""
    by: str = ""


OLD_FROM_HUB = msgspec.json.Decoder(Welcome | Hinted | Command)


class OldWorker:
    """A worker of 0.1: closes the socket, as it did, at the first frame that it does not know."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: list[Welcome | Hinted | Command] = []
        self.socket: ClientConnection

    @contextlib.asynccontextmanager
    async def at(self, dashboard: Dashboard) -> AsyncIterator[OldWorker]:
        async with connect(
            dashboard.hub_url,
            additional_headers={"Authorization": f"Bearer {TOKEN}"},
            subprotocols=[websockets.Subprotocol("kennel.v1")],
            compression=None,
            open_timeout=60,
        ) as self.socket:
            await self.say(HELLO.replace("NAME", self.name).replace("PREFIX", dashboard.prefix))
            listening = asyncio.create_task(self._listen())
            try:
                yield self
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def say(self, frame: str) -> None:
        await self.socket.send(frame)

    async def _listen(self) -> None:
        async for frame in self.socket:
            self.heard.append(OLD_FROM_HUB.decode(frame))

    def hints(self, topic: str) -> list[Notification]:
        return [each.hint for each in self.heard if isinstance(each, Hinted) and each.hint.topic == topic]


async def test_a_worker_of_0_1_is_released_counted_and_commanded_by_this_dashboard(
    dashboard: Dashboard,
) -> None:
    async with OldWorker("old").at(dashboard) as old, OldWorker("other").at(dashboard) as other:
        await until(lambda: old.heard and other.heard)
        assert isinstance(old.heard[0], Welcome)
        assert old.heard[0].version == 1
        await old.say('{"type":"state","state":%s}' % (WAITING % GATE))
        with Person(dashboard, "olga") as olga:
            await until(lambda: set(_gate(olga).get("waiting", ())) == {"old", "other"})
            await asyncio.to_thread(olga.post, f"/gates/{GATE}/unleash")
            for each in (old, other):
                await until(lambda each=each: each.hints(f"gate:{GATE}"))  # type: ignore[misc]
                epoch = each.hints(f"gate:{GATE}")[-1].epoch
                receipt = '{"type":"receipt","gate":"%s","epoch":%d,"source":"push","delay_seconds":0.03,"passed_at":%r}'
                await each.say(receipt % (GATE, epoch, time.time()))
                await each.say('{"type":"state","state":%s}' % (PASSED % (GATE, epoch, epoch)))
            await until(lambda: _release(olga) == (2, 2, []))
            await old.say('{"type":"announce","hint":{"topic":"queue:orders-in","size":512,"origin":"old"}}')
            await until(lambda: other.hints("queue:orders-in"))
            await asyncio.to_thread(olga.post, "/workers/old-1/drain", page="/workers/")
            await until(lambda: isinstance(old.heard[-1], Command) and old.heard[-1].verb == "drain")


@pytest.mark.parametrize(
    ("version", "oldest", "welcomed"), [(1, 1, True), (7, 1, True), (7, None, False), (9, 8, False)]
)
async def test_a_worker_of_another_version_is_met_at_a_common_one_or_told_why_not(
    dashboard: Dashboard, version: int, oldest: int | None, welcomed: bool
) -> None:
    hello = {
        "type": "hello", "version": version, "worker": "newer", "instance": "newer-1", "host": "h", "pid": 1,
        "started_at": 1.0, "software": "kennel 9.0", "prefix": dashboard.prefix, "state": {"moods": ["new"]},
        "unheard_of": {"really": 1},
    }  # fmt: skip
    if oldest is not None:
        hello["oldest"] = oldest
    async with connect(
        dashboard.hub_url, additional_headers={"Authorization": f"Bearer {TOKEN}"}, open_timeout=60
    ) as socket:
        await socket.send(json.dumps(hello))
        if welcomed:
            assert json.loads(await socket.recv())["version"] == min(version, protocol.VERSION)
        else:
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == protocol.CLOSE_MALFORMED
            assert f"protocol version {version if oldest is None else '8 to 9'}" in closed.value.rcvd.reason


class OtherHub:
    """A hub that says what a test has it say, word for word."""

    def __init__(self, welcome: str) -> None:
        self.welcome = welcome
        self.heard: list[dict[str, Any]] = []
        self.sockets: list[ServerConnection] = []

    async def handle(self, socket: ServerConnection) -> None:
        self.heard.append(json.loads(await socket.recv()))
        self.sockets.append(socket)
        with contextlib.suppress(websockets.ConnectionClosed):
            await socket.send(self.welcome)
            async for frame in socket:
                self.heard.append(json.loads(frame))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.heard if each["type"] == kind]


@contextlib.asynccontextmanager
async def _worker_at(
    hub: OtherHub, connection_string: str, prefix: str
) -> AsyncIterator[tuple[Worker, asyncio.Task[Any]]]:
    """A real worker that waits at the gate, once it has looked at it."""
    async with serve(
        hub.handle, "127.0.0.1", 0, subprotocols=[websockets.Subprotocol("kennel.v1")]
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        environ = {
            "AZURE_STORAGE_CONNECTION_STRING": connection_string,
            "KENNEL_PREFIX": prefix,
            "KENNEL_HUB_URL": f"ws://127.0.0.1:{port}/ws/workers/",
            "KENNEL_WORKER_TOKEN": TOKEN,
        }
        worker = Worker("upgraded", environ=environ, identity="new")
        gate = worker.gate(GATE)
        waiting = asyncio.create_task(gate.wait())
        running = asyncio.create_task(worker.run())
        try:
            await until(lambda: gate.state is not None and gate.waiting)
            yield worker, waiting
        finally:
            waiting.cancel()
            worker.stop()
            await asyncio.gather(running, waiting, return_exceptions=True)


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    """What opens gates from elsewhere, and tells nobody."""
    made = Storage.from_env(
        {"AZURE_STORAGE_CONNECTION_STRING": connection_string, "KENNEL_PREFIX": storage_prefix}
    )
    yield made
    await made.aclose()
    made.close()


OLD_WELCOME = '{"type":"welcome","version":1,"heartbeat_seconds":0.2,"server_time":1763700000.75}'
NEW_WELCOME = '{"type":"welcome","version":1,"heartbeat_seconds":0.2,"server_time":1.5,"region":"west","limits":{"frames":9}}'
NEWER_FRAMES = (
    '{"type":"promote","to":"captain"}',
    '{"type":"command","verb":"dance","id":"c9","steps":[1,2]}',
)


@pytest.mark.parametrize(
    ("welcome", "before", "hint"),
    [
        (OLD_WELCOME, (), '{"type":"hint","hint":{"topic":"gate:%s","epoch":%d}}'),
        (NEW_WELCOME, NEWER_FRAMES, '{"type":"hint","hint":{"topic":"gate:%s","epoch":%d,"mood":"blue"},"ttl":5}'),
    ],
    ids=["a hub of 0.1", "a newer hub"],
)  # fmt: skip
async def test_this_worker_is_released_by_the_push_of_an_older_and_of_a_newer_hub(
    connection_string: str,
    storage_prefix: str,
    storage: Storage,
    welcome: str,
    before: tuple[str, ...],
    hint: str,
) -> None:
    hub = OtherHub(welcome)
    async with _worker_at(hub, connection_string, storage_prefix) as (worker, waiting):
        await until(lambda: hub.of("state"))
        for frame in before:
            await hub.sockets[0].send(frame)
        opened = await storage.gate(GATE).open(by="olga")
        await hub.sockets[0].send(hint % (GATE, opened.epoch))
        release = await asyncio.wait_for(waiting, 60)
        assert (release.epoch, release.request_id) == (opened.epoch, "")
        await until(lambda: hub.of("receipt"))
        await until(_told(hub, opened.epoch))
        assert len(hub.sockets) == 1, "the worker left over what it does not know"
        assert worker.mode == "running"
    receipt = hub.of("receipt")[0]
    assert {"gate": GATE, "epoch": opened.epoch} == {key: receipt[key] for key in ("gate", "epoch")}
    assert set(receipt) == {"type", "gate", "epoch", "source", "delay_seconds", "passed_at"}
    hello = hub.heard[0]
    old = {"version", "worker", "instance", "host", "pid", "started_at", "software", "prefix", "state"}
    assert old < set(hello)


async def test_a_worker_that_shares_no_version_with_its_hub_says_so_and_polls(
    connection_string: str, storage_prefix: str, storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="coordinator.realtime.hub_client")
    hub = OtherHub('{"type":"welcome","version":7,"heartbeat_seconds":1.0,"server_time":1.0}')
    async with _worker_at(hub, connection_string, storage_prefix) as (_, waiting):
        await until(lambda: len(hub.sockets) >= 2)
        opened = await storage.gate(GATE).open(by="olga")
        release = await asyncio.wait_for(waiting, 60)
        assert (release.epoch, release.source) == (opened.epoch, "poll")
    assert "protocol version 7; this end knows 1" in caplog.text
    assert not hub.of("state")


def _told(hub: OtherHub, epoch: int) -> Callable[[], bool]:
    def look() -> bool:
        gates = hub.of("state")[-1]["state"].get("gates", ())
        return any(gate.get("passed_epoch") == epoch for gate in gates)

    return look


def _gate(person: Person) -> dict[str, Any]:
    gates = person.get("/api/v1/fleet").json()["gates"]
    return next((gate for gate in gates if gate["name"] == GATE), {})


def _release(person: Person) -> tuple[int, int, list[str]] | None:
    release = _gate(person).get("release")
    return (release["expected"], release["passed"], release["stragglers"]) if release else None
