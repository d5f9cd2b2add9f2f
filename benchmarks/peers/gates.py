"""The servers that `benchmarks/gates.py` compares with: a bare `websockets.broadcast`, and Channels with a group message.

Prints its port; ends when its standard input closes. A message on ``/press`` goes to all who connected to ``/``.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from typing import Any


async def broadcast() -> None:
    import websockets
    from websockets.asyncio.server import ServerConnection, serve

    sockets: set[ServerConnection] = set()

    async def handle(connection: ServerConnection) -> None:
        if connection.request is not None and connection.request.path == "/press":
            async for message in connection:
                websockets.broadcast(sockets, message)
            return
        sockets.add(connection)
        try:
            await connection.wait_closed()
        finally:
            sockets.discard(connection)

    async with serve(handle, "127.0.0.1", 0, compression=None) as server:
        print(next(iter(server.sockets)).getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)


def channels(redis_url: str = "", kind: str = "pubsub") -> None:
    """In memory, or over Redis for several of these servers: by its `core` layer or the `pubsub` one."""
    layer: dict[str, Any] = {"BACKEND": "channels.layers.InMemoryChannelLayer"}
    if redis_url:
        # By default a thousand consumers would run out of its connections, and the core layer, which blocks for five
        # seconds, would fall to the driver's own patience of five.
        config = {"hosts": [{"address": redis_url, "max_connections": 10_000, "socket_timeout": None}]}
        name = {"core": "core.RedisChannelLayer", "pubsub": "pubsub.RedisPubSubChannelLayer"}[kind]
        layer = {"BACKEND": f"channels_redis.{name}", "CONFIG": config}
    import uvicorn
    from django.conf import settings

    settings.configure(
        SECRET_KEY="bench",  # noqa: S106 - nothing is signed with it
        INSTALLED_APPS=["channels"],
        CHANNEL_LAYERS={"default": layer},
    )
    import django

    django.setup()
    from channels.generic.websocket import AsyncWebsocketConsumer
    from channels.routing import ProtocolTypeRouter

    class Consumer(AsyncWebsocketConsumer):  # type: ignore[misc]
        groups = ["gate"]

        async def connect(self) -> None:
            if self.scope["path"] == "/press":
                await self.channel_layer.group_discard("gate", self.channel_name)
            await self.accept()

        async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
            await self.channel_layer.group_send("gate", {"type": "opened", "text": text_data})

        async def opened(self, event: dict[str, Any]) -> None:
            await self.send(text_data=event["text"])

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    print(listening.getsockname()[1], flush=True)
    server = uvicorn.Server(
        uvicorn.Config(
            ProtocolTypeRouter({"websocket": Consumer.as_asgi()}),
            log_level="critical",
            ws="websockets-sansio",
            ws_ping_interval=None,
        )
    )

    def end() -> None:
        sys.stdin.read()
        server.force_exit = server.should_exit = True

    threading.Thread(target=end, daemon=True).start()
    asyncio.run(server.serve(sockets=[listening]))


if __name__ == "__main__":
    if sys.argv[1] == "broadcast":
        asyncio.run(broadcast())
    else:
        channels(*sys.argv[2:])
