"""Getting a lease, keeping it, and giving it back: what election, mutex and semaphore share."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from coordinator.backoff import TRANSIENT, Backoff
from coordinator.clock import SYSTEM_CLOCK, Clock, ClockOffset
from coordinator.epochs import EpochLog, EpochRecord
from coordinator.errors import (
    LeaseCorrupt,
    LeaseHeld,
    LeaseNotHeld,
    NotFound,
    PreconditionFailed,
    StorageError,
    StorageUnreachable,
)
from coordinator.leadership.callbacks import notify
from coordinator.leadership.lease import LeaderInfo, LeaseStore, Successor
from coordinator.leadership.term import WITH_PUSH, WITHOUT_PUSH, LeaseConfig, Term
from coordinator.realtime.bus import RESYNC, Bus, Hint, reaches_others
from coordinator.uninterrupted import uninterrupted

T = TypeVar("T")

_LAG = (0.2, 0.4)
_TICK = 0.001
_LOOK_ANYWAY = (60.0, 66.0)  # renewals that are heard cost nothing, but a hint is no proof
_log = logging.getLogger("coordinator.leadership")


class Candidate:
    """One node's hand on one lease.

    Guarantees that a term begins only after the epoch was raised under the lease, and that its deadline counts from
    the moment the acquiring or renewing request was sent. Repeats requests whose answer was lost: with its own lease
    id each of them may arrive twice without harm.

    Without a `config` each term has the default times of a bus that reaches others, or of one that does not.
    """

    def __init__(
        self,
        store: LeaseStore,
        *,
        identity: str,
        bus: Callable[[], Bus],
        config: LeaseConfig | None,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
        epochs: EpochLog | None = None,
    ) -> None:
        self.name = store.name
        self.identity = identity
        self.offset = ClockOffset()
        self._store = store
        self._bus = bus
        self._given = config
        self.config = self._fitting()
        self._clock = clock
        self._rng = rng or random.Random()
        self._topic = f"election:{store.name}"
        self._lease_id = str(uuid.uuid4())
        self._maybe_ours = False
        self._known: LeaderInfo | None = None
        self._nominated: tuple[str, int] | None = None
        self._lag = self._rng.uniform(*_LAG)
        self._look_anyway = self._rng.uniform(*_LOOK_ANYWAY)
        self._retry = Backoff(
            base_seconds=self.config.retry_seconds / 4, cap_seconds=self.config.retry_seconds
        )
        self._epochs = epochs
        self._renewals = f"lease:{store.name}"
        self._renewed_at = self._looked_at = float("-inf")
        self._leaders_lease = 0.0
        self._seen = 0
        self.on_new_leader: Callable[[str, int], None] | None = None

    # --- getting it ---------------------------------------------------------------------------------------------

    async def read(self) -> LeaderInfo:
        """What is stored now; one request."""
        sent = self._clock.time()
        info = await self._ask(self._store.read)
        if info.date is not None:
            self.offset = self.offset.observed(sent=sent, received=self._clock.time(), date=info.date)
        self._known, self._looked_at = info, self._clock.monotonic()
        self._leaders_lease = info.lease_seconds
        if info.is_held:
            self._see(info.holder, info.epoch)
        return info

    def saw(self, term: Term) -> None:
        """This candidate leads; tell whoever wants to know of new leaders."""
        self._see(term.holder, term.epoch)

    def _see(self, holder: str, epoch: int) -> None:
        if epoch > self._seen and holder:
            self._seen = epoch
            notify(f"on_new_leader of {self.name}", self.on_new_leader, holder, epoch)

    async def try_acquire(self) -> Term | None:
        """Take the lease if it is free and begin a term; None if another has it.

        1. Acquire the lease, under an id of our own: asking again does no harm.
        2. Raise the epoch in its record under the lease, above all that is known.
        3. Record the epoch outside the lease. If it, or a higher one, was used before, somebody put an older record back:
           4. outlast the leader that may act under the newer one, and go on at 2 above the highest.
        5. Only then the term begins, and counts from when its newest request for the lease was *sent*.

        If storage fails in between the lease may be ours without a term: calling again completes it. Cancelled, it gives
        the lease back first. Takes a lease longer if the record turns out to have gone back: see `_outlast`.
        """
        if not self._maybe_ours:
            self.config = self._fitting()
        sent, now = self._clock.monotonic(), self._clock.time() + self.offset.correction
        self._maybe_ours = True
        try:
            # Not cut short: a request that was given up may be carried out all the same, after we gave the lease back.
            await uninterrupted(self._take)  # 1
            begun = await self._begin(sent, now)
        except (LeaseHeld, LeaseNotHeld, PreconditionFailed):
            self._maybe_ours = False
            return None
        except asyncio.CancelledError:
            await uninterrupted(self.give_up)
            raise
        self._maybe_ours = False
        self._lease_id = str(uuid.uuid4())
        return begun if begun.held else None

    async def give_up(self) -> None:
        """Free the lease if a try that did not come to an end has left it with us. Never raises for storage."""
        if not self._maybe_ours:
            return
        until = self._clock.monotonic() + 2 * self.config.request_seconds
        with suppress(StorageError):
            await self._retry_until(until, lambda: self._store.release(self._lease_id))
            await self._bus().publish(Hint(topic=self._topic, origin=self.identity))
        self._maybe_ours, self._lease_id = False, str(uuid.uuid4())

    @property
    def is_in_doubt(self) -> bool:
        """Whether the lease may be ours without a term, because a request failed on the way; trying again completes it."""
        return self._maybe_ours

    def _fitting(self) -> LeaseConfig:
        return self._given or (WITH_PUSH if reaches_others(self._bus()) else WITHOUT_PUSH)

    async def _take(self) -> None:
        await self._ask(lambda: self._store.acquire(self._lease_id, self.config.lease_seconds))

    async def _begin(self, sent: float, now: float) -> Term:
        """Steps 2 to 5 of `try_acquire`."""
        highest, nonce = 0, uuid.uuid4().hex
        while True:
            deadline = sent + self.config.term_seconds
            written, etag = await self._raise_epoch(now, deadline, highest, nonce)  # 2
            record = EpochRecord(self.name, written.epoch, self.identity, now, nonce)
            used = await self._claim(record, deadline)  # 3
            if not used:
                break
            _log.error(
                "The record of %s went back: epoch %s was used before, the highest is %s",
                self.name,
                written.epoch,
                used,
                extra={"action": "lead", "resource": self.name, "epoch": used},
            )
            highest, nonce = used, uuid.uuid4().hex
            sent, now = await self._outlast()  # 4
        return Term(  # 5
            self.name,
            holder=self.identity,
            epoch=written.epoch,
            lease_id=self._lease_id,
            since=now,
            asked_at=sent,
            deadline=deadline,
            clock=self._clock,
            etag=etag,
        )

    async def _claim(self, record: EpochRecord, deadline: float) -> int:
        epochs = self._epochs
        return 0 if epochs is None else await self._retry_until(deadline, lambda: epochs.claim(record))

    async def _outlast(self) -> tuple[float, float]:
        """Hold the lease until any other term is over; returns when the newest renewal was sent, in both clocks.

        A lease that was deleted or broken is noticed by its leader at its next renewal, and by the clock before it ends.
        Its leader may have other times than this candidate.
        """
        left = max(self.config.lease_seconds, WITHOUT_PUSH.lease_seconds, self._leaders_lease)
        while left > 0:
            pause = min(left, self.config.renew_seconds)
            left -= pause
            await self._clock.sleep(pause)
            sent, now = self._clock.monotonic(), self._clock.time() + self.offset.correction
            await self._retry_until(
                sent + self.config.margin_seconds, lambda: self._store.renew(self._lease_id)
            )
        return sent, now

    async def _raise_epoch(
        self, now: float, deadline: float, highest: int, nonce: str
    ) -> tuple[LeaderInfo, str]:
        """Write our record under the lease; returns it with its ETag."""
        known, self._known = self._known, None
        while True:
            if known is None:
                known = await self._retry_until(deadline, self._store.read)
                if known.nonce == nonce:
                    return known, known.etag  # our own write; its answer was lost
            if known.problem and self._epochs is None:
                raise LeaseCorrupt(
                    f"{self.name}: {known.problem}; set the metadata `epoch` of its blob to a number above every epoch "
                    "that was used",
                    name=self.name,
                )
            wanted = LeaderInfo(
                self.name,
                self.identity,
                max(known.epoch, highest) + 1,
                now,
                nonce=nonce,
                lease_seconds=self.config.lease_seconds,
                renew_seconds=self.config.renew_seconds,
            )
            write = partial(self._store.write, wanted, lease_id=self._lease_id, etag=known.etag)
            try:
                return wanted, await self._retry_until(deadline, write)
            except PreconditionFailed:
                known = None  # what the last look showed is old, or our own write's answer was lost

    async def acquire(self, timeout: float | None = None) -> Term | None:
        """Wait for the lease; None after `timeout` seconds. A cancelled caller keeps nothing.

        Checks whenever the lease can have ended: one request each `renew_seconds` of its leader. While renewals are heard
        over the bus, one a minute. An unreachable or busy store is waited for; every other storage error is raised.
        """
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        loop, wake = asyncio.get_running_loop(), asyncio.Event()

        def freed(hint: Hint) -> None:
            with suppress(RuntimeError):  # the loop ended while the hint was on its way
                if hint.topic != RESYNC:
                    loop.call_soon_threadsafe(wake.set)

        def renewed(hint: Hint) -> None:
            with suppress(RuntimeError):
                if hint.topic != RESYNC:
                    loop.call_soon_threadsafe(self._heard_renewal, hint)

        unsubscribe = [
            self._bus().subscribe(self._topic, freed),
            self._bus().subscribe(self._renewals, renewed),
        ]
        self._renewed_at, hinted = float("-inf"), False
        try:
            while True:
                pause = self.config.retry_seconds * self._rng.uniform(0.5, 1.0)
                try:
                    heard_pause = 0.0 if hinted or self._maybe_ours else self._until_unheard()
                    # After a hint the lease is free, or has been changed to the id that was nominated.
                    info = (
                        None if hinted or self._maybe_ours or heard_pause else await self._held_by_another()
                    )
                    if heard_pause:
                        pause = heard_pause
                    elif info is None and (term := await self.try_acquire()):
                        return term
                    elif info is not None:
                        await self._ask_to_be_next(info)
                        pause = self._until_unheard() or self._until_it_may_expire(info)
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
            for end in unsubscribe:
                end()
            if self._maybe_ours:
                await uninterrupted(self.give_up)

    def _heard_renewal(self, hint: Hint) -> None:
        self._renewed_at = self._clock.monotonic()
        self._see(hint.origin, hint.epoch)

    def _until_unheard(self) -> float:
        """How long the leader's newest announced renewal is valid; 0 if none was announced, or if a check is due all the same."""
        if not self._bus().is_connected:
            return 0.0
        now, lease = self._clock.monotonic(), self._leaders_lease or self.config.lease_seconds
        left = min(self._renewed_at + lease + self._lag, self._looked_at + self._look_anyway) - now
        return max(0.0, left) if left > 0.01 else 0.0

    async def _held_by_another(self) -> LeaderInfo | None:
        try:
            info = await self.read()
        except NotFound:
            return None
        return info if info.is_held else None

    async def _ask_to_be_next(self, info: LeaderInfo) -> None:
        """Once for each leader, and only while a hint could tell us in time that we were chosen."""
        if self._bus().is_connected and self._nominated != (self._lease_id, info.epoch):
            await self._ask(lambda: self._store.nominate(Successor(self.identity, self._lease_id)))
            self._nominated = (self._lease_id, info.epoch)

    def _until_it_may_expire(self, info: LeaderInfo) -> float:
        now = self._clock.time() + self.offset.correction
        return self.config.next_check(
            info.since,
            now,
            self._lag,
            lease_seconds=info.lease_seconds,
            renew_seconds=info.renew_seconds,
        )

    # --- keeping it ---------------------------------------------------------------------------------------------

    async def keep(
        self,
        term: Term,
        *,
        refuse: Callable[[], Awaitable[str]] | None = None,
        renewed: Callable[[], None] | None = None,
    ) -> str:
        """Renew until the term cannot be kept; returns why.

        `refuse` is asked between renewals; whatever it answers but "" is a reason to stop. `renewed` is called
        after each renewal that was confirmed in time.
        """
        config, clock = self.config, self._clock
        due, failures, trouble = term.asked_at + config.renew_seconds, 0, ""
        # Half way, so that a slow answer is there before the next renewal is due.
        first_check = config.health_seconds / 2 if refuse is not None else float("inf")
        check = term.asked_at + first_check
        loop, wake, hinted_at = asyncio.get_running_loop(), asyncio.Event(), float("-inf")

        def taken(hint: Hint) -> None:
            with suppress(RuntimeError):  # the loop ended while the hint was on its way
                if hint.topic != RESYNC and hint.epoch > term.epoch:
                    loop.call_soon_threadsafe(wake.set)

        unsubscribe = self._bus().subscribe(self._topic, taken)
        try:
            await self._notify_standbys(term)
            while True:
                now = clock.monotonic()
                wait = min(due - now, check - now, term.remaining_seconds)
                if wait > 0 and await clock.wait(wake, wait):
                    # Somebody says that the lease was broken: ask storage, at most once a second.
                    wake.clear()
                    due = min(due, max(clock.monotonic(), hinted_at + 1.0))
                    hinted_at = due
                if not term.has_lease:
                    return trouble or "its lease could not be renewed in time"
                if refuse is not None and clock.monotonic() >= check - _TICK:
                    check = clock.monotonic() + config.health_seconds
                    try:
                        at_most = min(term.remaining_seconds, config.health_seconds / 2)
                        if reason := await self._ask(refuse, at_most=at_most):
                            return reason
                    except StorageUnreachable:
                        return "its health check gave no answer in time"
                if clock.monotonic() < due - _TICK:
                    continue
                try:
                    asked = await self._renew(term)
                except (LeaseNotHeld, LeaseHeld, NotFound) as error:
                    return f"the lease was taken away ({error})"
                except StorageError as error:
                    trouble = f"its lease could not be renewed in time ({error})"
                    due = clock.monotonic() + self._retry.delay(failures, self._rng)
                    failures += 1
                    continue
                if not term.extend(asked + config.term_seconds):
                    return "its lease was renewed too late"
                check = asked + first_check
                if renewed is not None:
                    renewed()
                await self._notify_standbys(term)
                # Back in step with `since`: that is when standbys look.
                failures, since = 0, clock.monotonic() - term.asked_at
                due = term.asked_at + config.renew_seconds * ((since / config.renew_seconds + 0.1) // 1 + 1)
        finally:
            unsubscribe()

    async def _renew(self, term: Term) -> float:
        """Renew the lease; returns when the request that was confirmed was sent.

        One that is long without an answer is sent again beside it: whichever is answered first counts. So neither a lost
        request nor a slow service costs the time that is left for the renewal.
        """
        answered, sent = asyncio.Event(), dict[asyncio.Task[None], float]()

        def send() -> None:
            renew = self._ask(lambda: self._store.renew(term.lease_id), at_most=term.remaining_seconds)
            request = asyncio.create_task(renew, name=f"renewal {self.name}")
            request.add_done_callback(lambda _: answered.set())
            sent[request] = self._clock.monotonic()

        send()
        try:
            if not await self._clock.wait(answered, self.config.resend_seconds):
                send()
            while True:
                await answered.wait()
                answered.clear()
                for request in [request for request in sent if request.done()]:
                    at = sent.pop(request)
                    try:
                        request.result()
                    except TRANSIENT:
                        if not sent:
                            raise
                    else:
                        return at
        finally:
            for request in sent:
                request.cancel()
            await asyncio.gather(*sent, return_exceptions=True)

    async def _notify_standbys(self, term: Term) -> None:
        """Those who hear it need not look for a while."""
        bus = self._bus()
        if bus.is_connected:
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await bus.publish(Hint(topic=self._renewals, epoch=term.epoch, origin=self.identity))

    # --- giving it back -----------------------------------------------------------------------------------------

    async def release(self, term: Term) -> None:
        """Free the lease if the term still has it, and tell the others. Never raises for storage: it runs out anyway."""
        until = self._clock.monotonic() + term.remaining_seconds + self.config.margin_seconds
        # Before the request: another may lead from the moment it is carried out, long before its answer arrives.
        term.end("it was given back")
        with suppress(StorageError):
            await self._retry_until(until, lambda: self._store.release(term.lease_id))
        await self._bus().publish(Hint(topic=self._topic, epoch=term.epoch, origin=self.identity))

    async def find_nominee(self) -> Successor | None:
        """The standby that asked to be next; None if nobody else did, or if it cannot be found out."""
        try:
            nominee = await self._ask(self._store.nominee)
        except StorageError:
            return None
        return None if nominee is None or nominee.identity == self.identity else nominee

    async def hand_over(self, term: Term, nominee: Successor | None) -> str:
        """Give the lease to that standby, with no moment between; returns who leads then, "" if nobody does.

        1. End the own term: from here on nothing acts under it.
        2. Change the lease to the id that the standby made for itself, and notify it.
        3. Look whether it has begun its term, for `LeaseConfig.hand_over_seconds` (a lease / 7.5): the record then differs.
        4. If it has not, it is dead: free the lease, on condition that the record is as it was, and notify everybody.

        Never raises for storage: what cannot be handed over is freed, or expires.
        """
        if nominee is None or not term.has_lease:
            return await self._released(term)
        try:
            term.end(f"it was handed over to {nominee.identity}")  # 1
            await self._ask(lambda: self._store.change(term.lease_id, nominee.lease_id))  # 2
            await self._bus().publish(Hint(topic=self._topic, epoch=term.epoch, origin=self.identity))
            started = self._clock.monotonic()
            for moment in (0.1, 0.3, 0.8, 1.0):
                await self._clock.sleep(
                    started + moment * self.config.hand_over_seconds - self._clock.monotonic()
                )
                if (await self.read()).etag != term.etag:  # 3
                    return nominee.identity
            await self._ask(lambda: self._store.release(nominee.lease_id, etag=term.etag))  # 4
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
