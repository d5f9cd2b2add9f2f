"""A lock across nodes (S15)."""

from __future__ import annotations

import random
from collections.abc import Callable

from coordinator.bus import Bus
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.leadership.candidate import Candidate
from coordinator.leadership.holding import LeaseLock, Won
from coordinator.leadership.lease import LeaseStore
from coordinator.leadership.term import LeaseConfig, Term


class BlobDistributedMutex(LeaseLock):
    """At most one holder at a time, over all nodes (S15): `async with storage.mutex("stock-count") as term:`.

    Guarantees what `Term` guarantees, and that the block is cancelled and `LeadershipLost` raised when the lock is lost
    while it runs. Does not guarantee that nobody else begins while a block ignores its cancellation: call `term.check()`
    before effects, or fence them with `term.epoch`. Not fair, and not re-entrant: a mutex object is for one task.

    Costs one request each third of a lease, waiting or holding. Waiters learn of a release at once over the bus,
    otherwise at their next look.
    """

    def __init__(
        self,
        store: LeaseStore,
        *,
        identity: str,
        bus: Callable[[], Bus],
        lease_seconds: int = 15,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(f"mutex {store.name}")
        self._candidate = Candidate(
            store, identity=identity, bus=bus, config=LeaseConfig(lease_seconds), clock=clock, rng=rng
        )

    async def _try(self) -> Won | None:
        return self._with(await self._candidate.try_acquire())

    async def _wait(self, timeout: float | None) -> Won | None:
        return self._with(await self._candidate.acquire(timeout))

    def _with(self, term: Term | None) -> Won | None:
        return None if term is None else (self._candidate, term)
