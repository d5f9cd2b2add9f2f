"""A lock across nodes (S15)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import TracebackType

from coordinator.bus import Bus
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import KennelError, LeadershipLost, LockTimeout
from coordinator.leadership.candidate import Candidate
from coordinator.leadership.lease import LeaseStore
from coordinator.leadership.term import LeaseConfig, Term


class BlobDistributedMutex:
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
        self.name = store.name
        self._candidate = Candidate(
            store, identity=identity, bus=bus, config=LeaseConfig(lease_seconds), clock=clock, rng=rng
        )
        self._term: Term | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._owner: asyncio.Task[object] | None = None
        self._interrupted = False

    @property
    def term(self) -> Term | None:
        """The term of the holder; None unless this object holds the lock."""
        return self._term

    async def try_acquire(self) -> Term | None:
        """Take the lock if it is free now; None if another has it. Raises `StorageError` if that cannot be found out."""
        self._refuse_second_use()
        return self._begin(await self._candidate.try_acquire())

    async def acquire(self, timeout: float | None = None) -> Term:
        """Wait for the lock; raises `LockTimeout` after `timeout` seconds."""
        self._refuse_second_use()
        term = self._begin(await self._candidate.acquire(timeout))
        if term is None:
            raise LockTimeout(f"mutex {self.name} was not free within {timeout:g} s")
        return term

    async def release(self) -> None:
        """Give the lock back; harmless if it is not held."""
        keeper, self._keeper = self._keeper, None
        term, self._term = self._term, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        if term is not None:
            await self._candidate.release(term)

    async def __aenter__(self) -> Term:
        term = await self.acquire()
        self._owner, self._interrupted = asyncio.current_task(), False
        return term

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        owner, term = self._owner, self._term
        self._owner = None
        await self.release()
        if self._interrupted and owner is not None and term is not None:
            owner.uncancel()
            if kind is None or issubclass(kind, asyncio.CancelledError):
                raise LeadershipLost(f"mutex {self.name} was lost: {term.reason}") from error

    def _begin(self, term: Term | None) -> Term | None:
        if term is not None:
            self._term = term
            self._keeper = asyncio.create_task(self._keep(term), name=f"mutex {self.name}")
        return term

    async def _keep(self, term: Term) -> None:
        term.end(await self._candidate.keep(term))
        if self._owner is not None and not self._owner.done():
            self._interrupted = True
            self._owner.cancel()

    def _refuse_second_use(self) -> None:
        if self._term is not None:
            raise KennelError(
                f"mutex {self.name} is held by this object already; make one object for each task"
            )
