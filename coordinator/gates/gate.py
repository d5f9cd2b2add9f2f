"""The gate: a flag for state and a bus for speed.

A release, from `open` to the receipt:

1. `Gate.open` computes the next state, with a new epoch, from the state that this process knows; without one it reads first.
2. One conditional write stores it. After a rival's write or a lost answer the gate is read again: the nonce shows whether the
   change was stored; if it was not, back to 1.
3. A notification with the new state, as storage confirmed it, goes to the bus.
4. The epoch is recorded outside the blob. If it was used before, the blob had gone back: write a higher one, back to 3.
5. A worker in `Gate.wait` is woken by the notification, by its next poll, or by the time of the opening.
6. It takes the state that a notification brings, if its epoch is higher than every known one. Otherwise it reads the gate:
   only the answer to a request that was sent after `wait` was called counts.
7. It passes if the state admits it: open, and its place below the share. Otherwise back to 5.
8. It reports the pass to `on_pass`, once for each epoch.
9. Within `verify_seconds`, at a moment of its own, it reads the gate. If storage does not have what was pushed, the push was
   false: it follows storage, and reports it.

The numbers are repeated at the lines that do it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from coordinator.backoff import TRANSIENT, Backoff
from coordinator.blocking import Portal, call_blocking
from coordinator.bounds import one_line
from coordinator.clock import SYSTEM_CLOCK, Clock, ClockOffset, HeldTime, call_later
from coordinator.epochs import COUNTED, EpochLog, EpochRecord
from coordinator.errors import (
    AlreadyExists,
    ConfigurationError,
    GateContended,
    GateCorrupt,
    GateTimeout,
    KennelError,
    PreconditionFailed,
    StorageError,
)
from coordinator.gates import state as rules
from coordinator.gates.state import REMEMBERED, GateConfig, GateState, Release, When, next_epoch, raised
from coordinator.realtime.bus import RESYNC, Bus, Notification
from coordinator.realtime.protocol import GateStatus

__all__ = ["Gate", "GateConfig", "Release"]

Transition = Callable[[GateState, float, str], GateState]

_log = logging.getLogger("coordinator.gates")
BACKOFF = Backoff()
_CONTENDED = (PreconditionFailed, AlreadyExists)
AFTERWARDS_SECONDS = 0.25
"""What follows a pass waits so long: of many gates in one process all let their workers pass first."""
NO_READS_SECONDS = 1.5
"""After a push nobody reads for so long."""


@dataclass(frozen=True)
class Answer:
    """One answer of the store. `state` is None if nothing changed since the ETag that was sent.

    `etag` is "" for a gate that does not exist yet; its state is closed, epoch 0. `date` is the service's clock in
    seconds since 1970, None if it does not tell.
    """

    state: GateState | None
    etag: str
    date: float | None = None


class GateStore(Protocol):
    """Keeps one gate, with a version that changes with every write."""

    @property
    def name(self) -> str: ...

    async def read(self, etag: str) -> Answer:
        """The gate, or the news that it is still the one of that ETag ("" asks for the gate itself)."""

    async def write(self, state: GateState, etag: str) -> str:
        """Replace the gate of that ETag ("" creates it) and return the new ETag.

        Raises `PreconditionFailed` if somebody wrote in between; then nothing changed.
        """


class GateCache:
    """The newest state that storage returned, and when.

    Guarantees that an answer that was overtaken on its way never replaces a newer one, and that `change` is done once
    however often its answer is lost. `confirmed` is the number of the newest request that was answered: a caller that needs
    the truth as of now waits until it reaches `sends` + 1. `failed` is that of the newest that ended in `error`.

    `unverified` has the states that came by push and that no read has confirmed yet, each with the number of the newest request
    that was sent before it. `disproved` counts the pushes that storage
    did not confirm; `disproof` says what the newest of them was, until the gate changes.

    `highest` is the highest epoch that storage ever said here, of those that counting reaches (`COUNTED`). A gate below it
    was deleted, restored or overwritten: `state` shows it as it is, `went_back` says so, and the next change goes above
    `highest` and above every epoch in `epochs`, where each change is recorded after it was made.
    """

    def __init__(self, store: GateStore, clock: Clock, epochs: EpochLog | None = None) -> None:
        self.name = store.name
        self.state: GateState | None = None
        self.highest = 0
        self._epochs = epochs
        self._held = HeldTime(clock)
        self.source = "poll"
        self.offset = ClockOffset()
        self.error: KennelError | None = None
        self.sends = 0
        self.confirmed = 0
        self.failed = 0
        self.pushes = 0
        self.unverified: list[tuple[int, GateState]] = []
        self.disproved = 0
        self.disproof = ""
        self._store = store
        self._clock = clock
        self._etag = ""
        self._applied = 0
        self._stored: GateState | None = None
        self._events: set[asyncio.Event] = set()

    @property
    def went_back(self) -> bool:
        """Whether storage has an older epoch than it once said."""
        return self.state is not None and self.state.epoch < self.highest

    def now(self) -> float:
        """Seconds since 1970, by this machine's clock as corrected by the storage service's.

        Counted by the monotonic clock between two answers: a wall clock that is set does not move it.
        """
        return self._held.now()

    async def refresh(self, source: str, *, whole: bool = False) -> Answer:
        """Ask storage once. `whole` asks for the state even if it has not changed."""
        self.sends += 1
        number, sent, asked = self.sends, self._clock.time(), self._clock.monotonic()
        answer = await self._store.read("" if whole else self._etag)
        if answer.date is not None:
            self.offset = self.offset.observed(sent=sent, received=self._clock.time(), date=answer.date)
            self._held.observed(asked, answer.date)
        if answer.state is not None:
            self._apply(number, answer.state, answer.etag, source)
        self._verify(number, answer.state or self._stored)
        self.confirmed = max(self.confirmed, number)
        self.error = None
        self.notify()
        return answer

    async def try_refresh(self, source: str) -> KennelError | None:
        """`refresh`, but an error is kept in `error` for those who wait; returns it if it is news."""
        number = self.sends + 1
        try:
            await self.refresh(source)
        except KennelError as error:
            self.failed = number
            news = None if type(error) is type(self.error) else error
            self.error = error
            self.notify()
            return news
        return None

    def _apply(self, number: int, state: GateState, etag: str, source: str) -> None:
        # A lower epoch is believed only if it was asked for after the higher one had come: then the gate was removed
        # and created again. Otherwise the answer was overtaken on its way.
        if self.state is not None and state.epoch <= self.state.epoch and number <= self._applied:
            return
        if etag != self._etag or self.state is None:
            if self.state is None or state.epoch != self.state.epoch:
                self.source = source
            self.state, self._stored, self._etag = state, state, etag
            self._applied, self.disproof = self.sends, ""
            self._seen(state.epoch)
            if self.went_back:
                _log.error(
                    "Gate %s went back from epoch %s to %s: it was deleted, restored or overwritten",
                    self.name,
                    self.highest,
                    state.epoch,
                    extra={"action": "read", "resource": self.name, "epoch": state.epoch},
                )

    def take_push(self, pushed: GateState) -> bool:
        """Take a state that storage is said to have confirmed, if it is newer than all that is known.

        False if it cannot be taken on its word: too many others are not verified yet, or its nonce is that of another state.
        """  # 6
        if pushed.epoch <= max(self.highest, self.state.epoch if self.state else 0):
            return True
        used = self.state.recent if self.state else ()
        if len(self.unverified) >= REMEMBERED or (pushed.recent and pushed.recent[0] in used):
            return False
        self.unverified.append((self.sends, pushed))
        self.state = pushed
        self.source, self.error = "push", None
        self._applied = self.sends
        self.pushes += 1
        self.notify()
        return True

    def _verify(self, number: int, stored: GateState | None) -> None:
        """Compare what was pushed with what storage said in the answer to that request."""  # 9
        if stored is None:
            return
        for pushed_after, pushed in list(self.unverified):
            if number <= pushed_after and stored.epoch < pushed.epoch:
                continue  # the request may have been answered before the change was stored
            self.unverified.remove((pushed_after, pushed))
            since = stored.epoch - pushed.epoch
            if (
                stored == pushed
                or since >= REMEMBERED
                or (since > 0 and {*pushed.recent[:1]} & {*stored.recent})
            ):
                continue
            if self.state == pushed:
                self.state = stored
            self.disproved += 1
            self.disproof = (
                f"a push said epoch {pushed.epoch}, {pushed.state}, which storage does not have: the hub pushed what was not "
                "stored, or the gate was restored since"
            )
            _log.error(
                "Gate %s: %s",
                self.name,
                self.disproof,
                extra={"action": "verify", "resource": self.name, "epoch": pushed.epoch},
            )

    def _seen(self, epoch: int) -> None:
        if epoch <= COUNTED:
            self.highest = max(self.highest, epoch)

    async def change(
        self,
        transition: Transition,
        *,
        deadline_seconds: float,
        repair: Transition | None = None,
        publish: Callable[[GateState], Awaitable[None]] | None = None,
        above: int = 0,
    ) -> GateState:
        """Apply `transition(state, now, nonce)` to the stored state, once, against all rivals; returns what is stored.

        Steps 1 to 4 of a release.

        The known state of the gate is taken for the stored one until a write shows that it is not: one request if it
        is. Nothing but a write is decided by it, no refusal and no "so it is already". `repair` makes a gate of a blob
        that does not hold one. `publish` is called with what was stored, before its epoch is recorded. The change gets an epoch above `above`.
        """
        self._seen(above)
        nonce = uuid.uuid4().hex
        deadline = self._clock.monotonic() + deadline_seconds
        state = await self._change(transition, repair, nonce, deadline)
        while True:
            if publish is not None:
                await publish(state)  # 3
            higher = await self._record(state)  # 4
            if not higher:
                return state
            # The blob had gone back, and this epoch was used before: those who remember it would not act on it.
            self._seen(higher)
            state = await self._change(_again(state), None, uuid.uuid4().hex, deadline)

    async def _record(self, state: GateState) -> int:
        """Keep the epoch outside the blob; the highest one there if this one was used before, else 0."""
        if self._epochs is None or not 0 < state.epoch <= COUNTED:
            return 0
        nonce = state.recent[0] if state.recent else ""
        try:
            used = await self._epochs.claim(
                EpochRecord(self.name, state.epoch, state.by, state.changed_at, nonce)
            )
            return used if used <= COUNTED else 0
        except StorageError as error:
            # The change itself is stored and known. The next one records a higher epoch.
            _log.warning(
                "Epoch %s of gate %s is not recorded: %s",
                state.epoch,
                self.name,
                error,
                extra={"action": "record", "resource": self.name, "epoch": state.epoch},
            )
            return 0

    async def _change(
        self, transition: Transition, repair: Transition | None, nonce: str, deadline: float
    ) -> GateState:
        attempt, sent = 0, False
        while True:
            try:
                desired, etag = self._from_known(transition, nonce) if attempt == 0 else None, self._etag  # 1
                if desired is None:
                    try:
                        answer = await self.refresh("poll", whole=True)
                    except GateCorrupt as damage:
                        if repair is None:
                            raise
                        remains = GateState(name=self.name, epoch=damage.epoch)
                        desired, etag = repair(remains, self.now(), nonce), damage.etag
                    else:
                        current, etag = answer.state, answer.etag
                        assert current is not None
                        # Our write may have won and lost its answer, and others may have written since: then it is done.
                        if sent and nonce in current.recent:  # 2
                            return current
                        desired = transition(current, self.now(), nonce)  # 1
                        if desired is current and current.epoch < self.highest:
                            desired = _again(current)(current, self.now(), nonce)
                        if desired is current:
                            return current
                desired = raised(desired, self.highest)
                sent = True
                self.sends += 1
                number = self.sends
                written = await self._store.write(desired, etag)  # 2
                self._apply(number, desired, written, "poll")
                self.error = None
                self.notify()
                return desired
            except (*_CONTENDED, *TRANSIENT) as error:
                pause = BACKOFF.delay(attempt)
                if attempt == 0 and isinstance(error, _CONTENDED):
                    pause = 0.0  # what we knew was old: ask before anybody is suspected of a race
                if self._clock.monotonic() + pause >= deadline:
                    if isinstance(error, _CONTENDED):
                        raise GateContended(
                            f"gate {self.name}: others changed it at each of {attempt + 1} attempts"
                        ) from error
                    raise
            attempt += 1
            await self._clock.sleep(pause)

    def _from_known(self, transition: Transition, nonce: str) -> GateState | None:
        """The change of the gate as it is known; None if only storage can say what becomes of it."""
        if self.state is None or self.unverified:
            return None
        try:
            desired = transition(self.state, self.now(), nonce)
        except KennelError:
            return None
        return None if desired is self.state else desired

    @asynccontextmanager
    async def notified(self) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever something here changed."""
        event = self.add_event()
        try:
            yield event
        finally:
            self.remove_event(event)

    def add_event(self) -> asyncio.Event:
        """As `notified`, until `remove_event`."""
        event = asyncio.Event()
        self._events.add(event)
        return event

    def remove_event(self, event: asyncio.Event) -> None:
        """Set it no more."""
        self._events.discard(event)

    def notify(self) -> None:
        for event in self._events:
            event.set()


def _again(state: GateState) -> Transition:
    """The same change once more, unless somebody else changed the gate since."""

    def transition(current: GateState, now: float, nonce: str) -> GateState:
        if not current.epoch or current.epoch != state.epoch or current.recent != state.recent:
            return current
        return msgspec.structs.replace(
            current, epoch=next_epoch(current.epoch), recent=(nonce, *current.recent)[:REMEMBERED]
        )

    return transition


class Gate:
    """Holds workers until an operator lets them go.

    Guarantees that `wait` returns only if this worker may pass: by an answer of storage to a request sent after `wait` was
    called, or by a push, received meanwhile, of a state that storage had confirmed to its writer, with a higher epoch than
    any known one. For an opening at a set time the state is at most a few seconds old. Each push is compared with storage
    within `verify_seconds`; where they differ the gate follows storage, and `status`, log and metrics report it. With
    `GateConfig(trust_push=False)` no push opens a gate, it only causes a read. Nobody waits longer than one poll interval
    after an opening while storage answers, whether or not notifications arrive. A change that was confirmed is never
    overwritten by an older one.

    Does not guarantee that nobody is inside a gate when `close` returns: workers learn of it by push, or at their
    next poll; `passing` and the receipts show who still is. Nor that nobody passes on the word of a hub or a Redis that
    somebody else controls: the push is believed until it is compared.

    Costs while waiting: with push at most 60 requests an hour, in a fleet of ten thousand at most 12; without about 1,600.

    Args:
        store: Where the gate is stored; `Storage.gate` gives one in the account, `coordinator.testing` one in memory.
        identity: The process that waits. It decides which openings for a share let it pass.
        bus: Notifies of changes.
        clock: The clock, for tests.
        config: How often storage is read, see `GateConfig`.
        rng: The source of jitter, for tests.
        portal: For the blocking methods.
        epochs: Where the highest epoch is recorded beside the gate.
        group: Gates of one group and name compare a push with storage at the same moment (default: `identity`).
        keep: Called with each background task, to cancel it when the storage is closed.

    Raises:
        StorageError: Storage refused, or (`read`, `open`, `close`) stayed unreachable; also raised by each method.

    Examples:
        >>> gate = storage.gate("start-order-processing")
        >>> release = await gate.wait()
    """

    def __init__(
        self,
        store: GateStore,
        *,
        identity: str,
        bus: Callable[[], Bus],
        clock: Clock = SYSTEM_CLOCK,
        config: GateConfig | None = None,
        rng: random.Random | None = None,
        portal: Portal | None = None,
        epochs: EpochLog | None = None,
        group: str = "",
        keep: Callable[[asyncio.Task[None]], object] | None = None,
    ) -> None:
        self.name = store.name
        self.identity = identity
        self._group = group or identity
        self._keep = keep or (lambda _: None)
        self._verifier: asyncio.Task[None] | None = None
        self._verifying = 0
        self.config = config or GateConfig()
        self.on_pass: Callable[[Release], None] | None = None
        self.waiting = 0
        self.inside = 0
        self.passed_epoch = 0
        self._store = store
        self._cache = GateCache(store, clock, epochs)
        self._epochs = epochs
        self._bus = bus
        self._clock = clock
        self._portal = portal
        self._thread_gate: Gate | None = None
        self._thread_gate_pid = 0
        self._lock = threading.Lock()
        self._rng = rng or random.Random()
        self._confirm_seconds = self.config.confirm_seconds * self._rng.uniform(0.5, 1.0)
        self._watchers = 0
        self._follower: asyncio.Task[None] | None = None
        self._ending: list[asyncio.Task[None]] = []
        self._settling: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._hinted = False
        self._hint = Notification(topic="")
        self._resync = False
        self._looked_at = 0.0

    # --- looking ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> GateState | None:
        """The newest state that storage returned; None before the first answer."""
        return self._cache.state

    @property
    def offset(self) -> ClockOffset:
        """How far this machine's clock is from the storage service's."""
        return self._cache.offset

    @property
    def error(self) -> KennelError | None:
        """Why the newest read failed; None if it did not."""
        return self._cache.error

    def now(self) -> float:
        """Seconds since 1970, by this machine's clock as corrected by the storage service's."""
        return self._cache.now()

    def is_open(self) -> bool:
        """Whether this worker may go on, as far as it knows: False until the first answer.

        As fresh as the newest read; inside `watch()` it follows the gate.
        """
        return (
            self.state is not None
            and not self._cache.went_back
            and not isinstance(self.error, GateCorrupt)
            and rules.admits(self.state, self.identity, self.now())
        )

    @property
    def problem(self) -> str:
        """What is wrong with the gate as stored, and the cure; "" if nothing is known to be."""
        state = self.state
        if state is not None and self._cache.went_back:
            return (
                f"storage has epoch {state.epoch}, this process has seen {self._cache.highest}: the gate was deleted, "
                "restored or overwritten; open or close it again"
            )
        return str(self.error) if isinstance(self.error, GateCorrupt) else self._cache.disproof

    async def read(self) -> GateState:
        """The gate as stored now; one request.

        Returns:
            Its state.

        Raises:
            GateCorrupt: The blob does not hold a gate.
        """
        await self._cache.refresh("poll")
        assert self.state is not None
        return self.state

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Gate]:
        """Keep `state` and `is_open` following the gate while the block runs, for work that must notice a close."""
        self._begin_watching()
        try:
            yield self
        finally:
            self._end_watching()

    def _begin_watching(self) -> None:
        self._watchers += 1
        if self._follower is None:
            self._wake = asyncio.Event()
            self._follower = asyncio.create_task(self._follow(self._wake), name=f"gate {self.name}")
            self._follower.add_done_callback(lambda _: self._cache.notify())

    def _end_watching(self) -> None:
        self._watchers -= 1
        if self._watchers == 0 and self._follower is not None:
            # Not ended at once: a task that passes with a thousand others must not wait for that.
            self._keep(self._follower)
            self._ending.append(self._follower)
            self._follower = None
            self._settle_later()

    def _settle_later(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # none runs any more
            return
        if self._settling is not loop:  # of a loop that has ended nothing comes any more
            self._settling = loop
            call_later(self._clock, AFTERWARDS_SECONDS, self._settle)

    def _settle(self) -> None:
        """Begin to verify what was pushed, and end the following that nobody needs. Not after the storage was closed."""
        self._settling = None
        following, self._ending = [*self._ending, *filter(None, (self._follower,))], []
        is_alive = any(not follower.done() for follower in following)
        if is_alive and self._cache.unverified:
            self._begin_verifying()
        for follower in following:
            if follower is not self._follower:
                with suppress(RuntimeError):  # its loop has ended
                    follower.cancel()

    def _begin_verifying(self) -> None:
        if self._verifier is not None and not self._verifier.done():
            if self._verifying in {0, *(pushed.epoch for _, pushed in self._cache.unverified)}:
                return
            # It waits for the moment of a push that another read has verified. This one has a moment of its own.
            with suppress(RuntimeError):  # its loop has ended
                self._verifier.cancel()
        self._verifier = asyncio.create_task(self._verify(), name=f"verify gate {self.name}")
        self._keep(self._verifier)

    def status(self) -> GateStatus:
        """For telemetry; no I/O. Threads that wait in `wait_blocking` count, too."""
        thread_gate = self._thread_gate
        shown = self if thread_gate is None or self.state is not None else thread_gate
        state = shown.state
        return GateStatus(
            name=self.name,
            state=rules.phase(state, shown.now()) if state else "unknown",
            epoch=state.epoch if state else 0,
            waiting=self.waiting + (thread_gate.waiting if thread_gate else 0) > 0,
            passed_epoch=self.passed_epoch,
            inside=self.inside,
            offset_seconds=round(shown.offset.correction, 3) if shown.offset.is_known else None,
            problem=one_line(shown.problem),
            disproved=shown._cache.disproved,
        )

    # --- passing ------------------------------------------------------------------------------------------------

    async def wait(self, timeout: float | None = None) -> Release:
        """Return as soon as this worker may pass; at once if the gate is open.

        An unreachable or busy store is waited for.

        Args:
            timeout: Seconds to wait (default None: no limit).

        Returns:
            The pass: its epoch, what let the worker through, and the delay.

        Raises:
            GateTimeout: The gate did not open within `timeout`.
            GateCorrupt: The blob does not hold a gate.
            StorageError: Storage refused, for example the credential.

        Examples:
            >>> release = await gate.wait(timeout=60)
        """
        if timeout is not None and not timeout >= 0:
            raise ConfigurationError(
                f"gate {self.name}: timeout must be seconds from 0, or None; got {timeout!r}"
            )
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        event = self._cache.add_event()
        self._begin_watching()
        # Only the answer to a request sent from here on counts, not one that was on its way already.
        needed, pushes = self._cache.sends + 1, self._cache.pushes
        known: int | None = None
        self._wake.set()
        self.waiting += 1
        try:
            while True:
                self._raise_what_waiting_cannot_cure(needed)
                informed = self._cache.confirmed >= needed or self._cache.pushes > pushes
                if informed and self.state is not None:  # 6
                    if self.is_open():  # 7
                        return self._pass(known)
                    if known is None:
                        _log.info(
                            "Waiting at gate %s",
                            self.name,
                            extra={"action": "wait", "resource": self.name, "epoch": self.state.epoch},
                        )
                    known = self.state.epoch
                pause = self._until_next_moment()
                if deadline is not None:
                    left = deadline - self._clock.monotonic()
                    if left <= 0:
                        raise GateTimeout(f"gate {self.name} did not open within {timeout:g} s")
                    pause = min(pause, left)
                event.clear()
                await self._clock.wait(event, pause)  # 5
        finally:
            self.waiting -= 1
            self._end_watching()
            self._cache.remove_event(event)

    def wait_blocking(self, timeout: float | None = None) -> Release:
        """`wait` for threads, over one event loop that all threads of this storage share.

        Args:
            timeout: As for `wait`.

        Returns:
            As for `wait`.

        Raises:
            KennelError: The thread runs an event loop; use `await gate.wait()`. Otherwise as for `wait`.
        """
        return call_blocking(
            self._portal,
            f"gate {self.name}: wait_blocking",
            "await gate.wait()",
            self._on_portal().wait,
            timeout,
        )

    def open_blocking(
        self,
        *,
        by: str,
        reason: str = "",
        at: When | None = None,
        share: float = 1.0,
        until: When | None = None,
        epoch: int | None = None,
        above: int = 0,
    ) -> GateState:
        """`open` for threads.

        Args:
            by: As for `open`.
            reason: As for `open`.
            at: As for `open`.
            share: As for `open`.
            until: As for `open`.
            epoch: As for `open`.
            above: As for `open`.

        Returns:
            As for `open`.
        """
        thread_gate = self._on_portal()
        call = partial(
            thread_gate.open, by=by, reason=reason, at=at, share=share, until=until, epoch=epoch, above=above
        )
        return call_blocking(self._portal, f"gate {self.name}: open_blocking", "await gate.open()", call)

    def close_blocking(
        self, *, by: str, reason: str = "", epoch: int | None = None, above: int = 0
    ) -> GateState:
        """`close` for threads.

        Args:
            by: As for `close`.
            reason: As for `close`.
            epoch: As for `close`.
            above: As for `close`.

        Returns:
            As for `close`.
        """
        call = partial(self._on_portal().close, by=by, reason=reason, epoch=epoch, above=above)
        return call_blocking(self._portal, f"gate {self.name}: close_blocking", "await gate.close()", call)

    def read_blocking(self) -> GateState:
        """`read` for threads."""
        return call_blocking(
            self._portal, f"gate {self.name}: read_blocking", "await gate.read()", self._on_portal().read
        )

    def _on_portal(self) -> Gate:
        """This gate on the event loop of the blocking calls; what it waits for counts in `status` here."""
        pid = os.getpid()
        with self._lock:
            # A forked child has a portal of its own, and none of the tasks of its parent's.
            if self._thread_gate is None or self._thread_gate_pid != pid:
                self._thread_gate, self._thread_gate_pid = self._clone(), pid
                self._thread_gate.on_pass = self._receipt
            return self._thread_gate

    @asynccontextmanager
    async def passing(self, timeout: float | None = None) -> AsyncIterator[None]:
        """Wait for the gate, then hold a place inside it for work that must finish before a close is complete.

        Inside `watch()` this costs no request while the gate is known to be open.

        Args:
            timeout: As for `wait`.

        Raises:
            GateTimeout: The gate did not open within `timeout`.

        Examples:
            >>> async with gate.passing():
            ...     await ship(order)
        """
        async with self.watch():
            if not (self._watchers > 1 and self.is_open()):
                await self.wait(timeout)
            self.inside += 1
            try:
                yield
            finally:
                self.inside -= 1
                self._cache.notify()

    async def wait_leashed(self, timeout: float | None = None) -> None:
        """Return when the gate is known to be closed to this worker and nothing is `passing` any more.

        Args:
            timeout: Seconds to wait (default None: no limit).

        Raises:
            GateTimeout: That was not so within `timeout`.
        """
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        async with self.watch(), self._cache.notified() as event:
            needed, pushes = self._cache.sends + 1, self._cache.pushes
            self._wake.set()
            while True:
                self._raise_what_waiting_cannot_cure(needed)
                informed = self._cache.confirmed >= needed or self._cache.pushes > pushes
                if informed and not self.is_open() and not self.inside:
                    return
                pause = self._until_next_moment()
                if deadline is not None:
                    pause = min(pause, deadline - self._clock.monotonic())
                    if pause <= 0:
                        raise GateTimeout(f"gate {self.name} still had work inside after {timeout:g} s")
                event.clear()
                await self._clock.wait(event, pause)

    async def changed(self) -> None:
        """Return after the next read of the gate, by any task of this process. For use inside `watch()`."""
        async with self._cache.notified() as event:
            await event.wait()

    def _pass(self, known: int | None) -> Release:
        state = self.state
        assert state is not None
        source = "open" if known is None else "clock" if known == state.epoch else self._cache.source
        passed_at = self.now()
        delay = max(0.0, passed_at - state.opened_at)
        request_id = self._hint.request_id if self._hint.epoch == state.epoch else ""
        release = Release(self.name, state.epoch, source, delay, passed_at, request_id)
        self._receipt(release)
        return release

    def _receipt(self, release: Release) -> None:
        with self._lock:
            first, self.passed_epoch = release.epoch != self.passed_epoch, release.epoch
        if first and self.on_pass is not None:
            self.on_pass(release)  # 8

    def _until_next_moment(self) -> float:
        """Seconds until the clock alone may let somebody through; infinite if it never will."""
        now = self.now()
        moment = rules.next_moment(self.state, now) if self.state else None
        return math.inf if moment is None else moment - now

    def _raise_what_waiting_cannot_cure(self, needed: int) -> None:
        if self.error is not None and self._cache.failed >= needed and not isinstance(self.error, TRANSIENT):
            raise self.error
        if self._follower is not None and self._follower.done() and not self._follower.cancelled():
            self._follower.result()

    # --- following ----------------------------------------------------------------------------------------------

    async def _follow(self, wake: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()

        thread = threading.get_ident()

        def on_notification(hint: Notification) -> None:
            if threading.get_ident() == thread:
                self._on_notification(hint)
                return
            with suppress(RuntimeError):  # the loop ended while the hint was on its way
                loop.call_soon_threadsafe(self._on_notification, hint)

        unsubscribe = self._bus().subscribe(f"gate:{self.name}", on_notification)
        try:
            while True:
                wake.clear()
                if self._resync and not self._hinted:
                    # A cut hub wakes the whole fleet in the same instant: spread its requests.
                    await self._clock.wait(wake, self._rng.uniform(0.0, 0.5))
                self._resync = False
                await self._step()
                await self._clock.wait(wake, self._pause())
        finally:
            unsubscribe()

    def _on_notification(self, hint: Notification) -> None:
        if hint.topic == RESYNC:
            self._resync = True
            if self._confirmed_opening() is not None:
                return
        else:
            self._hint = hint
            if self._takes(hint.state):
                return
            self._hinted = True
        self._wake.set()  # 5

    def _takes(self, stored: str) -> bool:
        """Take the state that a notification brings; False if there is none to take, so that the gate must be read."""
        if not stored or not self.config.trust_push:
            return False
        try:
            pushed = rules.decode(self.name, stored)
        except GateCorrupt:
            return False
        known = self.state
        if known is not None and pushed.epoch == known.epoch and pushed != known:
            return False
        if not self._cache.take_push(pushed):
            return False
        if self._cache.unverified:
            self._settle_later()
        return True

    async def _verify(self) -> None:
        """Read the gate until what was pushed is confirmed or disproved."""  # 9
        while self._cache.unverified:
            epoch = self._cache.unverified[0][1].epoch
            # The gates of one process look at the same moment, and share the read.
            moment = random.Random(f"{self._group} {self.name} {epoch}")
            most = self.config.verify_seconds
            least = min(NO_READS_SECONDS, most / 2)
            self._verifying = epoch
            await self._clock.sleep(moment.uniform(least, max(least, most - AFTERWARDS_SECONDS)))
            self._verifying = 0
            # Another read may have verified it meanwhile: what was pushed since then has a moment of its own.
            if any(pushed.epoch == epoch for _, pushed in self._cache.unverified):
                await self._step()

    async def _step(self) -> None:
        """One look; errors are kept for those who wait."""
        source, self._hinted = "push" if self._hinted else "poll", False
        self._looked_at = self.now()
        if error := await self._cache.try_refresh(source):  # 6
            _log.warning(
                "Gate %s cannot be read: %s",
                self.name,
                error,
                extra={"action": "read", "resource": self.name},
            )

    def _pause(self) -> float:
        bus = self._bus()
        if bus.is_connected and self.error is None:
            safety = getattr(bus, "safety_poll_seconds", 0.0)
            pause = max(self.config.push_poll_seconds, safety) * self._rng.uniform(1.0, 1.1)
        else:
            pause = self.config.poll_seconds * self._rng.uniform(0.8, 1.0)
        if (left := self._confirmed_opening()) is not None:
            return left + self.config.poll_seconds * self._rng.uniform(0.1, 0.5)
        state, now = self.state, self.now()
        if state is not None and state.not_before is not None and rules.phase(state, now) == "armed":
            # A close whose hint was lost must not be found out only after the set time.
            pause = min(pause, max(0.01, state.not_before - self._confirm_seconds - now))
        return pause

    def _confirmed_opening(self) -> float | None:
        """Seconds to a set time that is close and was confirmed; None otherwise.

        Then there is nothing to find out any more: requests of a whole fleet in its last second, because its hub
        died, would only make it pass late.
        """
        state, now = self.state, self.now()
        if state is None or state.not_before is None or self.error is not None:
            return None
        left = state.not_before - now
        close = rules.phase(state, now) == "armed" and left <= self._confirm_seconds
        return left if close and self._looked_at >= state.not_before - self._confirm_seconds - 0.05 else None

    # --- changing -----------------------------------------------------------------------------------------------

    async def open(
        self,
        *,
        by: str,
        reason: str = "",
        at: When | None = None,
        share: float = 1.0,
        until: When | None = None,
        epoch: int | None = None,
        above: int = 0,
    ) -> GateState:
        """Let workers go (unleash). Opening an open gate changes nothing.

        Args:
            by: Who opens it, 1 to 100 characters.
            reason: Why, for people, at most 500 characters.
            at: Open at this time, by each worker's own clock; an aware datetime or seconds since 1970 (default: now).
                More than 60 s ago is refused.
            share: Let only this part of the fleet through, above 0 to 1 (default 1). The same part every time; open again to widen.
            until: Close by itself at this time; as `at` (default: stay open).
            epoch: Only if the gate has this epoch when it is written.
            above: The highest epoch of this gate that the caller has ever seen; the change gets a higher one.

        Returns:
            The gate as stored.

        Raises:
            ConfigurationError: The change is invalid, for example a smaller share of an open gate.
            GateMoved: The gate does not have `epoch`. Nothing changed.
            GateContended: Others changed the gate at each attempt.
            StorageError: The change could not be stored. With `maybe_done` it may be stored all the same: read, or open again.

        Examples:
            >>> await gate.open(by="olga", reason="tickets on sale", share=0.1)
        """
        opens, ends = rules.seconds_of("at", at), rules.seconds_of("until", until)
        return await self._change(
            lambda state, now, nonce: rules.opened(
                rules.require_epoch(state, epoch), now=now, nonce=nonce, by=by, reason=reason, at=opens, share=share, until=ends
            ),
            above,
        )  # fmt: skip

    async def close(
        self, *, by: str, reason: str = "", epoch: int | None = None, above: int = 0
    ) -> GateState:
        """Hold workers from now on (leash). Replaces a blob that does not hold a gate by a closed gate.

        Args:
            by: Who closes it, 1 to 100 characters.
            reason: Why, for people, at most 500 characters.
            epoch: Only if the gate has this epoch when it is written.
            above: The highest epoch of this gate that the caller has ever seen; the change gets a higher one.

        Returns:
            The gate as stored.

        Raises:
            ConfigurationError: `by` or `reason` is invalid.
            GateMoved: The gate does not have `epoch`. Nothing changed.
            GateContended: Others changed the gate at each attempt.
            StorageError: The change could not be stored. With `maybe_done` it may be stored all the same.
        """
        return await self._change(
            lambda state, now, nonce: rules.closed(
                rules.require_epoch(state, epoch), now=now, nonce=nonce, by=by, reason=reason
            ),
            above,
            lambda remains, now, nonce: rules.repaired(
                self.name, remains.epoch, now=now, nonce=nonce, by=by, reason=reason
            ),
        )

    async def extend(self, *, by: str, until: When | None, reason: str = "", above: int = 0) -> GateState:
        """Change the end of the current opening.

        Args:
            by: As for `open`.
            until: The new end; None for none.
            reason: As for `open`.
            above: As for `open`.

        Returns:
            The gate as stored.

        Raises:
            ConfigurationError: The gate is not open, or `until` is past.
            GateContended: Others changed the gate at each attempt.
            StorageError: As for `open`.
        """
        ends = rules.seconds_of("until", until)
        return await self._change(
            lambda state, now, nonce: rules.extended(
                state, now=now, nonce=nonce, by=by, reason=reason, until=ends
            ),
            above,
        )

    async def _change(
        self, transition: Transition, above: int, repair: Transition | None = None
    ) -> GateState:
        return await self._cache.change(
            transition,
            deadline_seconds=self.config.write_seconds,
            repair=repair,
            publish=self._publish,
            above=above,
        )

    async def _publish(self, state: GateState) -> None:
        await self._bus().publish(
            Notification(
                topic=f"gate:{self.name}", epoch=state.epoch, origin=self.identity, state=rules.encode(state)
            )
        )

    def _clone(self) -> Gate:
        return Gate(
            self._store,
            identity=self.identity,
            bus=self._bus,
            clock=self._clock,
            config=self.config,
            epochs=self._epochs,
            group=self._group,
            keep=self._keep,
        )
