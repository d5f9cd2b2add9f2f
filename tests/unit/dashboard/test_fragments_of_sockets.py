"""Pings and fragments, which no consumer sees, on a real connection to uvicorn's protocol."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from dashboard.hub import socket

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PING = b"\x89\x80\x00\x00\x00\x00"
PONG = b"\x8a\x80\x00\x00\x00\x00"
BEGIN, MORE, END = b"\x01\x81\x00\x00\x00\x00a", b"\x00\x80\x00\x00\x00\x00", b"\x80\x81\x00\x00\x00\x00b"


class Peer(SimpleNamespace):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    heard: list[Any]
    ended: asyncio.Event


@pytest.fixture
async def peer() -> Any:
    """The other end of a connection whose application keeps what it hears."""
    socket.guard_fragments()
    heard: list[Any] = []
    ended = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while True:
            heard.append(await receive())
            if heard[-1]["type"] == "websocket.disconnect":
                ended.set()
                return

    config = Config(application, ws_ping_interval=None)
    config.load()

    def make() -> Any:
        return WebSocketsSansIOProtocol(config=config, server_state=ServerState(), app_state={})

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    async with server, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(HANDSHAKE)
        await reader.readuntil(b"\r\n\r\n")
        yield Peer(reader=reader, writer=writer, heard=heard, ended=ended)
        writer.close()


@pytest.mark.parametrize(
    "flood", [PING * 40_000, PONG * 40_000, BEGIN + MORE * 40_000], ids=["pings", "pongs", "fragments"]
)
async def test_a_socket_that_floods_what_nobody_sees_is_closed_and_not_read_any_more(
    peer: Peer, flood: bytes
) -> None:
    peer.writer.write(flood)
    said = await peer.reader.read()
    assert struct.pack("!H", 4429) in said
    assert said.count(b"\x8a\x00") <= socket.STEP_BYTES / len(PING)
    await peer.ended.wait()
    assert [each["type"] for each in peer.heard] == ["websocket.disconnect"]
    assert peer.heard[0]["code"] == 4429


async def test_some_pings_are_answered_and_a_frame_in_some_pieces_is_whole(peer: Peer) -> None:
    peer.writer.write(PING * 20 + BEGIN + MORE * 20 + END + PONG)
    assert await peer.reader.readexactly(40) == b"\x8a\x00" * 20
    while not peer.heard:
        await asyncio.sleep(0.01)
    assert peer.heard == [{"type": "websocket.receive", "text": "ab"}]
