"""A lock that several may hold (S15, counted)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from coordinator.backoff import TRANSIENT
from coordinator.blocking import Portal
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.epochs import EpochLog
from coordinator.errors import ConfigurationError
from coordinator.leadership.candidate import Candidate
from coordinator.leadership.holding import LeaseLock, Won
from coordinator.leadership.lease import LeaderInfo, LeaseStore
from coordinator.leadership.term import LeaseConfig
from coordinator.realtime.bus import RESYNC, Bus, Hint
from coordinator.uninterrupted import uninterrupted


class BlobDistributedSemaphore(LeaseLock):
    """At most n holders at a time, over all nodes, each with one of n leases: `async with storage.semaphore("x", 3):`.

    Guarantees for each holder what `BlobDistributedMutex` guarantees; `term.name` tells which of the n places it has,
    and epochs count for each place alone. All users of one name must agree on n. Not fair. `hold()` may be used by many tasks
    and threads at a time.

    Costs one request each third of a lease while waiting (one look shows all places), each two thirds while holding. The place of a holder that
    died is free after its lease, and found within a third of a lease more.
    """

    def __init__(
        self,
        name: str,
        stores: Sequence[LeaseStore],
        look: Callable[[], Awaitable[list[LeaderInfo]]],
        *,
        identity: str,
        bus: Callable[[], Bus],
        lease_seconds: int = 15,
        config: LeaseConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
        portal: Portal | None = None,
        epochs: Callable[[str], EpochLog | None] = lambda place: None,
    ) -> None:
        if not stores:
            raise ConfigurationError(f"semaphore {name} needs at least one place")
        self._config = config or LeaseConfig(lease_seconds)
        logs = {store.name: epochs(store.name) for store in stores}
        self._candidates: Callable[[], dict[str, Candidate]] = lambda: {
            store.name: Candidate(
                store,
                identity=identity,
                bus=bus,
                config=self._config,
                clock=clock,
                rng=rng,
                epochs=logs[store.name],
            )
            for store in stores
        }
        self._look = look
        self._bus = bus
        self._clock = clock
        self._rng = rng or random.Random()
        super().__init__(f"semaphore {name}", portal)

    def _way(self) -> _Places:
        return _Places(self._candidates(), self._look, self._config, self._bus, self._clock, self._rng)


class _Places:
    def __init__(
        self,
        places: dict[str, Candidate],
        look: Callable[[], Awaitable[list[LeaderInfo]]],
        config: LeaseConfig,
        bus: Callable[[], Bus],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._places, self._look, self._config = places, look, config
        self._bus, self._clock, self._rng = bus, clock, rng

    async def try_acquire(self) -> Won | None:
        taken = {info.name for info in await self._look() if info.is_held}
        free = [name for name in self._places if name not in taken]
        self._rng.shuffle(free)
        for name in free:
            if term := await self._places[name].try_acquire():
                return self._places[name], term
        return None

    async def acquire(self, timeout: float | None) -> Won | None:
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        loop, wake = asyncio.get_running_loop(), asyncio.Event()

        def on_notification(hint: Hint) -> None:
            if hint.topic != RESYNC:
                with suppress(RuntimeError):  # the loop ended while the hint was on its way
                    loop.call_soon_threadsafe(wake.set)

        unsubscribe = [self._bus().subscribe(f"election:{name}", on_notification) for name in self._places]
        try:
            while True:
                wake.clear()
                with suppress(*TRANSIENT):
                    if won := await self.try_acquire():
                        return won
                pause = self._config.renew_seconds * self._rng.uniform(0.5, 0.55)
                if deadline is not None:
                    left = deadline - self._clock.monotonic()
                    if left <= 0:
                        return None
                    pause = min(pause, left)
                await self._clock.wait(wake, pause)
        finally:
            for end in unsubscribe:
                end()
            for candidate in self._places.values():
                await uninterrupted(candidate.give_up)
