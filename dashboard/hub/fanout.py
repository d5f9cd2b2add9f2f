"""Hints to all workers: encoded once, handed to every socket of this process in one loop, and to the other processes."""

from __future__ import annotations

import asyncio
import logging
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import msgspec

from coordinator.realtime import protocol
from coordinator.realtime.bus import Hint, LocalBus
from dashboard.core.middleware import request_id_var
from dashboard.hub.backplane import Backplane

log = logging.getLogger(__name__)

OUTBOX_FRAMES = 64

Send = Callable[[str], Coroutine[Any, Any, None]]
Close = Callable[[int, str], Coroutine[Any, Any, None]]


class Outbox:
    """The way out of one socket. Bounded: a socket that does not take its frames is closed, with the reason if it
    takes that, and what stood in line for it is dropped at once.

    A frame goes out within `put`, without a task of its own: a release writes to a thousand sockets in one loop. Only
    a frame that the transport does not take at once gets a task, and those after it wait in line.
    """

    def __init__(
        self, send: Send, close: Close, *, name: str = "socket", frames: int = OUTBOX_FRAMES
    ) -> None:
        self._send, self._close, self._name = send, close, name
        self._most = frames
        self._line: deque[str] = deque()
        self._draining: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_over = False

    def put(self, frame: str, *, first: bool = False, may_drop: bool = False) -> None:
        """Send a frame, or put it in line; never waits. On the event loop only.

        `first`: before all that waits. `may_drop`: not at all if much waits: others' news must not fill the line.
        """
        if self._is_over:
            return
        if self._draining is not None:
            if may_drop and len(self._line) >= self._most // 2:
                return
            if first:
                self._line.appendleft(frame)
            else:
                self._line.append(frame)
            if len(self._line) > self._most:
                self._drop_slow()
            return
        sending = self._send(frame)
        try:
            waits_for = sending.send(None)
        except StopIteration:
            return
        except Exception as error:
            self._gone(error)
            return
        self._draining = asyncio.create_task(
            self._drain(_resumed(sending, waits_for)), name=f"to-{self._name}"
        )

    async def end(self, code: int, reason: str) -> None:
        """Send nothing any more, and close the socket with a reason."""
        await self.stop()
        await self._close(code, reason)

    async def stop(self) -> None:
        """Send nothing any more."""
        self._is_over = True
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.gather(self._draining, return_exceptions=True)

    async def _drain(self, sending: Awaitable[None]) -> None:
        try:
            await sending
            while self._line:
                await self._send(self._line.popleft())
        except Exception as error:
            self._gone(error)
        self._draining = None

    def _gone(self, error: Exception) -> None:
        # The socket went away between two frames; its consumer hears of that by itself.
        log.debug("A frame could not be sent: %s", type(error).__name__)
        self._is_over = True

    def _drop_slow(self) -> None:
        self._is_over = True
        self._line.clear()
        self._closing = asyncio.create_task(
            self._close(protocol.CLOSE_SLOW, "too slow: frames were not taken in time"), name="drop-slow"
        )


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """The rest of a coroutine that was begun by hand and has yielded what it waits for."""
    try:
        yield waits_for
    except BaseException:
        coroutine.close()
        raise
    yield from coroutine


class WorkerSockets:
    """The worker sockets of this process."""

    def __init__(self) -> None:
        self._outboxes: dict[str, Outbox] = {}

    def __len__(self) -> int:
        return len(self._outboxes)

    def join(self, instance: str, outbox: Outbox) -> Outbox | None:
        """Add a socket; returns the older one of the same worker, if any."""
        before = self._outboxes.get(instance)
        self._outboxes[instance] = outbox
        return before

    def leave(self, instance: str, outbox: Outbox) -> bool:
        """Remove a socket; False if a newer one of the same worker has taken its place."""
        if self._outboxes.get(instance) is not outbox:
            return False
        del self._outboxes[instance]
        return True

    def __contains__(self, instance: object) -> bool:
        return instance in self._outboxes

    def send_all(
        self, message: protocol.FromHub, *, but: str = "", first: bool = False, may_drop: bool = False
    ) -> int:
        """To every worker; returns to how many. `first` and `may_drop` as for `Outbox.put`."""
        frame = protocol.encode(message)
        for instance, outbox in list(self._outboxes.items()):
            if instance != but:
                outbox.put(frame, first=first, may_drop=may_drop)
        return len(self._outboxes)

    def send_one(self, instance: str, message: protocol.FromHub) -> bool:
        """To one worker; False if it isn't connected here."""
        outbox = self._outboxes.get(instance)
        if outbox is None:
            return False
        outbox.put(protocol.encode(message))
        return True


class FanoutBus(LocalBus):
    """The dashboard's bus: its hints go to all workers of all processes, and those of workers to all others."""

    def __init__(self, sockets: WorkerSockets, link: Backplane) -> None:
        super().__init__()
        self._sockets, self._link = sockets, link
        link.on("hint", self._from_elsewhere)

    @property
    def is_connected(self) -> bool:
        return True

    async def publish(self, hint: Hint) -> None:
        hint = msgspec.structs.replace(hint, request_id=request_id_var.get())
        self.tell(hint, first=True)
        # A renewal comes each few seconds for as long as this process leads; it is no news for a log.
        level = logging.DEBUG if hint.topic.startswith("lease:") else logging.INFO
        log.log(level, "Told %d workers here to look at %s", len(self._sockets), hint.topic)
        await self.tell_others(hint)

    def tell(self, hint: Hint, *, but: str = "", first: bool = False, may_drop: bool = False) -> None:
        """To all workers of this process but the one that it came from, and to this process itself."""
        self._sockets.send_all(protocol.Hinted(hint), but=but, first=first, may_drop=may_drop)
        self.deliver(hint)

    async def tell_others(self, hint: Hint) -> None:
        """To the other processes, which tell their workers."""
        await self._link.publish("hint", msgspec.msgpack.encode(hint))

    def _from_elsewhere(self, process_id: str, body: bytes) -> None:
        hint = msgspec.msgpack.decode(body, type=Hint)
        # Other processes pass on gates only when storage has confirmed them.
        self.tell(hint, first=hint.topic.startswith("gate:"), may_drop=not hint.topic.startswith("gate:"))
