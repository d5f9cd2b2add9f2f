"""Getting a lease, keeping it, and giving it back: what election, mutex and semaphore share (S15)."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from coordinator.backoff import TRANSIENT, Backoff
from coordinator.bus import RESYNC, Bus, Hint
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import (
    LeaseHeld,
    LeaseNotHeld,
    NotFound,
    PreconditionFailed,
    StorageError,
    StorageUnreachable,
)
from coordinator.leadership.lease import LeaderInfo, LeaseStore, Nominee
from coordinator.leadership.term import LeaseConfig, Term
from coordinator.offset import ClockOffset

T = TypeVar("T")

_LAG = (0.2, 0.4)


class Candidate:
    """One node's hand on one lease.

    Guarantees that a term begins only after the epoch was raised under the lease, and that its deadline counts from
    the moment the acquiring or renewing request was sent. Repeats requests whose answer was lost: with its own lease
    id each of them may arrive twice without harm.
    """

    def __init__(
        self,
        store: LeaseStore,
        *,
        identity: str,
        bus: Callable[[], Bus],
        config: LeaseConfig,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        self.name = store.name
        self.identity = identity
        self.config = config
        self.offset = ClockOffset()
        self._store = store
        self._bus = bus
        self._clock = clock
        self._rng = rng or random.Random()
        self._topic = f"election:{store.name}"
        self._lease_id = str(uuid.uuid4())
        self._maybe_ours = False
        self._known: LeaderInfo | None = None
        self._nominated: tuple[str, int] | None = None
        self._lag = self._rng.uniform(*_LAG)

    # --- getting it ---------------------------------------------------------------------------------------------

    async def read(self) -> LeaderInfo:
        """What is stored now; one request."""
        sent = self._clock.time()
        info = await self._ask(self._store.read)
        if info.date is not None:
            self.offset = self.offset.observed(sent=sent, received=self._clock.time(), date=info.date)
        self._known = info
        return info

    async def try_acquire(self) -> Term | None:
        """Take the lease if it is free and begin a term; None if another has it.

        If storage fails in between the lease may be ours without a term: calling again completes it.
        """
        sent, now = self._clock.monotonic(), self._clock.time() + self.offset.correction
        deadline = sent + self.config.term_seconds
        try:
            self._maybe_ours = True
            await self._ask(lambda: self._store.acquire(self._lease_id, self.config.lease_seconds))
            wanted, etag = await self._raise_epoch(now, deadline)
        except (LeaseHeld, LeaseNotHeld, PreconditionFailed):
            self._maybe_ours = False
            return None
        self._maybe_ours = False
        term = Term(
            self.name,
            holder=self.identity,
            epoch=wanted.epoch,
            lease_id=self._lease_id,
            since=now,
            asked_at=sent,
            deadline=deadline,
            clock=self._clock,
            etag=etag,
        )
        self._lease_id = str(uuid.uuid4())
        return term if term.held else None

    async def _raise_epoch(self, now: float, deadline: float) -> tuple[LeaderInfo, str]:
        """Write our record under the lease; returns it with its ETag."""
        known, self._known = self._known, None
        while True:
            if known is None:
                known = await self._retry_until(deadline, self._store.read)
            wanted = LeaderInfo(self.name, self.identity, known.epoch + 1, now, nonce=uuid.uuid4().hex)
            write = partial(self._store.write, wanted, lease_id=self._lease_id, etag=known.etag)
            try:
                return wanted, await self._retry_until(deadline, write)
            except PreconditionFailed:
                known = None  # what the last look showed is old, or our own write's answer was lost

    async def acquire(self, timeout: float | None = None) -> Term | None:
        """Wait for the lease; None after `timeout` seconds. Costs one request each third of a lease while waiting.

        An unreachable or busy store is waited for; every other storage error is raised.
        """
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        loop, wake = asyncio.get_running_loop(), asyncio.Event()

        def heard(hint: Hint) -> None:
            with suppress(RuntimeError):  # the loop ended while the hint was on its way
                if hint.topic != RESYNC:
                    loop.call_soon_threadsafe(wake.set)

        unsubscribe = self._bus().subscribe(self._topic, heard)
        hinted = False
        try:
            while True:
                pause = self.config.renew_seconds * self._rng.uniform(0.2, 0.4)
                try:
                    # After a hint the lease is free, or has been changed to the id that was nominated.
                    info = None if hinted or self._maybe_ours else await self._held_by_another()
                    if info is None and (term := await self.try_acquire()):
                        return term
                    if info is not None:
                        await self._ask_to_be_next(info)
                        pause = self._until_it_may_expire(info)
                    elif hinted:
                        pause = 0.0
                except TRANSIENT:
                    pass
                if deadline is not None:
                    left = deadline - self._clock.monotonic()
                    if left <= 0:
                        return None
                    pause = min(pause, left)
                hinted = await self._clock.wait(wake, pause)
                wake.clear()
        finally:
            unsubscribe()

    async def _held_by_another(self) -> LeaderInfo | None:
        try:
            info = await self.read()
        except NotFound:
            return None
        return info if info.is_held else None

    async def _ask_to_be_next(self, info: LeaderInfo) -> None:
        """Once for each leader, and only while a hint could tell us in time that we were chosen."""
        if self._bus().is_connected and self._nominated != (self._lease_id, info.epoch):
            await self._ask(lambda: self._store.nominate(Nominee(self.identity, self._lease_id)))
            self._nominated = (self._lease_id, info.epoch)

    def _until_it_may_expire(self, info: LeaderInfo) -> float:
        now = self._clock.time() + self.offset.correction
        return self.config.next_look(info.since, now, self._lag)

    # --- keeping it ---------------------------------------------------------------------------------------------

    async def keep(
        self,
        term: Term,
        *,
        refuse: Callable[[], Awaitable[str]] | None = None,
        renewed: Callable[[], None] | None = None,
    ) -> str:
        """Renew until the term cannot be kept; returns why.

        `refuse` is asked before each renewal; whatever it answers but "" is a reason to stop. `renewed` is called
        after each that was confirmed in time.
        """
        backoff = Backoff(base_seconds=0.2, cap_seconds=self.config.request_seconds / 2)
        due, failures, trouble = term.asked_at + self.config.renew_seconds, 0, ""
        while True:
            wait = min(due - self._clock.monotonic(), term.remaining_seconds)
            if wait > 0:
                await self._clock.sleep(wait)
            if not term.held:
                return trouble or "its lease could not be renewed in time"
            if refuse is not None:
                try:
                    if reason := await self._ask(refuse, at_most=term.remaining_seconds):
                        return reason
                except StorageUnreachable:
                    return "its health check gave no answer in time"
            asked = self._clock.monotonic()
            try:
                await self._ask(lambda: self._store.renew(term.lease_id), at_most=term.remaining_seconds)
            except (LeaseNotHeld, LeaseHeld, NotFound) as error:
                return f"the lease was taken away ({error})"
            except StorageError as error:
                trouble = f"its lease could not be renewed in time ({error})"
                due = self._clock.monotonic() + backoff.delay(failures)
                failures += 1
                continue
            if not term.extend(asked + self.config.term_seconds):
                return "its lease was renewed too late"
            if renewed is not None:
                renewed()
            # Back in step with `since`: that is when standbys look.
            failures, since = 0, self._clock.monotonic() - term.asked_at
            due = term.asked_at + self.config.renew_seconds * (
                (since / self.config.renew_seconds + 0.1) // 1 + 1
            )

    # --- giving it back -----------------------------------------------------------------------------------------

    async def release(self, term: Term) -> None:
        """Free the lease if the term still has it, and tell the others. Never raises for storage: it runs out anyway."""
        until = self._clock.monotonic() + term.remaining_seconds + self.config.margin_seconds
        with suppress(StorageError):
            await self._retry_until(until, lambda: self._store.release(term.lease_id))
        term.end("it was given back")
        await self._bus().publish(Hint(topic=self._topic, epoch=term.epoch, origin=self.identity))

    async def find_nominee(self) -> Nominee | None:
        """The standby that asked to be next; None if nobody else did, or if it cannot be found out."""
        try:
            nominee = await self._ask(self._store.nominee)
        except StorageError:
            return None
        return None if nominee is None or nominee.identity == self.identity else nominee

    async def hand_over(self, term: Term, nominee: Nominee | None) -> str:
        """Give the lease to that standby, with no moment between; returns who leads then.

        "" means that nobody could be handed it, and that it is free. A nominee that does not begin its term within
        the patience of `LeaseConfig.hand_over_seconds` is dead: then the lease is freed, on condition that the nominee
        has not begun after all.
        """
        if nominee is None or not term.held:
            return await self._released(term)
        try:
            term.end(f"it was handed over to {nominee.identity}")
            await self._ask(lambda: self._store.change(term.lease_id, nominee.lease_id))
            await self._bus().publish(Hint(topic=self._topic, epoch=term.epoch, origin=self.identity))
            started = self._clock.monotonic()
            for moment in (0.1, 0.3, 0.8, 1.0):
                await self._clock.sleep(
                    started + moment * self.config.hand_over_seconds - self._clock.monotonic()
                )
                if (await self.read()).etag != term.etag:
                    return nominee.identity
            await self._ask(lambda: self._store.release(nominee.lease_id, etag=term.etag))
            await self._bus().publish(Hint(topic=self._topic, epoch=term.epoch, origin=self.identity))
        except PreconditionFailed:
            return nominee.identity
        except StorageError:
            return await self._released(term)
        return ""

    async def _released(self, term: Term) -> str:
        await self.release(term)
        return ""

    # --- asking -------------------------------------------------------------------------------------------------

    async def _ask(self, call: Callable[[], Awaitable[T]], *, at_most: float = 3600.0) -> T:
        """One request, within the time that the lease leaves for it."""
        request, done = asyncio.ensure_future(call()), asyncio.Event()
        request.add_done_callback(lambda _: done.set())
        seconds = min(self.config.request_seconds, at_most)
        try:
            if not await self._clock.wait(done, seconds):
                raise StorageUnreachable(
                    f"{self.name}: the storage service gave no answer within {seconds:.1f} s",
                    resource=self.name,
                    maybe_done=True,
                )
            return await request
        finally:
            if not request.done():
                request.cancel()
                await asyncio.wait([request])
            if not request.cancelled():
                request.exception()  # it may have failed in the moment in which it was given up

    async def _retry_until(self, deadline: float, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call that may be repeated, while storage is unreachable or busy."""
        backoff = Backoff(base_seconds=0.1, cap_seconds=1.0)
        attempt = 0
        while True:
            try:
                return await self._ask(call, at_most=max(0.1, deadline - self._clock.monotonic()))
            except TRANSIENT:
                pause = backoff.delay(attempt)
                if self._clock.monotonic() + pause >= deadline:
                    raise
            await self._clock.sleep(pause)
            attempt += 1
