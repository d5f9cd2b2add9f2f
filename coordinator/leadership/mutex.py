"""A lock across nodes."""

from __future__ import annotations

import random
from collections.abc import Callable

from coordinator.blocking import Portal
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.epochs import EpochLog
from coordinator.leadership.candidate import Candidate
from coordinator.leadership.holding import LeaseLock, Won
from coordinator.leadership.lease import LeaseStore
from coordinator.leadership.term import LeaseConfig
from coordinator.realtime.bus import Bus


class BlobDistributedMutex(LeaseLock):
    """At most one holder at a time, over all nodes ([its source](../sources.md#s15-blobdistributedmutex)).

    Guarantees what `Term` guarantees, and that the block is cancelled and `LeadershipLost` raised when the lock is
    lost while it runs. `hold()` may be used by many tasks and (as `hold_blocking`) threads at a time; `async with
    mutex` and `acquire` by one.

    Does not guarantee that nobody else begins while a block ignores its cancellation: call `term.check()` before
    effects, or fence them with `term.epoch`. Not fair, and not re-entrant.

    Costs one request each two thirds of a lease, waiting or holding; while renewals are heard over the bus, waiting
    costs one a minute. Waiters learn of a release at once over the bus, otherwise at their next read.

    Args:
        store: Where the lease is; `Storage.mutex` gives one in the account, `coordinator.testing` one in memory.
        identity: What the holder is called in records.
        bus: Notifies of releases.
        lease_seconds: 15 to 60 (default 15): how soon the lock of a dead holder is free.
        config: All times of the lease, instead of `lease_seconds`; see `LeaseConfig`.
        clock: The clock, for tests.
        rng: The source of jitter, for tests.
        portal: For the blocking methods.
        epochs: Where used epochs are recorded.

    Raises:
        ConfigurationError: A time is out of bounds.
        LockTimeout: The lock was not free within the time given.
        LeadershipLost: The lock was lost while the block ran.

    Examples:
        >>> async with storage.mutex("stock-count").hold(timeout=60) as term:
        ...     term.check()
    """

    def __init__(
        self,
        store: LeaseStore,
        *,
        identity: str,
        bus: Callable[[], Bus],
        lease_seconds: int = 15,
        config: LeaseConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
        portal: Portal | None = None,
        epochs: EpochLog | None = None,
    ) -> None:
        settings = config or LeaseConfig(lease_seconds)
        self._candidate: Callable[[], Candidate] = lambda: Candidate(
            store, identity=identity, bus=bus, config=settings, clock=clock, rng=rng, epochs=epochs
        )
        super().__init__(f"mutex {store.name}", portal)

    def _way(self) -> _Single:
        return _Single(self._candidate())


class _Single:
    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate

    async def try_acquire(self) -> Won | None:
        term = await self._candidate.try_acquire()
        return None if term is None else (self._candidate, term)

    async def acquire(self, timeout: float | None) -> Won | None:
        term = await self._candidate.acquire(timeout)
        return None if term is None else (self._candidate, term)
