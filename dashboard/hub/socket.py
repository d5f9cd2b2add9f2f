"""What the sockets of workers and browsers have in common, and the one place where Channels' missing types are met."""

from __future__ import annotations

import asyncio
import logging
import weakref
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any

from channels.consumer import get_handler_name
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer

log = logging.getLogger(__name__)

# The wire allows 123 bytes.
MAX_REASON_BYTES = 120
# How long a close frame may wait for a peer that takes nothing, and a closed connection for the rest to be taken.
CLOSE_SECONDS = 2.0
LINGER_SECONDS = 15.0

ABORT = "kennel.abort"


def abortable(inner: Any) -> Any:
    """Tells the consumers within how to end their connection at once.

    ASGI has no word for it: whatever is sent, a close too, stands in line behind what the peer does not take.
    uvicorn's `send` is a method of its protocol, which has the transport. Of other servers there is nothing to tell.
    """

    async def application(scope: Any, receive: Any, send: Any) -> None:
        transport = getattr(getattr(send, "__self__", None), "transport", None)
        if hasattr(transport, "abort"):
            scope = {**scope, ABORT: partial(_abort, weakref.ref(transport))}
        await inner(scope, receive, send)

    return application


def _abort(transport: weakref.ref[Any]) -> None:
    """A connection that has ended must not be kept in memory only to be cut off."""
    if (alive := transport()) is not None:
        alive.abort()


class Socket(AsyncWebsocketConsumer):
    """A websocket that is closed with a code and a reason, never silently; and within `CLOSE_SECONDS` for certain.

    Frames are handled one after the other, without a visit to the database's thread for each: with a thousand workers
    that would be most of what the hub does. What needs the database says so, by `database_sync_to_async`.
    """

    _task: asyncio.Task[Any] | None = None
    is_going = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope, self.base_send = scope, send
        self._task = asyncio.current_task()
        try:
            with suppress(StopConsumer):
                while True:
                    message = await receive()
                    await getattr(self, get_handler_name(message))(message)
                    # A burst that has arrived is taken frame by frame: neither the receiving nor the handling of one waits.
                    await asyncio.sleep(0)
        except BaseException:
            # A handler that met the end of the connection before its message came: whoever counts it is told all the same.
            await self.disconnect(1006)  # type: ignore[no-untyped-call]
            raise

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
        """Close, telling why. Harmless when repeated: frames that were on their way are of no account any more."""
        if self.is_going:
            return
        self.is_going = True
        log.info("Closing the socket of %s: %s", self, reason)
        text = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.close(code, text)  # type: ignore[no-untyped-call]
        except TimeoutError:
            self.abort()
        except RuntimeError as error:  # the peer was faster
            log.debug("The socket of %s was closed already: %s", self, error)
        else:
            if abort := self.scope.get(ABORT):
                asyncio.get_running_loop().call_later(LINGER_SECONDS, abort, context=Context())

    def abort(self) -> None:
        """End the connection now, with no word to the peer; what stands in its buffers is dropped."""
        log.info("Cutting the socket of %s: it takes not even the close", self)
        if not self._abort_transport() and self._task is not None:
            self._task.cancel()

    def _abort_transport(self) -> bool:
        abort = self.scope.get(ABORT)
        if abort is not None:
            abort()
        return abort is not None
