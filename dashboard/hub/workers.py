"""The workers' socket: token at the door, `Hello` first, then heartbeats, receipts and hints."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from channels.db import database_sync_to_async

from coordinator import protocol
from coordinator.bus import Hint
from coordinator.errors import ProtocolViolation
from dashboard.hub import tokens
from dashboard.hub.fanout import Outbox
from dashboard.hub.socket import Socket
from dashboard.runtime import current

log = logging.getLogger(__name__)

HELLO_SECONDS = 5.0
BURST_FRAMES = protocol.MAX_FRAMES_PER_SECOND * 2
CROWD = 300


class RateLimit:
    """A token bucket: `per_second` on average, `burst` at once. The clock is passed in."""

    def __init__(self, per_second: float, burst: float, now: float) -> None:
        self._per_second, self._burst = per_second, burst
        self._left, self._at = burst, now

    def allows(self, now: float) -> bool:
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


_checks: dict[str, asyncio.Task[int | None]] = {}


async def _checked(token: str) -> int | None:
    """The id of a valid token. A fleet that comes back all at once shows one token a thousand times: asked together,
    the database is asked once."""
    check = _checks.get(token)
    if check is None or check.get_loop() is not asyncio.get_running_loop():
        check = asyncio.create_task(database_sync_to_async(tokens.check)(token), name="token")
        _checks[token] = check
        check.add_done_callback(lambda _: _checks.pop(token, None))
    return await asyncio.shield(check)


class WorkerConsumer(Socket):
    """One worker's socket."""

    hello: protocol.Hello | None = None
    token_id: int | None = None
    outbox: Outbox | None = None
    _deadline: asyncio.TimerHandle | None = None
    _late: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        runtime = current()
        token = _bearer(self.scope)
        self.token_id = await _checked(token) if token else None
        if self.token_id is None or not runtime.is_running:
            if self.token_id is None:
                log.warning("A worker without a valid token was refused")
            await self.refuse(protocol.CLOSE_UNAUTHORIZED)
            return
        self.rate = RateLimit(protocol.MAX_FRAMES_PER_SECOND, BURST_FRAMES, time.monotonic())
        offered = self.scope.get("subprotocols") or []
        await self.welcome(protocol.SUBPROTOCOL if protocol.SUBPROTOCOL in offered else None)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(HELLO_SECONDS, self._no_hello)

    def _no_hello(self) -> None:
        if self.hello is None:
            self._late = asyncio.create_task(
                self.go_away(protocol.CLOSE_MALFORMED, "no Hello in time"), name="no-hello"
            )

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if not self.rate.allows(time.monotonic()):
            await self.go_away(
                protocol.CLOSE_TOO_FAST, f"over {protocol.MAX_FRAMES_PER_SECOND} frames a second"
            )
            return
        try:
            message = protocol.decode_from_worker(text_data if text_data is not None else bytes_data or b"")
            await self._take(message)
        except ProtocolViolation as error:
            await self.go_away(protocol.CLOSE_MALFORMED, str(error))

    async def _take(self, message: protocol.FromWorker) -> None:
        runtime = current()
        if self.hello is None:
            if not isinstance(message, protocol.Hello):
                raise ProtocolViolation(f"the first frame must be Hello, not {type(message).__name__}")
            await self._greet(message)
            return
        match message:
            case protocol.State(state):
                runtime.presence.told(self.hello.instance, state)
            case protocol.Receipt() as receipt:
                runtime.passed(self.hello.instance, receipt)
            case protocol.Announce(hint):
                passed_on = Hint(hint.topic, hint.epoch, hint.size, origin=self.hello.worker, due=hint.due)
                runtime.bus.tell(passed_on, but=self.hello.instance)
                # Nothing was awaited since: nobody who waited has been heard to move yet.
                runtime.announced(hint)
                await runtime.bus.tell_others(passed_on)
            case protocol.Hello():
                raise ProtocolViolation("a second Hello")

    async def _greet(self, hello: protocol.Hello) -> None:
        runtime = current()
        version = protocol.agreed(hello.version, hello.oldest)
        prefix = runtime.storage.config.prefix
        if hello.prefix != prefix:
            await self.go_away(
                protocol.CLOSE_FORBIDDEN, f"this dashboard watches prefix {prefix}, not {hello.prefix[:40]}"
            )
            return
        self.hello = hello
        if self._deadline is not None:
            self._deadline.cancel()
        crowded = len(runtime.sockets) >= CROWD
        outbox = self.outbox = Outbox(self.send_text, self.go_away, name=hello.worker)
        # Welcome goes first, and nothing is awaited before the socket is in the fan-out: no hint is missed in between.
        outbox.put(protocol.encode(protocol.Welcome(version, 2.0 if crowded else 1.0, time.time())))
        older = runtime.sockets.join(hello.instance, outbox)
        runtime.consumers.add(self)
        runtime.presence.joined(hello)
        if older is not None:
            await older.stop()

    def __str__(self) -> str:
        return self.hello.worker if self.hello else "a worker"

    async def disconnect(self, code: int) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        runtime = current()
        runtime.consumers.discard(self)
        if self.outbox is not None and self.hello is not None:
            if runtime.sockets.leave(self.hello.instance, self.outbox):
                runtime.presence.left(self.hello.instance)
            await self.outbox.stop()


def _bearer(scope: dict[str, Any]) -> str:
    for name, value in scope.get("headers", ()):
        if name == b"authorization":
            return tokens.bearer_of(value.decode("latin-1"))
    return ""
