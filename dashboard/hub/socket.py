"""What the sockets of workers and browsers have in common, and the one place where Channels' missing types are met."""

from __future__ import annotations

import asyncio
import logging
import time
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any, Protocol

from channels.consumer import get_handler_name
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.realtime import protocol

log = logging.getLogger(__name__)


# The wire allows 123 bytes.
MAX_REASON_BYTES = 120


# How long a close frame may wait for a peer that takes nothing, and a closed connection for the rest to be taken.
CLOSE_SECONDS = 2.0
LINGER_SECONDS = 15.0
IGNORED_SECONDS = 2.0
VIOLATIONS = frozenset({protocol.CLOSE_MALFORMED, protocol.CLOSE_TOO_FAST, protocol.CLOSE_TOO_LARGE})
CUT = "kennel.cut"
Write = Callable[[bytes], bool]


class Cut(Protocol):
    """What a consumer may do to its connection beyond ASGI."""

    def abort(self) -> None:
        """End it at once."""

    def ignore(self) -> None:
        """Take nothing from it any more, and end it when the peer does."""

    def write(self, wire: bytes) -> bool:
        """Write an encoded frame at once; False, and nothing is written, if that cannot be done now."""


def abortable(inner: Any) -> Any:
    """Gives the consumers within a way to end their connection at once, or to read no more of it.

    ASGI has no word for it: whatever is sent, a close too, waits behind the frames that the peer does not read.
    uvicorn's `send` is a method of its protocol, which has the transport. Other servers have nothing to end it by.
    """

    async def application(scope: Any, receive: Any, send: Any) -> None:
        uvicorns = getattr(send, "__self__", None)
        if hasattr(getattr(uvicorns, "transport", None), "abort"):
            scope = {**scope, CUT: Connection(uvicorns)}
        await inner(scope, receive, send)

    return application


class Connection:
    """uvicorn's end of a websocket. A connection that has ended must not be kept in memory only to be cut off."""

    def __init__(self, uvicorns: Any) -> None:
        self._uvicorns = weakref.ref(uvicorns)

    def abort(self) -> None:
        """End it at once."""
        if (uvicorns := self._uvicorns()) is not None:
            uvicorns.transport.abort()

    def ignore(self) -> None:
        """Drop what comes without decoding it, and say that nothing comes from here any more.

        After a close frame uvicorn would decode all that the peer still sends, for ten seconds.
        """
        uvicorns = self._uvicorns()
        if uvicorns is None or uvicorns.transport.is_closing():
            return
        transport = uvicorns.transport
        transport.set_protocol(_Ignoring(uvicorns))
        if transport.can_write_eof():
            transport.write_eof()

    def write(self, wire: bytes) -> bool:
        """Write an encoded frame, past what ASGI would do for each socket: a server's frame is the same for all of them.

        False, and nothing is written, unless the socket is open and has taken what was written before.
        """
        uvicorns = self._uvicorns()
        if (
            not isinstance(uvicorns, WebSocketsSansIOProtocol)
            or not uvicorns.handshake_complete
            or uvicorns.close_sent
            or uvicorns.disconnected
            or not uvicorns.writable.is_set()
            or uvicorns.transport.is_closing()
        ):
            return False
        uvicorns.transport.write(wire)
        return True


def on_wire(text: str) -> bytes:
    """A text frame as a server sends it. It is not compressed, which every peer must understand."""
    return Frame(Opcode.TEXT, text.encode()).serialize(mask=False)


class _Ignoring(asyncio.Protocol):
    """In place of the protocol of a connection that has been closed for what it sent."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def pause_writing(self) -> None:
        self._before.pause_writing()

    def resume_writing(self) -> None:
        self._before.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._before.connection_lost(error)


class Socket(AsyncWebsocketConsumer):
    """A websocket that is closed with a code and a reason, never silently; and within `CLOSE_SECONDS` for certain.

    Frames are handled one after the other, without a visit to the database's thread for each: with a thousand workers
    that would be most of what the hub does. Code that needs the database says so, by `database_sync_to_async`.
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
            # A handler that met the end of the connection before its message came: what counts it is notified all the same.
            await self.disconnect(1006)  # type: ignore[no-untyped-call]
            raise

    async def websocket_disconnect(self, message: dict[str, Any]) -> None:
        """Channels would visit the database's thread for each socket that ends. None of ours leaves a connection there."""
        await self.disconnect(message["code"])  # type: ignore[no-untyped-call]
        raise StopConsumer

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
        """Close, with the reason. Harmless when repeated: frames that were on their way are of no account any more.

        A peer that is closed for what it sent is not listened to any more.
        """
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
            if (cut := self._cut) is not None:
                if code in VIOLATIONS:
                    cut.ignore()
                linger = IGNORED_SECONDS if code in VIOLATIONS else LINGER_SECONDS
                asyncio.get_running_loop().call_later(linger, cut.abort, context=Context())

    def abort(self) -> None:
        """End the connection now, with no word to the peer; its buffers are dropped."""
        log.info("Cutting the socket of %s: it takes not even the close", self)
        if self._cut is not None:
            self._cut.abort()
        elif self._task is not None:
            self._task.cancel()

    @property
    def write(self) -> Write | None:
        """Writes a frame that is encoded already, see `Connection.write`; None if this server cannot."""
        return None if self._cut is None else self._cut.write

    @property
    def _cut(self) -> Cut | None:
        cut: Cut | None = self.scope.get(CUT)
        return cut


MOST_FRAMES = 64
Send = Callable[[str], Coroutine[Any, Any, None]]
Close = Callable[[int, str], Coroutine[Any, Any, None]]


class SendQueue:
    """The way out of one socket. Bounded: a socket that does not take its frames is closed, with the reason if it
    takes that, and what stood in line for it is dropped at once.

    A frame goes out within `put`, without a task of its own: a release writes to a thousand sockets in one loop. Only
    a frame that the transport does not take at once gets a task, and those after it wait in line. `write` takes a frame
    that was encoded once for all sockets, if it can.
    """

    def __init__(
        self,
        send: Send,
        close: Close,
        *,
        write: Write | None = None,
        name: str = "socket",
        frames: int = MOST_FRAMES,
    ) -> None:
        self._send, self._close, self._write, self._name = send, close, write, name
        self._most = frames
        self._line: deque[str] = deque()
        self._draining: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_over = False

    def put(self, frame: str, *, wire: bytes = b"", first: bool = False, may_drop: bool = False) -> None:
        """Send a frame, or put it in line; never waits. On the event loop only.

        `wire`: the same frame by `on_wire`, if it goes to many. `first`: before all that waits. `may_drop`: not at all if much
        waits: others' news must not fill the line.
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
        if wire and self._write is not None and self._write(wire):
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


class RateLimit:
    """A token bucket: `per_second` on average, `burst` at once. The clock is passed in."""

    def __init__(self, per_second: float, burst: float, now: float) -> None:
        self._per_second, self._burst = per_second, burst
        self._left, self._at = burst, now

    def allows(self, now: float, cost: float = 1.0) -> bool:
        """Whether `cost` may be spent now; if so, it is. A cost above a whole burst may be spent by a full one."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < min(cost, self._burst):
            return False
        self._left -= cost
        return True

    def give_back(self) -> None:
        """What was allowed was not done."""
        self._left += 1


FREE_VIOLATIONS, VIOLATIONS_PER_SECOND = 100.0, 1.0
HELD_SECONDS = 10.0
HELD_PER_SECOND = 5.0
MOST_HELD = 50
MOST_KNOWN = 1_000


class Admissions:
    """How soon a socket may come in. At once, unless sockets of the same origin (token and address) were closed for what
    they sent, again and again: then they come in one after the other, `HELD_PER_SECOND`, until that has ended for a while.

    Of what a peer can repeat, opening a socket costs the most. The clock is passed in.
    """

    def __init__(self) -> None:
        self._violations: OrderedDict[str, RateLimit] = OrderedDict()
        self._held: dict[str, float] = {}
        self._next: dict[str, float] = {}

    def violated(self, origin: str, now: float) -> None:
        """A socket of this origin was closed for what it sent."""
        limit = self._violations.get(origin)
        if limit is None:
            limit = self._violations[origin] = RateLimit(VIOLATIONS_PER_SECOND, FREE_VIOLATIONS, now)
            if len(self._violations) > MOST_KNOWN:
                oldest, _ = self._violations.popitem(last=False)
                self._held.pop(oldest, None)
                self._next.pop(oldest, None)
        self._violations.move_to_end(origin)
        if not limit.allows(now):
            self._held[origin] = now + HELD_SECONDS

    def wait_seconds(self, origin: str, now: float) -> float | None:
        """How long the next socket of this origin waits for its turn, which it then has; None if too many wait."""
        if now >= self._held.get(origin, float("-inf")):
            return 0.0
        at = max(now, self._next.get(origin, now))
        if at - now > MOST_HELD / HELD_PER_SECOND:
            return None
        self._next[origin] = at + 1 / HELD_PER_SECOND
        return at - now


OPENINGS_PER_SECOND, OPENINGS_AT_ONCE = 500.0, 20


class TokenThrottle:
    """Lets the new sockets of each token in one after the other: some at once, then `per_second`.

    A fleet that lost its process comes back within seconds. All of its sockets at once would be one turn of the event
    loop, for seconds, and a page needs several turns. Used on the event loop; the clock is passed in.
    """

    def __init__(
        self,
        *,
        per_second: float = OPENINGS_PER_SECOND,
        at_once: int = OPENINGS_AT_ONCE,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._each, self._at_once, self._clock = 1 / per_second, at_once, clock
        self._next: dict[int | None, float] = {}

    async def enter(self, token: int | None) -> None:
        """Wait for the turn of a socket with this token; no other token's sockets wait for it."""
        now = self._clock.monotonic()
        at = max(self._next.get(token, float("-inf")), now - self._at_once * self._each) + self._each
        self._next[token] = at
        if at > now:
            await self._clock.sleep(at - now)


SHARE = 0.25
MOST_WAIT_SECONDS = 0.25
MOST_CALM_SECONDS = 0.2
MOST_TAKEN_SECONDS = 0.05
OPENING_SECONDS = 0.0015
"""What a new socket costs, some of it before our own code runs. Measured: 0.8 ms of processor time for each of 400; its end costs, too."""


class _Line:
    """The sockets of one token: who is next, and the moment from which that one may go."""

    def __init__(self) -> None:
        self.free_at = 0.0
        self.next = asyncio.Lock()


class Turns:
    """Who goes first on the event loop: while a page is drawn or an act is done, workers' frames take turns.

    1. While a request or an act is under way, all sockets of one token together get `SHARE` of the loop's time. Frames beyond that
       wait in line, one of each socket after the other; a peer that sends on meets a full line, and nothing is buffered.
    2. The pages of a listing wait for it too, each at most `MOST_CALM_SECONDS`: what a press writes meets fewer of them.
    3. Otherwise nobody waits: a fleet that comes back all at once takes what there is.

    So a hundred sockets of one token, each within its rate, do not stand before a release. Used on the event loop; the clock is
    passed in.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._under_way = 0
        self._calm = asyncio.Event()
        self._lines: dict[int | None, _Line] = {}

    @property
    def under_way(self) -> int:
        """How many requests and acts go first now."""
        return self._under_way

    @contextmanager
    def goes_first(self) -> Iterator[None]:
        """While the block runs, workers' frames take turns."""
        self._under_way += 1
        self._calm.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._calm.set()
                self._lines.clear()

    async def wait(self, token: int | None) -> None:
        """Wait for a turn of this token, if somebody goes first; behind the one before in line at most `MOST_WAIT_SECONDS`."""
        if not self._under_way:
            return
        line = self._lines.setdefault(token, _Line())
        async with line.next:
            wait = line.free_at - self._clock.monotonic()
            if wait > 0 and self._under_way:
                await self._clock.wait(self._calm, min(wait, MOST_WAIT_SECONDS))

    async def calm(self) -> None:
        """Wait until nobody goes first, at most `MOST_CALM_SECONDS`."""
        if self._under_way:
            await self._clock.wait(self._calm, MOST_CALM_SECONDS)

    def took(self, token: int | None, seconds: float) -> None:
        """A frame or a new socket of this token took so long."""
        line = self._lines.get(token)
        if line is not None:
            counted = min(seconds, MOST_TAKEN_SECONDS) / SHARE
            line.free_at = max(line.free_at, self._clock.monotonic()) + counted


FRAGMENTS_PER_SECOND, FRAGMENTS_AT_ONCE = 20.0, 100.0
# A read brings up to 256 KiB, which are 40,000 empty frames.
STEP_BYTES = 2048


def guard_fragments() -> None:
    """Count what no consumer sees of a websocket, and what costs nevertheless: pings, pongs, and fragments of frames.

    Guarantees for every socket, before it is admitted too: beyond `FRAGMENTS_PER_SECOND` of them on average and `FRAGMENTS_AT_ONCE`
    it is closed with 4429 and not read any more, and the answers to its pings are dropped with it if it does not take them within
    `IGNORED_SECONDS`. Extends uvicorn's class in place, as `dashboard.core.serving.guard_heads` does. Harmless when repeated.
    """
    if not hasattr(WebSocketsSansIOProtocol, "kennel_fragments"):
        _guard(WebSocketsSansIOProtocol)


def _guard(uvicorns: Any) -> None:
    received = uvicorns.data_received
    ping, pong, rest = uvicorns.handle_ping, uvicorns.handle_pong, uvicorns.handle_cont

    def data_received(self: Any, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(view), STEP_BYTES):
            if self.kennel_is_too_fast or self.transport.is_closing():
                return
            received(self, bytes(view[start : start + STEP_BYTES]))

    def handle_ping(self: Any) -> None:
        if _allows_fragment(self):
            ping(self)

    def handle_pong(self: Any, event: Any) -> None:
        if _allows_fragment(self):
            pong(self, event)

    def handle_cont(self: Any, event: Any) -> None:
        if _allows_fragment(self):
            rest(self, event)

    uvicorns.kennel_fragments, uvicorns.kennel_is_too_fast = None, False
    uvicorns.data_received, uvicorns.handle_ping = data_received, handle_ping
    uvicorns.handle_pong, uvicorns.handle_cont = handle_pong, handle_cont


def _allows_fragment(connection: Any) -> bool:
    if connection.kennel_is_too_fast:
        return False
    now = time.monotonic()
    if connection.kennel_fragments is None:
        connection.kennel_fragments = RateLimit(FRAGMENTS_PER_SECOND, FRAGMENTS_AT_ONCE, now)
    if connection.kennel_fragments.allows(now):
        return True
    connection.kennel_is_too_fast = True
    _end_of_flood(connection)
    return False


def _end_of_flood(connection: Any) -> None:
    """Close it with the reason, past a consumer that may wait, and tell the consumer."""
    try:
        connection.conn.send_close(
            protocol.CLOSE_TOO_FAST, f"over {FRAGMENTS_PER_SECOND:.0f} pings or fragments a second"
        )
        connection.transport.write(b"".join(connection.conn.data_to_send()))
    except InvalidState:
        pass  # it is being closed
    connection.close_sent = True
    connection.stop_keepalive()
    connection.frames = []
    cut = Connection(connection)
    cut.ignore()
    connection.loop.call_later(IGNORED_SECONDS, cut.abort, context=Context())
    connection.queue.put_nowait({"type": "websocket.disconnect", "code": protocol.CLOSE_TOO_FAST})
