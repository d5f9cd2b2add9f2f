"""What the sockets of workers and browsers have in common, and the one place where Channels' missing types are met."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from channels.consumer import get_handler_name
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer

log = logging.getLogger(__name__)

# The wire allows 123 bytes.
MAX_REASON_BYTES = 120


class Socket(AsyncWebsocketConsumer):
    """A websocket that is closed with a code and a reason, never silently.

    Frames are handled one after the other, without a visit to the database's thread for each: with a thousand workers
    that would be most of what the hub does. What needs the database says so, by `database_sync_to_async`.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope, self.base_send = scope, send
        with suppress(StopConsumer):
            while True:
                message = await receive()
                await getattr(self, get_handler_name(message))(message)

    async def refuse(self, code: int) -> None:
        """Close before accepting: the handshake is answered with 403."""
        await self.close(code)  # type: ignore[no-untyped-call]

    async def welcome(self, subprotocol: str | None = None) -> None:
        """Accept the handshake."""
        await self.accept(subprotocol)  # type: ignore[no-untyped-call]

    async def send_text(self, frame: str) -> None:
        """Send one frame."""
        await self.base_send({"type": "websocket.send", "text": frame})

    async def go_away(self, code: int, reason: str) -> None:
        """Close, telling why."""
        log.info("Closing the socket of %s: %s", self, reason)
        text = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        await self.close(code, text)  # type: ignore[no-untyped-call]
