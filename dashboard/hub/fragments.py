"""What no consumer sees of a websocket, and what costs nevertheless: pings, pongs, and fragments of frames.

Guarantees for every socket, before it is admitted too: beyond `PER_SECOND` of them on average and `AT_ONCE` it is closed with
4429 and not read any more, and the answers to its pings are dropped with it if it does not take them within `IGNORED_SECONDS`.
"""

from __future__ import annotations

import time
from contextvars import Context
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from coordinator.realtime.protocol import CLOSE_TOO_FAST
from dashboard.hub.socket import IGNORED_SECONDS, Connection, RateLimit

PER_SECOND, AT_ONCE = 20.0, 100.0
# A read brings up to 256 KiB, which are 40,000 empty frames.
STEP_BYTES = 2048


def guard_fragments() -> None:
    """Extend uvicorn's class in place, as `dashboard.core.serving.guard_heads` does. Harmless when repeated."""
    if not hasattr(WebSocketsSansIOProtocol, "kennel_fragments"):
        _extend(WebSocketsSansIOProtocol)


def _extend(protocol: Any) -> None:
    received = protocol.data_received
    ping, pong, rest = protocol.handle_ping, protocol.handle_pong, protocol.handle_cont

    def data_received(self: Any, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(view), STEP_BYTES):
            if self.kennel_is_too_fast or self.transport.is_closing():
                return
            received(self, bytes(view[start : start + STEP_BYTES]))

    def handle_ping(self: Any) -> None:
        if _allows(self):
            ping(self)

    def handle_pong(self: Any, event: Any) -> None:
        if _allows(self):
            pong(self, event)

    def handle_cont(self: Any, event: Any) -> None:
        if _allows(self):
            rest(self, event)

    protocol.kennel_fragments, protocol.kennel_is_too_fast = None, False
    protocol.data_received, protocol.handle_ping = data_received, handle_ping
    protocol.handle_pong, protocol.handle_cont = handle_pong, handle_cont


def _allows(connection: Any) -> bool:
    if connection.kennel_is_too_fast:
        return False
    now = time.monotonic()
    if connection.kennel_fragments is None:
        connection.kennel_fragments = RateLimit(PER_SECOND, AT_ONCE, now)
    if connection.kennel_fragments.allows(now):
        return True
    connection.kennel_is_too_fast = True
    _end(connection)
    return False


def _end(connection: Any) -> None:
    """Close it with the reason, past a consumer that may wait, and tell the consumer."""
    try:
        connection.conn.send_close(CLOSE_TOO_FAST, f"over {PER_SECOND:.0f} pings or fragments a second")
        connection.transport.write(b"".join(connection.conn.data_to_send()))
    except InvalidState:
        pass  # it is being closed
    connection.close_sent = True
    connection.stop_keepalive()
    connection.frames = []
    cut = Connection(connection)
    cut.ignore()
    connection.loop.call_later(IGNORED_SECONDS, cut.abort, context=Context())
    connection.queue.put_nowait({"type": "websocket.disconnect", "code": CLOSE_TOO_FAST})
