"""A hub that a test can make deaf, lying or dead: real websockets, real protocol, none of the dashboard."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import websockets
from websockets.asyncio.server import Server, ServerConnection, serve

from coordinator.realtime import protocol
from coordinator.realtime.bus import Notification


class SmallHub:
    """Welcomes every worker and passes announced hints on. `deaf` passes nothing on; `tell` says what the test likes;
    `cut` ends all connections as a killed process would, and refuses new ones until `start`."""

    def __init__(self) -> None:
        self.deaf = False
        self.receipts: list[protocol.Receipt] = []
        self.states: dict[str, protocol.WorkerState] = {}
        self.follows: dict[str, set[str]] = {}
        self._sockets: set[ServerConnection] = set()
        self._server: Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._port}/ws/workers/"

    @property
    def connected(self) -> int:
        return len(self._sockets)

    async def start(self) -> None:
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            self._port,
            subprotocols=[websockets.Subprotocol(protocol.SUBPROTOCOL)],
            compression=None,
        )
        self._port = next(iter(self._server.sockets)).getsockname()[1]

    async def cut(self) -> None:
        assert self._server is not None
        for socket in self._sockets:
            socket.transport.abort()
        self._server.close(close_connections=False)
        await self._server.wait_closed()
        self._server = None

    def tell(self, hint: Notification) -> None:
        websockets.broadcast(self._sockets, protocol.encode(protocol.Hinted(hint)))

    async def _serve(self, socket: ServerConnection) -> None:
        try:
            hello = protocol.decode_from_worker(await socket.recv())
            assert isinstance(hello, protocol.Hello)
            await socket.send(protocol.encode(protocol.Welcome(protocol.VERSION, 30.0, time.time())))
            self._sockets.add(socket)
            state = hello.state
            self.follows[hello.worker] = {*(hello.follows or ())}
            async for frame in socket:
                match protocol.decode_from_worker(frame):
                    case protocol.Receipt() as receipt:
                        self.receipts.append(receipt)
                    case protocol.State() as beat:
                        state = protocol.whole(state, beat)
                        self.states[hello.worker] = state
                        self.follows[hello.worker] |= {*(beat.follows or ())}
                    case protocol.Announce(hint) if not self.deaf:
                        self.tell(hint)
                    case _:
                        pass
        except websockets.ConnectionClosed:
            pass
        finally:
            self._sockets.discard(socket)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            await self.cut()
