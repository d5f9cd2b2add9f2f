"""What one dashboard process holds: its storage, its sockets, what it knows of the fleet.

Made without I/O. `start()` and `stop()` belong to the ASGI lifespan; commands and tests may use it unstarted, through
`call`, which then lends them an event loop of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, TypeVarTuple

import msgspec
from anyio.from_thread import BlockingPortal, start_blocking_portal
from django.conf import settings

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import NotFound, StorageError
from coordinator.gates import state as rules
from coordinator.gates.state import GateState
from coordinator.realtime import protocol
from coordinator.realtime.bus import Hint
from coordinator.storage import Storage
from dashboard.core.backplane import Backplane
from dashboard.core.loops import Loops
from dashboard.hub.notifications import (
    Announcements,
    Commands,
    FanoutBus,
    GateNews,
    MissedPushes,
    WorkerSockets,
)
from dashboard.hub.socket import Admissions, TokenThrottle, Turns
from dashboard.hub.viewers import Viewers
from dashboard.live.fleet_state import FleetState
from dashboard.live.presence import Presence, PresenceExchange
from dashboard.live.releases import KnownGates, ReleaseTracker, StoredGates
from dashboard.live.sampler import Sampler
from dashboard.live.tallies import Reported

log = logging.getLogger(__name__)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
ACT_THREADS = 8
LAST_TURN_SECONDS = 5.0


# Workers pass first; storage is looked at when they have.
AFTER_RELEASE_SECONDS = 0.3
LATELY_SECONDS = 15.0
"""A gate as storage had it longer ago is not pushed: it may have been closed since, while storage was away."""


class ClosableSocket(Protocol):
    """A socket that housekeeping may close."""

    token_id: int | None

    async def go_away(self, code: int, reason: str) -> None: ...


class Runtime:
    """One per process; see `current`."""

    def __init__(self, storage: Storage | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self._storage = storage
        self.source = ""
        """The account and prefix whose workers and releases are kept (`dashboard.live.fleet_memory`); "" until they are."""
        self._lock = threading.RLock()
        self._portal: BlockingPortal | None = None
        self._borrowed: contextlib.ExitStack | None = None
        self._stack: contextlib.AsyncExitStack | None = None
        # No thread starts before the first act.
        self.act_threads = ThreadPoolExecutor(ACT_THREADS, thread_name_prefix="act")
        self.loops = Loops(clock=clock)
        self.backplane = Backplane(clock=clock)
        self.reported = Reported()
        self.presence = Presence(self.backplane.process_id, clock=clock)
        self.sockets = WorkerSockets(clock=clock)
        self.consumers: set[ClosableSocket] = set()
        self.connections: Counter[int | None] = Counter()
        """How many of them show each token."""
        self.admissions = Admissions()
        self.token_throttle = TokenThrottle(clock=clock)
        self.turns = Turns(clock=clock)
        self.bus = FanoutBus(self.sockets, self.backplane)
        if storage is not None:
            storage.bus = self.bus
        self.gates = KnownGates(self.backplane, clock=clock)
        self.stored = StoredGates(lambda: self.storage, self.gates, f"dashboard-{self.backplane.process_id}")
        self.gates.on_back.append(self._gate_went_back)
        self.gates.on_found.append(self._gate_found)
        self.missed_pushes = MissedPushes(
            lambda name: self.gates.lately(name, LATELY_SECONDS), self.sockets, clock=clock
        )
        self.releases = ReleaseTracker(self.presence.waiting_at, self.gates, self.backplane, clock=clock)
        self.fleet_state: FleetState = FleetState(self.presence, self.releases, self.backplane, clock=clock)
        self.fleet_state.troubles = self._troubles
        self.viewers: Viewers = Viewers(self.fleet_state)
        self.fleet_state.has_viewers = lambda: bool(self.viewers)
        self.commands = Commands(self.sockets, self.presence, self.backplane)
        self.exchange = PresenceExchange(self.presence, self.backplane, self.releases.share_all, clock=clock)
        self.sampler: Sampler | None = None
        self.kept_reads: dict[str, tuple[float, Any]] = {}  # see `look`
        self._loop: asyncio.AbstractEventLoop | None = None
        self.announcements = Announcements(self._pass_on, self.sockets.following, clock=clock)
        self.gate_news = GateNews(
            self.stored.read, self.releases.epoch_of, self._gate_confirmed, self.releases.passed, clock=clock
        )
        self.kept_head = 0
        self.backplane.on("hint", lambda _, body: self.announced(msgspec.msgpack.decode(body, type=Hint)))

    @property
    def storage(self) -> Storage:
        """The storage account: the given one, or that of the environment, connected when it is first asked for."""
        with self._lock:
            if self._storage is None:
                self._storage = Storage.from_env(settings.STORAGE_ENV, bus=self.bus)
            return self._storage

    @property
    def is_running(self) -> bool:
        return self._stack is not None

    # --- from threads to the event loop ---------------------------------------------------------------------------

    def call(self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Run a coroutine function on the process's event loop, from a thread, and return its result."""
        with self._lock:
            portal = self._portal
            if portal is None:
                self._borrowed = contextlib.ExitStack()
                portal = self._portal = self._borrowed.enter_context(start_blocking_portal(name="kennel"))
        return portal.call(function, *args)

    def close(self) -> None:
        """End what `call` had to start without a server; harmless otherwise."""
        with self._lock:
            borrowed, self._borrowed = self._borrowed, None
            if borrowed is None:
                return
            portal, self._portal = self._portal, None
        if portal is not None and self._storage is not None:
            portal.call(self._storage.aclose)
            self._storage.close()
        borrowed.close()

    # --- lifespan -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start what a server needs to watch the fleet; `dashboard.hub.background` starts the jobs beside it."""
        storage = self.storage
        async with contextlib.AsyncExitStack() as stack:
            self._portal = await stack.enter_async_context(BlockingPortal())
            await self.backplane.start()
            self._stack = stack.pop_all()
        self._loop = asyncio.get_running_loop()
        storage.before_listing = self.turns.calm
        self.sampler = Sampler(storage, self.fleet_state, self.backplane, clock=self.clock)
        self.sampler.watched = lambda: self.fleet_state.is_watched
        self.sampler.turned = lambda: self.loops.alive("sampler")
        self.sampler.failed = lambda error: self.loops.failed("sampler", error)
        self.loops.alive("sampler")
        for name, loop in (
            ("viewers", self.viewers),
            ("announcements", self.announcements),
            ("gate-news", self.gate_news),
            ("receipts", self.releases),
            ("summaries", self.exchange),
            ("readers", self.fleet_state),
        ):
            loop.turned, loop.rested = partial(self.loops.alive, name), partial(self.loops.resting, name)
        start = self.loops.start
        start("sampler", self.sampler.run)
        start("viewers", self.viewers.run)
        start("announcements", self.announcements.run)
        start("gate-news", self.gate_news.run)
        if self.backplane.is_shared:
            start("summaries", self.exchange.run)
            start("readers", self.fleet_state.share_readers)
            start("receipts", self.releases.run)
        log.info("The dashboard watches prefix %s", storage.config.prefix)

    async def stop(self) -> None:
        """Close the sockets with a reason, end the background work, close the clients."""
        stack, self._stack = self._stack, None
        await asyncio.gather(
            *(
                consumer.go_away(protocol.CLOSE_GOING_AWAY, "the dashboard restarts")
                for consumer in self.consumers
            ),
            return_exceptions=True,
        )
        if self.sampler is not None:
            await self.sampler.stop()
        await self.loops.stop()
        self.sampler = self._loop = None
        self.stored.clear()
        await self.backplane.stop()
        # An act that is under way ends its turn first: a message that it holds would stay hidden.
        acts = asyncio.create_task(asyncio.to_thread(self.act_threads.shutdown, cancel_futures=True))
        await asyncio.wait([acts], timeout=LAST_TURN_SECONDS)
        if self._storage is not None:
            await self._storage.aclose()
            await asyncio.to_thread(self._storage.close)
        await acts
        self._portal = None
        if stack is not None:
            await stack.aclose()

    # --- notifications ------------------------------------------------------------------------------------------------

    def look_again(self) -> None:
        """Something was changed in storage: sample now. From any thread."""
        sampler, loop = self.sampler, self._loop
        if sampler is not None and loop is not None:
            loop.call_soon_threadsafe(sampler.forget_names)

    async def _pass_on(self, hint: Hint, but: str) -> None:
        """What a worker announced goes to the others. Of gates nothing is passed on but what storage confirms."""
        await self.bus.send_everywhere(hint, but=but, may_drop=True)

    async def _gate_confirmed(self, state: GateState) -> None:
        """A gate was changed by another program: now shown, and sent to all workers."""
        hint = Hint(f"gate:{state.name}", epoch=state.epoch, origin=state.by, state=rules.encode(state))
        # Nothing was awaited since the read: nobody who waited has been heard to move yet.
        self.announced(hint)
        await self.bus.send_everywhere(hint, first=True)
        await self.gates.changed(state)

    def announced(self, hint: Hint) -> None:
        """A hint came by: what it is about is worth a look."""
        kind, _, name = hint.topic.partition(":")
        if kind == "gate":
            self.releases.notice(name, hint.epoch)
            self.releases.hold_pages()
            if self.sampler is not None and self._loop is not None:
                self._loop.call_later(AFTER_RELEASE_SECONDS, self.sampler.wake)

    def _gate_went_back(self, gate: str, epoch: int) -> None:
        """Storage was restored: all workers look again."""
        if self._loop is not None:
            self.bus.send(Hint(f"gate:{gate}", epoch=epoch, origin="dashboard"))

    def _gate_found(self, state: GateState) -> None:
        """A gate was changed and no notification of it came here: each process finds it, and notifies its own workers."""
        hint = Hint(f"gate:{state.name}", epoch=state.epoch, origin=state.by, state=rules.encode(state))
        self.bus.send(hint, first=True)

    def _troubles(self) -> tuple[str, ...]:
        return tuple(
            f'The dashboard\'s own work "{name}" failed within the last minute: {what}'
            for name, what in self.loops.troubles().items()
        )


_current: Runtime | None = None
_guard = threading.Lock()


def current() -> Runtime:
    """The runtime of this process, made on first use."""
    global _current
    with _guard:
        if _current is None:
            _current = Runtime()
        return _current


def use(runtime: Runtime | None) -> None:
    """Put another runtime in its place (None: a new one on next use). For tests."""
    global _current
    with _guard:
        _current = runtime


ANSWER_SECONDS, AWAY_SECONDS = 1.0, 0.25
MOST_KEPT = 200


class Seen(NamedTuple, Generic[T]):
    """What a page read from storage: now, or, with the `problem`, when storage last answered; None if it never did."""

    value: T | None
    problem: str = ""


def storage() -> Storage:
    """The storage account of this process."""
    return current().storage


def call(function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
    """Run a coroutine function on the process's one event loop and return its result. Not from that loop itself."""
    return current().call(function, *args)


def look(key: str, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> Seen[T]:
    """`call` for a page, which must not wait for storage: the answer within a second, or the last one of that `key` ("": none is kept).

    While storage is known to be away, a quarter of a second. Errors other than those of a storage that is away are raised.
    """
    runtime = current()
    away = runtime.fleet_state.sample.storage.unreachable_since is not None
    seconds, kept = AWAY_SECONDS if away else ANSWER_SECONDS, runtime.kept_reads

    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await function(*args)

    try:
        value = call(bounded)
    except NotFound:
        kept.pop(key, None)
        raise
    except (StorageError, TimeoutError) as error:
        problem = str(error) or f"Storage did not answer within {seconds:g} s"
        if key not in kept:
            return Seen(None, problem)
        at, value = kept[key]
        return Seen(value, f"{problem}. As read at {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC.")
    if key:
        keep(key, value)
    return Seen(value)


def keep(key: str, value: object) -> None:
    """What was just written, for `look`."""
    kept = current().kept_reads
    kept.pop(key, None)
    kept[key] = (time.time(), value)
    while len(kept) > MOST_KEPT:
        kept.pop(next(iter(kept)), None)
