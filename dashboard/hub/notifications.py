"""Notifications to workers: encoded once, handed to the sockets here that follow the topic in one loop, and to the other processes.

Those of operators go out at once. Announcements of workers are rationed, so that a release never waits behind them: of several
notifications about one topic the newest says all; what is over a worker's rate, or more than all sockets together should be
written to, waits, each worker's in turn, and is dropped when too much waits. Workers' reports about gates are checked in storage
before a worker is notified or a receipt is counted: one read decides for all who said so. A push that a worker missed is sent once more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import KennelError
from coordinator.gates import state as rules
from coordinator.gates.state import GateState
from coordinator.realtime import protocol
from coordinator.realtime.bus import Hint, LocalBus
from coordinator.realtime.protocol import GateStatus, Receipt
from dashboard.core.backplane import Backplane
from dashboard.core.middleware import request_id_var
from dashboard.hub.socket import RateLimit, SendQueue, on_wire
from dashboard.live.presence import Presence

log = logging.getLogger(__name__)


RECENT_SECONDS, MOST_RECENT, MOST_CAUGHT_UP = 30.0, 1_000, 50


class WorkerSockets:
    """The worker sockets of this process, and which topics each follows.

    A worker that begins to follow a topic gets the newest hint about it, if that is at most `RECENT_SECONDS` old: it may
    have read storage before that hint, and said that it follows only after it.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._queues: dict[str, SendQueue] = {}
        self._follows: dict[str, frozenset[str] | None] = {}
        self._followers: dict[str, dict[str, SendQueue]] = {}
        self._of_all: dict[str, SendQueue] = {}
        self._paced: set[str] = set()
        self._recent: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queues)

    def join(
        self,
        instance: str,
        send_queue: SendQueue,
        follows: Iterable[str] | None = None,
        *,
        takes_pace: bool = False,
    ) -> SendQueue | None:
        """Add a socket, which gets the hints about these topics (None: all); returns the older one of the same worker, if any."""
        before = self._queues.get(instance)
        if before is not None:
            self._unfollow(instance)
        self._queues[instance] = send_queue
        self._follow(instance, None if follows is None else frozenset(follows))
        (self._paced.add if takes_pace else self._paced.discard)(instance)
        return before

    def leave(self, instance: str, send_queue: SendQueue) -> bool:
        """Remove a socket; False if a newer one of the same worker has taken its place."""
        if self._queues.get(instance) is not send_queue:
            return False
        self._unfollow(instance)
        del self._queues[instance]
        self._paced.discard(instance)
        return True

    def __contains__(self, instance: object) -> bool:
        return instance in self._queues

    def follow(self, instance: str, topics: Iterable[str], *, catch_up: bool = True) -> None:
        """From now on that worker follows these topics. `catch_up`: send it the recent hints about the new ones."""
        send_queue, before = self._queues.get(instance), self._follows.get(instance)
        if send_queue is None:
            return
        now = frozenset(topics)
        self._unfollow(instance)
        self._follow(instance, now)
        if before is None or not catch_up:
            return
        oldest = self._clock.monotonic() - RECENT_SECONDS
        for topic in sorted(now - before)[:MOST_CAUGHT_UP]:
            at, frame = self._recent.get(topic, (float("-inf"), ""))
            if at >= oldest:
                send_queue.put(frame)

    def _follow(self, instance: str, topics: frozenset[str] | None) -> None:
        send_queue = self._queues[instance]
        if topics is None or topics == {*protocol.ALL_TOPICS}:
            self._follows[instance] = None
            self._of_all[instance] = send_queue
            return
        self._follows[instance] = topics
        for topic in topics:
            self._followers.setdefault(topic, {})[instance] = send_queue

    def _unfollow(self, instance: str) -> None:
        topics = self._follows.pop(instance, None)
        self._of_all.pop(instance, None)
        for topic in topics or ():
            followers = self._followers[topic]
            del followers[instance]
            if not followers:
                del self._followers[topic]

    def follows(self, instance: str, topic: str) -> bool:
        """Whether that worker is connected here and follows the topic."""
        return instance in self._of_all or instance in self._followers.get(topic, ())

    def following(self, topic: str) -> int:
        """How many workers follow that topic."""
        return len(self._of_all) + len(self._followers.get(topic, ()))

    def send_hint(self, hint: Hint, *, but: str = "", first: bool = False, may_drop: bool = False) -> int:
        """To the workers that follow its topic; returns to how many. `first` and `may_drop` as for `SendQueue.put`."""
        frame = protocol.encode(protocol.Hinted(hint))
        wire = on_wire(frame)
        sent = 0
        for followers in (self._of_all, self._followers.get(hint.topic)):
            for instance, send_queue in list(followers.items()) if followers else ():
                if instance != but:
                    send_queue.put(frame, wire=wire, first=first, may_drop=may_drop)
                    sent += 1
        self._recent[hint.topic] = (self._clock.monotonic(), frame)
        self._recent.move_to_end(hint.topic)
        if len(self._recent) > MOST_RECENT:
            self._recent.popitem(last=False)
        return sent

    def send_pace(self, heartbeat_seconds: float) -> None:
        """To every worker that understands it."""
        frame = protocol.encode(protocol.Pace(heartbeat_seconds))
        wire = on_wire(frame)
        for instance in self._paced:
            self._queues[instance].put(frame, wire=wire)

    def send_one(self, instance: str, message: protocol.FromHub) -> bool:
        """To one worker; False if it isn't connected here."""
        send_queue = self._queues.get(instance)
        if send_queue is None:
            return False
        send_queue.put(protocol.encode(message))
        return True


class Commands:
    """What operators ask of workers, sent wherever they are connected."""

    def __init__(self, sockets: WorkerSockets, presence: Presence, backplane: Backplane) -> None:
        self._sockets, self._presence, self._backplane = sockets, presence, backplane
        backplane.on("command", self._receive)

    async def send(self, instance: str, command: protocol.Command) -> bool:
        """Send a command to a worker, wherever it is connected; False if it isn't connected anywhere we know of."""
        if self._sockets.send_one(instance, command):
            return True
        entry = self._presence.entries.get(instance)
        if entry is None or not entry.connected or entry.process_id == self._backplane.process_id:
            return False
        await self._backplane.publish("command", msgspec.msgpack.encode((instance, command)))
        return True

    def _receive(self, process_id: str, body: bytes) -> None:
        instance, command = msgspec.msgpack.decode(body, type=tuple[str, protocol.Command])
        self._sockets.send_one(instance, command)


HEAD_START_SECONDS = 0.005


class FanoutBus(LocalBus):
    """The dashboard's bus: its hints go to the workers of all processes that follow their topics, and so do those of workers."""

    def __init__(self, sockets: WorkerSockets, backplane: Backplane) -> None:
        super().__init__()
        self._sockets, self._backplane = sockets, backplane
        backplane.on("hint", self._from_elsewhere)

    @property
    def is_connected(self) -> bool:
        return True

    async def publish(self, hint: Hint) -> None:
        hint = msgspec.structs.replace(hint, request_id=request_id_var.get())
        sent = await self.send_everywhere(hint, first=True)
        # A renewal comes each few seconds for as long as this process leads; it is no news for a log.
        level = logging.DEBUG if hint.topic.startswith("lease:") else logging.INFO
        log.log(level, "Told %d workers here to look at %s", sent, hint.topic)

    async def send_everywhere(
        self, hint: Hint, *, but: str = "", first: bool = False, may_drop: bool = False
    ) -> int:
        """To the workers that follow its topic, here and at the other processes; returns to how many here.

        The others are notified first, if that is quick: they write to their sockets while this process writes to its own.
        """
        others: asyncio.Task[None] | None = None
        if self._backplane.is_shared:
            others = asyncio.create_task(self._to_others(hint), name="hint-to-others")
            await asyncio.wait({others}, timeout=HEAD_START_SECONDS)
        sent = self.send(hint, but=but, first=first, may_drop=may_drop)
        if others is not None:
            await others
        return sent

    def send(self, hint: Hint, *, but: str = "", first: bool = False, may_drop: bool = False) -> int:
        """To the workers of this process that follow its topic, but not to the one it came from, and to this process itself."""
        sent = self._sockets.send_hint(hint, but=but, first=first, may_drop=may_drop)
        self.deliver(hint)
        return sent

    async def _to_others(self, hint: Hint) -> None:
        await self._backplane.publish("hint", msgspec.msgpack.encode(hint))

    def _from_elsewhere(self, process_id: str, body: bytes) -> None:
        hint = msgspec.msgpack.decode(body, type=Hint)
        # Other processes pass on gates only when storage has confirmed them.
        self.send(hint, first=hint.topic.startswith("gate:"), may_drop=not hint.topic.startswith("gate:"))


HINTS_PER_SECOND, HINTS_AT_ONCE = 10.0, 30.0
WRITES_PER_SECOND, WRITES_AT_ONCE = 5_000.0, 20_000.0
"""Writes to sockets, of all workers' hints together: about a twentieth of a core."""
MOST_WAITING = 50
"""Topics of one worker; of more, the oldest is dropped."""
PassOn = Callable[[Hint, str], Awaitable[None]]


class Announcements:
    """Passes hints of workers on, by `pass_on(hint, but)`; `following` says how many follow a topic."""

    def __init__(
        self, pass_on: PassOn, following: Callable[[str], int], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._pass_on, self._following, self._clock = pass_on, following, clock
        self._limits: dict[str, RateLimit] = {}
        self._all = RateLimit(WRITES_PER_SECOND, WRITES_AT_ONCE, clock.monotonic())
        self._waiting: OrderedDict[str, OrderedDict[str, Hint]] = OrderedDict()
        self._due = asyncio.Event()
        self.turned: Callable[[], None] = lambda: None
        self.rested: Callable[[], None] = lambda: None
        self.dropped = 0

    def __len__(self) -> int:
        return sum(len(hints) for hints in self._waiting.values())

    async def offer(self, instance: str, hint: Hint) -> None:
        """Pass it on now if nothing of this worker waits and it may, else in its turn."""
        own = self._waiting.get(instance)
        if own is None and self._may(instance, hint.topic):
            await self._pass_on(hint, instance)
            return
        if own is None:
            own = self._waiting[instance] = OrderedDict()
        own[hint.topic] = hint
        if len(own) > MOST_WAITING:
            own.popitem(last=False)
            self.dropped += 1
        self._due.set()

    def forget(self, instance: str) -> None:
        """The worker has gone, and what it said waits no more."""
        self._limits.pop(instance, None)
        self._waiting.pop(instance, None)

    async def step(self) -> bool:
        """Pass on one hint of the worker whose turn it is; False if none may go now."""
        for instance, waiting in list(self._waiting.items()):
            if not self._may(instance, next(iter(waiting))):
                continue
            own = self._waiting.pop(instance)
            _, hint = own.popitem(last=False)
            if own:
                self._waiting[instance] = own  # behind all others
            await self._pass_on(hint, instance)
            return True
        return False

    async def run(self) -> None:
        """Pass on what waits, until cancelled; one hint in each turn of the loop."""
        while True:
            if not self._waiting:
                self.rested()
                self._due.clear()
                await self._due.wait()
            self.turned()
            if await self.step():
                await asyncio.sleep(0)
            else:
                await self._clock.sleep(0.02)

    def _may(self, instance: str, topic: str) -> bool:
        now = self._clock.monotonic()
        own = self._limits.get(instance)
        if own is None:
            own = self._limits[instance] = RateLimit(HINTS_PER_SECOND, HINTS_AT_ONCE, now)
        if not own.allows(now):
            return False
        if self._all.allows(now, max(1, self._following(topic))):
            return True
        own.give_back()
        return False


AFTER_SECONDS = 0.02
"""After a receipt: a release that is being written here is known a moment later, without a read."""
AGAIN_SECONDS = 0.5
READS_PER_SECOND, READS_AT_ONCE = 5.0, 20.0
UNLISTED_PER_SECOND, UNLISTED_AT_ONCE = 0.5, 5.0
MOST_GATES, MOST_RECEIPTS = 100, 5_000


class GateNews:
    """Looks at gates that workers say have changed. `known` gives the epoch that is known of a gate, None if it is not
    listed; `confirmed` takes what was read, if that is newer; `count` takes receipts whose epoch is true."""

    def __init__(
        self,
        read: Callable[[str], Awaitable[GateState | None]],
        known: Callable[[str], int | None],
        confirmed: Callable[[GateState], Awaitable[None]],
        count: Callable[[str, Receipt], None],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._read, self._known, self._confirmed, self._count = read, known, confirmed, count
        self._clock = clock
        now = clock.monotonic()
        self._reads = RateLimit(READS_PER_SECOND, READS_AT_ONCE, now)
        self._unlisted = RateLimit(UNLISTED_PER_SECOND, UNLISTED_AT_ONCE, now)
        self._asked: dict[str, int] = {}
        self._looked: dict[str, float] = {}
        self._receipts: dict[tuple[str, str], Receipt] = {}
        self._now = asyncio.Event()
        self._due = asyncio.Event()
        self.turned: Callable[[], None] = lambda: None
        self.rested: Callable[[], None] = lambda: None

    def hinted(self, gate: str, epoch: int) -> None:
        """Another program says that it has changed the gate: a fleet waits for the answer."""
        self._now.set()
        self._ask(gate, epoch)

    def _ask(self, gate: str, epoch: int) -> None:
        known = self._known(gate)
        if epoch <= (known or 0):
            return
        if known is None and gate not in self._asked and len(self._asked) >= MOST_GATES:
            self._forget_one()
        self._asked[gate] = max(epoch, self._asked.get(gate, 0))
        self._due.set()

    def _forget_one(self) -> None:
        """Of many gates that are not listed, the one asked about first."""
        gate = next((gate for gate in self._asked if self._known(gate) is None), None)
        if gate is not None:
            del self._asked[gate]
            self._settle(gate)

    def passed(self, instance: str, receipt: Receipt) -> None:
        """A worker says that it passed: counted at once if the epoch is known, else when storage has confirmed it."""
        if receipt.epoch <= (self._known(receipt.gate) or 0):
            self._count(instance, receipt)
            return
        key = (receipt.gate, instance)
        if key in self._receipts or len(self._receipts) < MOST_RECEIPTS:
            self._receipts[key] = receipt
            self._ask(receipt.gate, receipt.epoch)

    async def step(self) -> bool:
        """Look at what is due; False if nothing is, or nothing may be read now."""
        now, looked = self._clock.monotonic(), False
        for gate, epoch in list(self._asked.items()):
            known = self._known(gate)
            if known is None or epoch > known:
                if now - self._looked.get(gate, float("-inf")) < AGAIN_SECONDS:
                    continue
                if known is None and not self._unlisted.allows(now):
                    continue
                if not self._reads.allows(now):
                    continue
                self._looked[gate] = now
                await self._look(gate, known or 0)
            self._asked.pop(gate, None)
            self._settle(gate)
            looked = True
        self._looked = {gate: at for gate, at in self._looked.items() if now - at < AGAIN_SECONDS}
        return looked

    async def run(self) -> None:
        """Look, until cancelled."""
        while True:
            if not self._asked:
                self.rested()
                self._due.clear()
                await self._due.wait()
                await self._clock.wait(self._now, AFTER_SECONDS)
                self._now.clear()
            self.turned()
            if not await self.step():
                await self._clock.sleep(0.05)

    async def _look(self, gate: str, known: int) -> None:
        try:
            state = await self._read(gate)
        except (KennelError, TimeoutError) as error:
            # The sampler looks at all gates anyway, and says so if it cannot.
            log.info("The gate %s, which a worker reported, could not be read: %s", gate, error)
            return
        if state is not None and state.epoch > known:
            await self._confirmed(state)

    def _settle(self, gate: str) -> None:
        """Count the receipts of an epoch that is true, and drop the others: their workers send them again."""
        known = self._known(gate) or 0
        for key in [key for key in self._receipts if key[0] == gate]:
            receipt = self._receipts.pop(key)
            if receipt.epoch <= known:
                self._count(key[1], receipt)
            else:
                log.info(
                    "A receipt of gate %s names epoch %d, which storage does not know", gate, receipt.epoch
                )


ARRIVES_SECONDS = 2.0
"""A report of that time may have been sent before the push arrived."""
SENT_AGAIN_SECONDS = 10.0
MOST_TIMES = 5
"""A worker that waits gets the state so often; one that does not wait may not look at the gate at all, and gets it once."""


class MissedPushes:
    """Sends a gate's state once more to the worker that does not know it: one comparison for each gate of a report.

    `stored` gives the gate as storage confirmed it lately, None if that is not known. Guarantees that a waiting worker that is
    connected here and reports gets each change within `ARRIVES_SECONDS`, one interval of reports, and the round trip, though
    its push was lost, while this process knows the change. Used on the event loop; the clock is passed in.
    """

    def __init__(
        self,
        stored: Callable[[str], GateState | None],
        sockets: WorkerSockets,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._stored, self._sockets, self._clock = stored, sockets, clock
        self._known: dict[str, tuple[int, float]] = {}
        self._sent: dict[tuple[str, str], tuple[int, int, float]] = {}
        self.sent = 0

    def reported(self, instance: str, gates: Iterable[GateStatus]) -> None:
        """A worker connected here knows these epochs."""
        for status in gates:
            stored = self._stored(status.name)
            if stored is not None and stored.epoch > status.epoch:
                self._behind(instance, status, stored)

    def forget(self, instance: str, gates: Iterable[GateStatus]) -> None:
        """The worker has left: these are the gates that it named."""
        for status in gates:
            self._sent.pop((instance, status.name), None)

    def _behind(self, instance: str, status: GateStatus, stored: GateState) -> None:
        now = self._clock.monotonic()
        epoch, since = self._known.get(stored.name, (0, now))
        if epoch != stored.epoch:
            since = now
            self._known[stored.name] = (stored.epoch, now)
        key = (instance, stored.name)
        sent_epoch, times, again_at = self._sent.get(key, (0, 0, 0.0))
        if sent_epoch != stored.epoch:
            times, again_at = 0, since + ARRIVES_SECONDS
        if now >= again_at and times < (MOST_TIMES if status.waiting else 1):
            self._sent[key] = (stored.epoch, times + 1, now + SENT_AGAIN_SECONDS)
            topic = f"gate:{stored.name}"
            if self._sockets.follows(instance, topic):
                self.sent += 1
                hint = Hint(topic, epoch=stored.epoch, origin=stored.by, state=rules.encode(stored))
                self._sockets.send_one(instance, protocol.Hinted(hint))
