"""Holding a lock while a block runs: what mutex and semaphore share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Protocol

from coordinator.blocking import Portal, call_blocking
from coordinator.errors import ConfigurationError, KennelError, LeadershipLost, LockTimeout
from coordinator.leadership.candidate import Candidate
from coordinator.leadership.term import Term
from coordinator.uninterrupted import uninterrupted

Won = tuple[Candidate, Term]


class Way(Protocol):
    """One try for the lock, with lease ids of its own."""

    async def try_acquire(self) -> Won | None:
        """Take it if it is free now."""

    async def acquire(self, timeout: float | None) -> Won | None:
        """Wait for it; None after `timeout` seconds."""


class Hold:
    """The lock, held: renewed until it is given back or lost."""

    def __init__(self, name: str, won: Won) -> None:
        self.name = name
        self.candidate, self.term = won
        self._owner: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._interrupted = False
        self._keeper = asyncio.create_task(self._keep(), name=f"lock {name}")

    def enter(self) -> None:
        """From here on the current task is cancelled when the lock is lost."""
        self._owner = asyncio.current_task()
        assert self._owner is not None
        self._cancelling = self._owner.cancelling()
        if self._keeper.done():
            self._interrupt()

    async def leave(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """Give the lock back; raises `LeadershipLost` if it was lost meanwhile and nothing else is the matter."""
        owner, self._owner = self._owner, None
        lost = self.term.loss
        try:
            await self.abandon()
        finally:
            still = owner.uncancel() if self._interrupted and owner is not None else 0
        # Nobody else cancelled the task meanwhile, and the block ended by our cancellation or in spite of it.
        ours = self._interrupted and still <= self._cancelling
        if ours and (kind is None or issubclass(kind, asyncio.CancelledError)):
            raise LeadershipLost(f"{self.name} was lost: {lost}") from error

    async def abandon(self) -> None:
        await uninterrupted(self._abandon)

    async def _abandon(self) -> None:
        self._keeper.cancel()
        await asyncio.wait([self._keeper])
        await self.candidate.release(self.term)

    async def _keep(self) -> None:
        self.term.end(await self.candidate.keep(self.term))
        self._interrupt()

    def _interrupt(self) -> None:
        if self._owner is not None and not self._owner.done() and not self._interrupted:
            self._interrupted = True
            self._owner.cancel()


class LeaseLock:
    """A lock over all nodes. Subclasses say how it is won.

    `hold()` is for any number of tasks and threads at a time. `acquire`, `release` and `async with` on the object itself keep
    what they hold in it: they are for one task at a time, and a second use is refused.
    """

    def __init__(self, name: str, portal: Portal | None = None) -> None:
        self.name = name
        self._portal = portal
        self._held: Hold | None = None
        self._busy = False
        self._own = self._way()

    @property
    def term(self) -> Term | None:
        """The term of the holder; None unless this object holds the lock by `acquire` or `async with`."""
        return self._held.term if self._held else None

    @asynccontextmanager
    async def hold(self, timeout: float | None = None) -> AsyncIterator[Term]:
        """Wait for the lock and hold it while the block runs. Any number of tasks can use one object this way; each
        waits for the others, too.

        The block is cancelled, and `LeadershipLost` raised, if the lock is lost while it runs. Not re-entrant: a
        second `hold` inside the block waits for ever, or for its timeout.

        Args:
            timeout: Seconds to wait (default None: no limit).

        Yields:
            The term.

        Raises:
            LockTimeout: The lock was not free within `timeout`.
            LeadershipLost: The lock was lost while the block ran.

        Examples:
            >>> async with lock.hold(timeout=5) as term:
            ...     term.check()
        """
        hold = await self._take(timeout)
        hold.enter()
        try:
            yield hold.term
        except BaseException as error:
            await hold.leave(type(error), error)
            raise
        await hold.leave(None, None)

    @contextmanager
    def hold_blocking(self, timeout: float | None = None) -> Iterator[Term]:
        """`hold` for threads.

        Nobody can cancel a thread: it must look at `term.held` or call `term.check()`. The lock is given back only
        after the block.

        Args:
            timeout: As for `hold`.

        Yields:
            The term.

        Raises:
            LockTimeout: The lock was not free within `timeout`.
            LeadershipLost: The lock was lost while the block ran.

        Examples:
            >>> with lock.hold_blocking(timeout=5) as term:
            ...     term.check()
        """
        hold = call_blocking(
            self._portal, f"{self.name}: hold_blocking", "async with lock.hold()", self._take, timeout
        )
        try:
            yield hold.term
        finally:
            lost = hold.term.loss
            call_blocking(self._portal, f"{self.name}: hold_blocking", "async with lock.hold()", hold.abandon)
        if lost:
            raise LeadershipLost(f"{self.name} was lost: {lost}")

    async def try_acquire(self) -> Term | None:
        """Take the lock if it is free now; None if not. Raises `StorageError` if that cannot be found out.

        A `StorageError.maybe_done` may have left the lock with this object: calling again completes it.
        """
        self._refuse_second_use()
        try:
            won = await self._own.try_acquire()
            self._held = None if won is None else Hold(self.name, won)
        finally:
            self._busy = False
        return self.term

    async def acquire(self, timeout: float | None = None) -> Term:
        """Wait for the lock.

        Args:
            timeout: Seconds to wait (default None: no limit).

        Returns:
            The term.

        Raises:
            LockTimeout: The lock was not free within `timeout`.
        """
        self._check(timeout)
        self._refuse_second_use()
        try:
            won = await self._own.acquire(timeout)
            if won is None:
                raise LockTimeout(f"{self.name} was not free within {timeout:g} s")
            self._held = Hold(self.name, won)
        finally:
            self._busy = False
        return self._held.term

    async def release(self) -> None:
        """Give the lock back; harmless if it is not held."""
        held, self._held = self._held, None
        if held is not None:
            await held.abandon()

    async def __aenter__(self) -> Term:
        term = await self.acquire()
        assert self._held is not None
        self._held.enter()
        return term

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, self._held = self._held, None
        if held is not None:
            await held.leave(kind, error)

    def _way(self) -> Way:
        raise NotImplementedError

    async def _take(self, timeout: float | None) -> Hold:
        self._check(timeout)
        won = await self._way().acquire(timeout)
        if won is None:
            raise LockTimeout(f"{self.name} was not free within {timeout:g} s")
        return Hold(self.name, won)

    def _check(self, timeout: float | None) -> None:
        is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and timeout == timeout):  # NaN would wait for ever
            raise ConfigurationError(f"{self.name}: timeout must be seconds, or None; got {timeout!r}")

    def _refuse_second_use(self) -> None:
        # Before anything is awaited: two tasks that come at the same time must not both get past it.
        if self._held is not None or self._busy:
            raise KennelError(
                f"{self.name} is in use by this object already; use `hold()`, or make one object for each task"
            )
        self._busy = True
