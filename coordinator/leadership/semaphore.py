"""A lock that several may hold."""

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
    """At most n holders at a time, over all nodes, each with one of n leases.

    Guarantees for each holder what `BlobDistributedMutex` guarantees; `term.name` says which of the n places it has,
    and epochs count for each place alone. `hold()` may be used by many tasks and threads at a time.

    Does not guarantee fairness, nor the number if users of one name do not agree on n.

    Costs one request each third of a lease while waiting (one read shows all places), each two thirds while holding.
    The place of a holder that died is free after its lease, and found within a third of a lease more.

    Args:
        name: The name.
        stores: The leases; `Storage.semaphore` gives them in the account, `coordinator.testing` in memory.
        look: Reads all of them with one request.
        identity: What the holder is called in records.
        bus: Notifies of releases.
        lease_seconds: 15 to 60 (default 15): how soon the place of a dead holder is free.
        config: All times of the lease, instead of `lease_seconds`; see `LeaseConfig`.
        clock: The clock, for tests.
        rng: The source of jitter, for tests.
        portal: For the blocking methods.
        epochs: Where used epochs are recorded, by place.

    Raises:
        ConfigurationError: There is no place, or a time is out of bounds.
        LockTimeout: No place was free within the time given.
        LeadershipLost: The place was lost while the block ran.

    Examples:
        >>> async with storage.semaphore("importers", 3).hold() as term:
        ...     print(term.name)
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
        # A request whose answer was lost may have taken a place: asking for that one again completes it.
        free = [name for name, place in self._places.items() if place.is_in_doubt or name not in taken]
        self._rng.shuffle(free)
        free.sort(key=lambda name: not self._places[name].is_in_doubt)
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
                pause = self._config.renew_seconds * self._rng.uniform(0.5, 0.55)
                try:
                    if won := await self.try_acquire():
                        return won
                except TRANSIENT:
                    pause = self._config.retry_seconds * self._rng.uniform(0.5, 1.0)
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
