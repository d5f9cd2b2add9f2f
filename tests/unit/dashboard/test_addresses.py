"""Promises of the addresses of connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.protocols.websockets import websockets_sansio_impl

from dashboard.hub import addresses


class Transport(asyncio.BaseTransport):
    def __init__(self, **info: Any) -> None:
        super().__init__(info)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        (("10.0.0.1", 443), ("10.0.0.1", 443)),
        (("::1", 443, 0, 0), ("::1", 443)),
        (None, None),
        ("", None),
    ],
)
def test_an_address_is_host_and_port(name: Any, address: Any) -> None:
    transport = Transport(sockname=name, peername=name)
    assert addresses.local_address(transport) == addresses.remote_address(transport) == address


def test_a_unix_socket_has_a_path_and_no_peer() -> None:
    transport = Transport(sockname="/run/kennel.sock", peername="")
    assert addresses.local_address(transport) == ("/run/kennel.sock", None)
    assert addresses.remote_address(transport) is None


async def test_they_are_what_uvicorn_would_ask_the_socket_for() -> None:
    found: list[tuple[Any, Any]] = []

    class Accepting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            own = (addresses.local_address(transport), addresses.remote_address(transport))
            found.append((own, (get_local_addr(transport), get_remote_addr(transport))))
            transport.close()

    server = await asyncio.get_running_loop().create_server(Accepting, "127.0.0.1", 0)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        while not found:
            await asyncio.sleep(0.01)
        writer.close()
    assert found[0][0] == found[0][1]


def test_uvicorns_protocols_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for protocol in (httptools_impl, websockets_sansio_impl):
        for name in ("get_local_addr", "get_remote_addr"):
            monkeypatch.setattr(protocol, name, getattr(protocol, name))
    addresses.from_transports()
    for protocol in (httptools_impl, websockets_sansio_impl):
        assert vars(protocol)["get_local_addr"] is addresses.local_address
        assert vars(protocol)["get_remote_addr"] is addresses.remote_address
