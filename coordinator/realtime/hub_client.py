"""The worker's end of the socket to the dashboard: hints in, telemetry out, reconnecting for ever.

Cutting it loses nothing but speed: hints only make receivers look again, receipts wait here until they can be sent,
and every (re)connection starts with the whole state and a `RESYNC`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec
import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN, Event
from websockets.streams import StreamReader
from websockets.typing import Subprotocol

from coordinator.backoff import Backoff
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import ProtocolViolation
from coordinator.realtime import protocol
from coordinator.realtime.bus import RESYNC, Callback, LocalBus, Notification

log = logging.getLogger(__name__)

RECONNECT = Backoff(base_seconds=0.2, cap_seconds=3.0)
SPREAD_REPORTS = 0.4
"""A fleet that lost its hub connects again within this part of an interval of reports, which grows with the fleet: ten thousand in 4 s."""
MOST_SPREAD_SECONDS = 30.0
OPEN_SECONDS, MOST_OPEN_SECONDS = 5.0, 60.0
PING_SECONDS, MOST_PING_SECONDS, REPORTS_A_PING = 5.0, 60.0, 2.5
"""Of a fleet of ten thousand, which reports each 10 s, the hub's own pings, each 20 s, come before a ping is due."""
REPORTS_A_POLL, MOST_POLL_SECONDS = 30.0, 300.0
MAX_UNSENT = 256
# A release is about passing: the receipts of a fleet follow when it has passed, and not all in one instant.
RECEIPTS_AFTER = (0.1, 0.3)
STATE_AFTER, FOLLOW_AFTER = 0.2, 0.05
MOST_TOPICS, MOST_TOPIC_CHARACTERS = 500, 16 * 1024
READ_BYTES = 64 * 1024
MOST_LINGERING = 100
"""Topics that nobody here follows any more and the hub still sends: a new waiter misses nothing meanwhile."""


_WHOLE_TEXT, _SIZE_FOLLOWS = b"\x81", b"\x7e"
_BETWEEN_FRAMES = StreamReader.at_eof.__code__


class NotificationsFirst(ClientConnection):
    """A connection that hands over hints as they are read, without a queue and a task's turn between.

    `take` gets each text message that came in one piece and says whether it took it; all else is received as usual. One that
    came alone in one read is not parsed a second time: a third of what a worker spends on a release.
    """

    take: Callable[[str | bytes], bool] | None = None
    _heard = 0.0
    _is_between = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # asyncio asks for 256 KiB, which the C library may map for each read, and unmap for a frame of some hundred bytes:
        # 19 us instead of 3. Transports of other loops have no such setting.
        if hasattr(transport, "max_size"):
            transport.max_size = READ_BYTES
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_between and self.take is not None and data[:1] == _WHOLE_TEXT:
            start = 4 if data[1:2] == _SIZE_FOLLOWS else 2
            size = int.from_bytes(data[2:4]) if start == 4 else int.from_bytes(data[1:2])
            if len(data) == start + size:
                self._heard = self.loop.time()
                if self.take(data[start:]):
                    return
        super().data_received(data)
        self._is_between = self._is_between_frames()

    def _is_between_frames(self) -> bool:
        """Whether the next byte begins a message. False, too, for a library that is built differently."""
        inner = self.protocol
        step = inner.parser
        while (waits_in := getattr(step, "gi_yieldfrom", None)) is not None:
            step = waits_in
        return (
            getattr(step, "gi_code", None) is _BETWEEN_FRAMES
            and getattr(inner, "current_size", 0) is None
            and inner.state is OPEN
        )

    async def keepalive(self) -> None:
        """A ping after `ping_interval` seconds without a frame of the hub: each of them is a sign of life, its pings are, too."""
        assert self.ping_interval is not None
        self._heard = self.loop.time()
        with suppress(websockets.ConnectionClosed):
            while True:
                left = self._heard + self.ping_interval - self.loop.time()
                if left > 0:
                    await asyncio.sleep(left)
                    continue
                try:
                    async with asyncio.timeout(self.ping_timeout):
                        await (await self.ping())
                except TimeoutError:
                    async with self.send_context():
                        self.protocol.fail(CloseCode.INTERNAL_ERROR, "keepalive ping timeout")

    def process_event(self, event: Event) -> None:
        self._heard = self.loop.time()
        frame = event if isinstance(event, Frame) and event.opcode is Opcode.TEXT and event.fin else None
        if self.take is not None and frame is not None and self.take(bytes(frame.data)):
            return
        super().process_event(event)


class HubConnection(LocalBus):
    """A `Bus` over the dashboard's websocket, and the sender of this worker's telemetry.

    Guarantees: subscribers get `RESYNC` whenever the connection comes or goes; a silent connection is noticed within
    10 s, in a fleet of ten thousand within 30 s; each gate's newest receipt is sent again after every reconnect. Not guaranteed: that any hint
    arrives. `hello` makes the first frame, `state` each heartbeat; `on_command` gets what operators ask for. The hub sends
    the hints of the topics that are subscribed to; a new one is reported at once.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        hello: Callable[[], protocol.Hello],
        on_command: Callable[[protocol.Command], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__()
        self._url, self._token = url, token
        self._hello, self._on_command, self._clock = hello, on_command, clock
        self._unsent: deque[protocol.Receipt | protocol.Announce] = deque(maxlen=MAX_UNSENT)
        self._going_out: protocol.Receipt | protocol.Announce | None = None
        self._passed: dict[str, protocol.Receipt] = {}
        self._wake = asyncio.Event()
        self._state_due = False
        self._state_soon = False
        self._follows: frozenset[str] = frozenset()
        self._sent: protocol.WorkerState | None = None
        self._version = protocol.VERSION
        self._heartbeat_seconds = 1.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._connected = False
        self._attempt = self._timeouts = 0

    @property
    def is_connected(self) -> bool:
        return self._connected

    @property
    def safety_poll_seconds(self) -> float:
        """By the size of the fleet, which follows from the hub's interval of reports: ten thousand workers ask 33 times a second."""
        return min(MOST_POLL_SECONDS, REPORTS_A_POLL * self._heartbeat_seconds)

    @property
    def _has_unsent(self) -> bool:
        return self._going_out is not None or bool(self._unsent)

    def subscribe(self, topic: str, callback: Callback) -> Callable[[], None]:
        end = super().subscribe(topic, callback)
        if topic not in self._follows:
            self._on_loop(partial(self._state_later, FOLLOW_AFTER))
        return end

    async def publish(self, hint: Notification) -> None:
        self.deliver(hint)
        if self._connected:
            self._unsent.append(protocol.Announce(hint))
            self._on_loop(self._wake.set)
            # It is on its way before the caller goes on, who may have much to do.
            await asyncio.sleep(0)

    def receipt(self, receipt: protocol.Receipt) -> None:
        """Queue a receipt, to go out in a moment; from any thread."""
        self._passed[receipt.gate] = receipt
        self._unsent.append(receipt)
        self._on_loop(self._rouse_later)

    def refresh(self) -> None:
        """Send the state now rather than at the next heartbeat; from any thread."""
        self._state_due = True
        self._on_loop(self._wake.set)

    def refresh_soon(self) -> None:
        """As `refresh`, in a moment, together with what else changes until then: at most five states a second."""
        self._on_loop(partial(self._state_later, STATE_AFTER))

    def _state_later(self, seconds: float) -> None:
        if self._loop is not None and not self._state_soon:
            self._state_soon = True
            self._loop.call_later(seconds, self._refresh_now)

    def _refresh_now(self) -> None:
        self._state_soon = False
        self.refresh()

    def _rouse_later(self) -> None:
        if self._loop is not None:
            self._loop.call_later(random.uniform(*RECEIPTS_AFTER), self._wake.set)

    def _on_loop(self, call: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            call()
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    async def run(self) -> None:
        """Connect, serve, reconnect with jitter, until cancelled."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        while True:
            reason = ""
            try:
                async with connect(
                    self._url,
                    additional_headers={"Authorization": f"Bearer {self._token}"},
                    subprotocols=[Subprotocol(protocol.SUBPROTOCOL)],
                    max_size=protocol.MAX_FRAME_BYTES,
                    open_timeout=self._open_timeout,
                    close_timeout=1.0,
                    ping_interval=PING_SECONDS,
                    ping_timeout=PING_SECONDS,
                    compression=None,
                    create_connection=NotificationsFirst,
                ) as socket:
                    assert isinstance(socket, NotificationsFirst)
                    await self._serve(socket)
            except websockets.InvalidStatus as error:
                reason = f"the hub refused the connection with status {error.response.status_code}"
                if error.response.status_code in (401, 403):
                    reason += "; check KENNEL_WORKER_TOKEN"
                    self._attempt = max(self._attempt, 4)
            except websockets.ConnectionClosed as error:
                reason = (
                    f"the hub closed the connection: {error.rcvd.reason or error.rcvd.code}"
                    if error.rcvd
                    else ""
                )
            except ProtocolViolation as error:
                reason = str(error)
            except (OSError, TimeoutError, websockets.WebSocketException) as error:
                reason = f"{type(error).__name__}"
                self._timeouts += isinstance(error, TimeoutError)
            finally:
                self._set_connected(False)
            pause = RECONNECT.delay(self._attempt) + self._spread()
            log.info("Hub is unreachable (%s); next attempt in %.1f s", reason or "connection ended", pause)
            await self._clock.sleep(pause)
            self._attempt += 1

    def _spread(self) -> float:
        """Seconds more before the first attempt to connect again; none in a small fleet, which reports each second."""
        if self._attempt:
            return 0.0
        return random.uniform(0.0, SPREAD_REPORTS * min(MOST_SPREAD_SECONDS, self._beyond_seconds))

    @property
    def _beyond_seconds(self) -> float:
        """By how much the interval of reports is longer than that of a small fleet."""
        return max(0.0, self._heartbeat_seconds - 1.0)

    @property
    def _open_timeout(self) -> float:
        """How long to wait for the hub's answer: longer in a large fleet, and each time that this was too short.

        A hub that needs longer for a whole fleet at once than each worker waits would never finish with any.
        """
        return min(MOST_OPEN_SECONDS, (OPEN_SECONDS + self._beyond_seconds) * (1 + self._timeouts))

    def _take_hint(self, frame: str | bytes) -> bool:
        try:
            message = protocol.decode_from_hub(frame)
        except ProtocolViolation:
            return False
        if isinstance(message, protocol.Hinted):
            self.deliver(message.hint)
            return True
        return False

    async def _serve(self, socket: NotificationsFirst) -> None:
        self._follows = self.topics
        hello = self._hello()
        await socket.send(protocol.encode(msgspec.structs.replace(hello, follows=_listed(self._follows))))
        self._sent = hello.state
        async with asyncio.timeout(self._open_timeout):
            welcome = protocol.decode_from_hub(await socket.recv())
        if not isinstance(welcome, protocol.Welcome):
            raise ProtocolViolation(f"the hub's first frame was {type(welcome).__name__}, not Welcome")
        self._version = protocol.agreed(welcome.version, 0)
        self._set_pace(socket, welcome.heartbeat_seconds)
        # A hub that was restarted knows of no release: the newest receipts are part of the whole state.
        self._unsent.extend(receipt for receipt in self._passed.values() if receipt not in self._unsent)
        sender = asyncio.create_task(self._keep_sending(socket), name="hub-sender")
        socket.take = self._take_hint
        self._attempt = self._timeouts = 0
        self._set_connected(True)
        log.info("Connected to the hub")
        try:
            async for frame in socket:
                match protocol.decode_from_hub(frame):
                    case protocol.Hinted(hint):
                        self.deliver(hint)
                    case protocol.Command() as command:
                        self._on_command(command)
                    case protocol.Pace(heartbeat_seconds):
                        self._set_pace(socket, heartbeat_seconds)
                        self._wake.set()
                    case protocol.Unknown(what):
                        log.info("Ignored a message of a newer release: %s", what)
                    case protocol.Welcome():
                        raise ProtocolViolation("the hub sent a second Welcome")
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    def _set_pace(self, socket: ClientConnection, heartbeat_seconds: float) -> None:
        self._heartbeat_seconds = heartbeat_seconds
        socket.ping_interval = min(MOST_PING_SECONDS, max(PING_SECONDS, REPORTS_A_PING * heartbeat_seconds))

    async def _keep_sending(self, socket: ClientConnection) -> None:
        sent = float("-inf")
        try:
            while True:
                self._wake.clear()
                while self._has_unsent:
                    # Taken out of line before it is sent: others push in meanwhile, and a full line loses its head.
                    self._going_out = self._going_out or self._unsent.popleft()
                    await socket.send(protocol.encode(self._going_out))
                    self._going_out = None
                # A receipt does not bring the state along: in a release of a thousand that would be a thousand more.
                if self._state_due or self._clock.monotonic() >= sent + self._heartbeat_seconds:
                    self._state_due = False
                    sent = self._clock.monotonic()
                    await socket.send(protocol.encode(self._next_state()))
                await self._clock.wait(self._wake, sent + self._heartbeat_seconds - self._clock.monotonic())
        except websockets.ConnectionClosed:
            return

    def _next_state(self) -> protocol.State:
        before, self._sent = self._sent, self._hello().state
        state = protocol.State(self._sent)
        if before is not None and self._version >= 2:
            state = protocol.changes(before, self._sent)
        topics = self.topics
        if not topics <= self._follows or len(self._follows - topics) > MOST_LINGERING:
            self._follows = topics | self._follows
            if len(self._follows - topics) > MOST_LINGERING:
                self._follows = topics
            return msgspec.structs.replace(state, follows=_listed(self._follows))
        return state

    async def flush(self) -> None:
        """Give what is unsent a moment to go out before the worker ends."""
        self.refresh()
        deadline = self._clock.monotonic() + 1.0
        while (
            self._connected and (self._has_unsent or self._state_due) and self._clock.monotonic() < deadline
        ):
            await self._clock.sleep(0.02)

    def _set_connected(self, connected: bool) -> None:
        if connected != self._connected:
            self._connected = connected
            self.deliver(Notification(topic=RESYNC))


def _listed(topics: frozenset[str]) -> tuple[str, ...]:
    """For a frame; of more topics than one should hold, all hints are asked for."""
    few = len(topics) <= MOST_TOPICS and sum(map(len, topics)) <= MOST_TOPIC_CHARACTERS
    return tuple(sorted(topics)) if few else protocol.ALL_TOPICS
