"""Holding a lock while a block runs: what mutex and semaphore share."""

from __future__ import annotations

import asyncio
from types import TracebackType

from coordinator.errors import KennelError, LeadershipLost, LockTimeout
from coordinator.leadership.candidate import Candidate
from coordinator.leadership.term import Term

Won = tuple[Candidate, Term]


class LeaseLock:
    """A lock for one task. Subclasses say how it is won."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._won: Won | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._owner: asyncio.Task[object] | None = None
        self._interrupted = False

    @property
    def term(self) -> Term | None:
        """The term of the holder; None unless this object holds the lock."""
        return self._won[1] if self._won else None

    async def try_acquire(self) -> Term | None:
        """Take the lock if it is free now; None if not. Raises `StorageError` if that cannot be found out."""
        self._refuse_second_use()
        return self._begin(await self._try())

    async def acquire(self, timeout: float | None = None) -> Term:
        """Wait for the lock; raises `LockTimeout` after `timeout` seconds."""
        self._refuse_second_use()
        term = self._begin(await self._wait(timeout))
        if term is None:
            raise LockTimeout(f"{self.name} was not free within {timeout:g} s")
        return term

    async def release(self) -> None:
        """Give the lock back; harmless if it is not held."""
        keeper, self._keeper = self._keeper, None
        won, self._won = self._won, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        if won is not None:
            candidate, term = won
            await candidate.release(term)

    async def __aenter__(self) -> Term:
        term = await self.acquire()
        self._owner, self._interrupted = asyncio.current_task(), False
        return term

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        owner, term = self._owner, self.term
        self._owner = None
        reason = term.reason if term is not None else ""
        await self.release()
        if self._interrupted and owner is not None:
            owner.uncancel()
            if kind is None or issubclass(kind, asyncio.CancelledError):
                raise LeadershipLost(f"{self.name} was lost: {reason}") from error

    async def _try(self) -> Won | None:
        raise NotImplementedError

    async def _wait(self, timeout: float | None) -> Won | None:
        raise NotImplementedError

    def _begin(self, won: Won | None) -> Term | None:
        if won is None:
            return None
        self._won = won
        self._keeper = asyncio.create_task(self._keep(*won), name=f"lock {self.name}")
        return won[1]

    async def _keep(self, candidate: Candidate, term: Term) -> None:
        term.end(await candidate.keep(term))
        if self._owner is not None and not self._owner.done():
            self._interrupted = True
            self._owner.cancel()

    def _refuse_second_use(self) -> None:
        if self._won is not None:
            raise KennelError(f"{self.name} is held by this object already; make one object for each task")
