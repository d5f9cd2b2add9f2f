"""One address before several servers, as a load balancer's: new connections go to whichever server is set."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable


class Relay:
    """Passes bytes on. Connections to a server that ends, end.

    `requests` counts what clients sent: a small request that waits for its answer comes in one piece.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.requests = 0

    def _count(self) -> None:
        self.requests += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, back, self._count))
                both.create_task(_pump(there, writer, lambda: None))
        finally:
            for end in (writer, back):
                end.close()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[], None]
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            count()
            writer.write(data)
            await writer.drain()
        # One side has ended: end the other, which ends its pump.
        writer.close()


@contextlib.asynccontextmanager
async def relay(target: int) -> AsyncIterator[Relay]:
    """Listens on a free port."""
    running = Relay(target)
    server = await asyncio.start_server(running._serve, "127.0.0.1", 0)
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()
