"""A peer whose sockets are closed for what they send costs little: nothing more is decoded, and it comes back in turn."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.realtime import protocol
from dashboard.core.permissions import USUAL
from dashboard.hub import workers
from dashboard.hub.socket import (
    FREE_VIOLATIONS,
    HELD_PER_SECOND,
    HELD_SECONDS,
    MOST_HELD,
    MOST_KNOWN,
    Admissions,
    Connection,
    TokenThrottle,
    Turns,
)
from dashboard.hub.workers import WorkerConsumer


def spoilt(admissions: Admissions, origin: str, now: float) -> None:
    for _ in range(int(FREE_VIOLATIONS) + 1):
        admissions.violated(origin, now)


def test_who_breaks_the_rules_now_and_then_waits_for_nothing() -> None:
    admissions = Admissions()
    for second in range(1000):
        admissions.violated("a", float(second))
        assert admissions.wait_seconds("a", float(second)) == 0


def test_who_breaks_them_again_and_again_comes_in_one_after_the_other_and_nobody_else_waits() -> None:
    admissions = Admissions()
    spoilt(admissions, "a", 100.0)
    waits = [admissions.wait_seconds("a", 100.0) for _ in range(10)]
    assert waits == pytest.approx([n / HELD_PER_SECOND for n in range(10)])
    assert admissions.wait_seconds("b", 100.0) == 0


def test_too_many_are_refused_and_when_it_has_ended_for_a_while_nobody_waits() -> None:
    admissions = Admissions()
    spoilt(admissions, "a", 100.0)
    waits = [admissions.wait_seconds("a", 100.0) for _ in range(10 * MOST_HELD)]
    assert sum(wait is not None for wait in waits) <= MOST_HELD + 1
    assert admissions.wait_seconds("a", 100.0 + HELD_SECONDS) == 0


def test_what_is_known_of_origins_is_bounded() -> None:
    admissions = Admissions()
    for number in range(3 * MOST_KNOWN):
        spoilt(admissions, f"a-{number}", 100.0)
        admissions.wait_seconds(f"a-{number}", 100.0)
    assert admissions.wait_seconds("a-0", 100.0) == 0
    assert admissions.wait_seconds(f"a-{3 * MOST_KNOWN - 1}", 100.0) != 0


async def one_socket(frames: list[str], client: str = "10.0.0.9") -> list[dict[str, Any]]:
    """What is sent to a peer that sends these frames."""
    arrived = [
        {"type": "websocket.connect"},
        *({"type": "websocket.receive", "text": frame} for frame in frames),
    ]
    arrived.append({"type": "websocket.disconnect", "code": 1000})
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return arrived.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer kw_some_token")]
    await WorkerConsumer()({"type": "websocket", "headers": headers, "client": (client, 1)}, receive, send)
    return sent


@pytest.mark.django_db  # a consumer ends with a look at the connections of its thread
async def test_a_flood_of_sockets_is_admitted_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def checked(token: str) -> tuple[int, Any]:
        looked_up.append(token)
        return 1, USUAL

    looked_up: list[str] = []
    runtime = SimpleNamespace(
        admissions=Admissions(),
        token_throttle=TokenThrottle(),
        is_running=True,
        consumers=set(),
        sockets=None,
        turns=Turns(),
    )
    monkeypatch.setattr(workers, "current", lambda: runtime)
    monkeypatch.setattr(workers, "_checked", checked)
    now = [1000.0]  # a busy machine must not give the flood time
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for number in range(int(FREE_VIOLATIONS) + 20):
        if number > FREE_VIOLATIONS:
            now[0] += 1 / HELD_PER_SECOND
        sent = await asyncio.wait_for(one_socket(["{"]), 60)
        if sent[0]["type"] == "websocket.accept":
            assert sent[-1]["code"] == protocol.CLOSE_MALFORMED
    before = len(looked_up)
    crowd = [asyncio.create_task(one_socket(["{"])) for _ in range(10 * MOST_HELD)]
    for _ in range(100):
        await asyncio.sleep(0)
    refused = [task for task in crowd if task.done()]
    assert len(refused) >= 8 * MOST_HELD, "refused at once, or waiting for its turn"
    assert len(looked_up) - before < MOST_HELD, "no token is looked up before its turn"
    # From another address nobody waits.
    sent = await one_socket(["{"], client="10.0.0.10")
    assert sent[0]["type"] == "websocket.accept"
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)


class Uvicorns(asyncio.Protocol):
    """A server's end of a connection that counts what it gets."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.got = 0
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += len(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()


async def test_nothing_more_of_a_closed_connection_is_decoded_and_its_end_is_heard() -> None:
    loop, made = asyncio.get_running_loop(), []

    def make() -> Uvicorns:
        made.append(Uvicorns())
        return made[-1]

    server = await loop.create_server(make, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"bad frame")
        async with asyncio.timeout(30):
            while not (made and made[0].got):
                await asyncio.sleep(0.01)
            made[0].transport.write(b"close frame")
            Connection(made[0]).ignore()
            for _ in range(100):
                writer.write(b"x" * 10_000)
                await writer.drain()
            assert await reader.read() == b"close frame", "the peer gets what was sent, and the end"
            writer.close()
            await made[0].lost.wait()
    assert made[0].got == len(b"bad frame")


async def test_a_connection_that_is_cut_ends_at_once() -> None:
    loop, made = asyncio.get_running_loop(), []

    def make() -> Uvicorns:
        made.append(Uvicorns())
        return made[-1]

    server = await loop.create_server(make, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"frame")
        async with asyncio.timeout(30):
            while not (made and made[0].got):
                await asyncio.sleep(0.01)
            Connection(made[0]).abort()
            await made[0].lost.wait()
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
