"""One leader at a time."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from coordinator.blocking import Portal, call_blocking
from coordinator.clock import SYSTEM_CLOCK, Clock, SystemClock
from coordinator.errors import KennelError, LeadershipLost, StorageError
from coordinator.leadership.callbacks import notify
from coordinator.leadership.candidate import Candidate
from coordinator.leadership.lease import LeaderInfo, LeaseStore
from coordinator.leadership.term import LeaseConfig, Term
from coordinator.leadership.terms import TermLog, TermRecord
from coordinator.leadership.watchdog import WATCHDOG
from coordinator.leadership.working import run_task
from coordinator.realtime.bus import Bus
from coordinator.realtime.protocol import LeadershipStatus
from coordinator.uninterrupted import uninterrupted

Role = Literal["leader", "standby", "stopped"]
LeaderTask = Callable[[Term], Any]
Health = Callable[[], bool | Awaitable[bool]]

_log = logging.getLogger("coordinator.leadership")


class Election:
    """Runs a task on one node at a time, and on another when that one dies ([its
    source](../sources.md#s15-blobdistributedmutex)).

    Guarantees that the task starts only after the epoch was raised under the lease; that it is cancelled before the
    lease can have expired; that the lease is given back only after the task has ended. After a crash another node
    leads within one lease and a second.

    Does not guarantee that a task which blocks the event loop or ignores its cancellation stops in time, nor that a
    request already sent does not arrive late: `term.check()` and fencing are for that.

    Costs one request for each renewal, leading, and as many waiting; while renewals are heard over the bus, waiting
    costs one request a minute. By default that is 222 an hour, and with a hub or Redis 360 and 60: see `LeaseConfig`.

    Args:
        store: Where the lease is; `Storage.election` gives one in the account, `coordinator.testing` one in memory.
        identity: What the leader is called in records.
        bus: Notifies of renewals and releases.
        lease_seconds: 15 to 60 (default: 15 with a hub or Redis, 20 without): how soon another node leads after a crash.
        config: All times of the lease, instead of `lease_seconds`; see `LeaseConfig`.
        health: Asked each third of a lease, plain or async. False, an error or no answer in time makes the leader
            step down.
        on_change: Called with the new role and the term (None unless leader). What it or another callback raises is logged.
        on_new_leader: Called with the identity of each leader that this candidate learns of, itself included.
        on_stall: Called, in a thread, if the event loop stalls past the end of the lease.
        history: Where terms are recorded. It also remembers the highest epoch, which a deleted or restored blob
            forgets.
        clock: The clock, for tests.
        rng: The source of jitter, for tests.
        portal: For `run_blocking`.

    Raises:
        ConfigurationError: A time is out of bounds.
        StorageError: Storage refused; also raised by each method.

    Examples:
        >>> await storage.election("month-end").run(close_the_books)
    """

    def __init__(
        self,
        store: LeaseStore,
        *,
        identity: str,
        bus: Callable[[], Bus],
        lease_seconds: int | None = None,
        config: LeaseConfig | None = None,
        health: Health | None = None,
        on_change: Callable[[Role, Term | None], None] | None = None,
        on_new_leader: Callable[[str], None] | None = None,
        on_stall: Callable[[Term], None] | None = None,
        history: TermLog | None = None,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
        portal: Portal | None = None,
    ) -> None:
        self.name = store.name
        self.identity = identity
        self.on_change = on_change
        self.on_status: Callable[[], None] | None = None
        self.role: Role = "stopped"
        self.term: Term | None = None
        self._health = health
        self._on_stall = on_stall
        self._history = history
        self._clock = clock
        self._portal = portal
        if config is None and lease_seconds is not None:
            config = LeaseConfig(lease_seconds)
        self._candidate = Candidate(
            store, identity=identity, bus=bus, config=config, clock=clock, rng=rng, epochs=history
        )
        if on_new_leader is not None:
            self._candidate.on_new_leader = lambda holder, epoch: on_new_leader(holder)
        self._resign: asyncio.Event | None = None
        self._resign_reason = ""
        self._running = False

    @property
    def config(self) -> LeaseConfig:
        """The times of the lease. Without options they are chosen when a term begins."""
        return self._candidate.config

    async def run(self, leader_task: LeaderTask) -> Any:
        """Campaign, lead, and campaign again whenever leadership is lost, until the task ends by itself.

        Cancel to stop: the task is cancelled, and the lease given back when it has ended.

        Args:
            leader_task: ``leader_task(term)``, async or plain; a plain one runs in a thread and must look at
                `term.held`.

        Returns:
            What the task returned. The lease is free.

        Raises:
            Exception: What the task raised. The lease is free.
        """
        if self._running:
            raise KennelError(f"election {self.name} runs already in this object; make another one")
        self._running = True
        try:
            while True:
                self._change("standby", None)
                term = await self._candidate.acquire()
                assert term is not None
                ended, result = await self._lead(term, leader_task)
                if ended:
                    return result
                if self._resign_reason:
                    # Others look once in the time between two renewals: let them go first.
                    await self._clock.sleep(self.config.lease_seconds)
        finally:
            self._running = False
            self._change("stopped", None)

    def run_blocking(self, leader_task: LeaderTask) -> Any:
        """`run` for threads: campaigns over the storage's own event loop until the task ends; Ctrl-C stops it.

        Args:
            leader_task: As for `run`.

        Returns:
            As for `run`.
        """
        return call_blocking(
            self._portal,
            f"election {self.name}: run_blocking",
            "await election.run(task)",
            self.run,
            leader_task,
        )

    def step_down(self, reason: str = "asked to step down") -> bool:
        """Stop leading and let another node lead. Returns at once; from any thread.

        Args:
            reason: For the record of terms (default "asked to step down").

        Returns:
            False if this node does not lead.
        """
        resign, term = self._resign, self.term
        if resign is None or term is None:
            return False
        self._resign_reason = self._resign_reason or reason
        term.on_loop(resign.set)
        return True

    async def read(self) -> LeaderInfo:
        """Who leads, as stored now; one request.

        Returns:
            The leader.

        Raises:
            NotFound: No leader was ever elected.
        """
        return await self._candidate.read()

    def status(self) -> LeadershipStatus:
        """For telemetry; no I/O."""
        term = self.term
        return LeadershipStatus(
            name=self.name,
            role=self.role,
            epoch=term.epoch if term else 0,
            remaining_seconds=round(term.lease_left(self.config.margin_seconds), 3) if term else 0.0,
            lease_seconds=self.config.lease_seconds,
        )

    async def _lead(self, term: Term, leader_task: LeaderTask) -> tuple[bool, Any]:
        """One term, to its end: (whether the task ended by itself, its result)."""
        self._resign, self._resign_reason = asyncio.Event(), ""
        self._candidate.saw(term)
        self._change("leader", term)
        work = asyncio.create_task(run_task(leader_task, term, term), name=f"leader {self.name}")
        keeper = asyncio.create_task(self._keep(term), name=f"lease {self.name}")
        resign = asyncio.create_task(self._resign.wait())
        begun = asyncio.create_task(self._record("began", term), name=f"record {self.name}")
        unwatch = (
            WATCHDOG.watch(term, work, self._on_stall) if isinstance(self._clock, SystemClock) else _nothing
        )
        ended = False
        try:
            await asyncio.wait({work, keeper, resign}, return_when=asyncio.FIRST_COMPLETED)
            ended = work.done()
        finally:
            # No renewal from here on: work that hangs must not lead for ever. The lease is given back once it ended.
            keeper.cancel()
            resign.cancel()
            work.cancel()
            # A second cancellation must not leave the lease taken, or the work running.
            lost = await uninterrupted(lambda: self._end(term, ended, work, keeper, begun, unwatch))
        if lost:
            _log.warning(
                "Lost the lead of %s: %s", self.name, lost, extra={"action": "lead", "epoch": term.epoch}
            )
        error = None if work.cancelled() else work.exception()
        if ended and not isinstance(error, LeadershipLost):
            return True, work.result()
        if error is not None and not isinstance(error, LeadershipLost):
            _log.error("The task of %s failed as its term ended", self.name, exc_info=error)
        return False, None

    async def _end(
        self,
        term: Term,
        ended: bool,
        work: asyncio.Task[Any],
        keeper: asyncio.Task[None],
        begun: asyncio.Task[None],
        unwatch: Callable[[], None],
    ) -> str:
        """Wait until the work has ended, then give the lease back or over; returns why the term was lost, if it was."""
        # Asked for while the work ends, so that the hand-over itself is one request.
        find = self._candidate.find_nominee if term.has_lease and not ended else _nobody
        finding = asyncio.create_task(find(), name=f"successor {self.name}")
        await asyncio.wait({work, keeper, finding})
        unwatch()
        self._resign = None
        lost, how = term.loss, "finished" if ended else "stopped"
        self._change("standby", None)
        if not keeper.cancelled():
            keeper.result()
        if lost or ended:
            await self._candidate.release(term)
            how = f"lost: {lost}" if lost else how
        elif successor := await self._candidate.hand_over(term, finding.result()):
            how, self._resign_reason = f"handed over to {successor}", ""
        elif self._resign_reason:
            how = f"stepped down: {self._resign_reason}"
        await asyncio.wait([begun])
        await self._record("ended", term, how)
        return lost

    async def _record(self, event: Literal["began", "ended"], term: Term, how: str = "") -> None:
        if self._history is None:
            return
        ended = self._clock.time() + self._candidate.offset.correction if event == "ended" else None
        record = TermRecord(self.name, term.epoch, term.holder, term.since, ended, how)
        try:
            await getattr(self._history, event)(record)
        except StorageError as error:
            _log.warning("Term %s of %s is not recorded: %s", term.epoch, self.name, error)

    async def _keep(self, term: Term) -> None:
        refuse = self._unhealthy if self._health else None
        term.end(await self._candidate.keep(term, refuse=refuse, renewed=self._publish_status))

    async def _unhealthy(self) -> str:
        assert self._health is not None
        resigned, self._resign_reason = self._resign_reason, "its health check gave no answer in time"
        try:
            answer = self._health()
            healthy = await answer if inspect.isawaitable(answer) else answer
            self._resign_reason = resigned if healthy else "it is not healthy"
        except Exception as error:
            _log.exception("The health check of %s failed", self.name)
            self._resign_reason = f"its health check failed ({error})"
        return self._resign_reason

    def _publish_status(self) -> None:
        notify(f"on_status of {self.name}", self.on_status)

    def _change(self, role: Role, term: Term | None) -> None:
        if (role, term) == (self.role, self.term):
            return
        self.role, self.term = role, term
        self._publish_status()
        notify(f"on_change of {self.name}", self.on_change, role, term)


def _nothing() -> None: ...


async def _nobody() -> None: ...
