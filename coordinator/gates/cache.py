"""What one process knows of a gate: the newest answer, and how it changes the gate."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from coordinator.backoff import TRANSIENT, Backoff
from coordinator.clock import Clock
from coordinator.epochs import COUNTED, EpochLog, EpochRecord
from coordinator.errors import (
    AlreadyExists,
    GateContended,
    GateCorrupt,
    KennelError,
    PreconditionFailed,
    StorageError,
)
from coordinator.gates.state import REMEMBERED, GateState, next_epoch, raised
from coordinator.gates.store import Answer, GateStore
from coordinator.offset import ClockOffset, HeldTime

Transition = Callable[[GateState, float, str], GateState]

_log = logging.getLogger("coordinator.gates")
_CONTENDED = (PreconditionFailed, AlreadyExists)


class GateCache:
    """The newest state that storage told, and when.

    Guarantees that an answer that was overtaken on its way never replaces a newer one, and that `change` is done once
    however often its answer is lost. `confirmed` is the number of the newest request that was answered: whoever needs
    the truth as of now waits until it reaches `sends` + 1. `failed` is that of the newest that ended in `error`.

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
        self._store = store
        self._clock = clock
        self._etag = ""
        self._applied = 0
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
        # and made anew. Otherwise the answer was overtaken on its way.
        if self.state is not None and state.epoch <= self.state.epoch and number <= self._applied:
            return
        if etag != self._etag or self.state is None:
            self.state, self._etag, self.source = state, etag, source
            self._applied = self.sends
            self._seen(state.epoch)
            if self.went_back:
                _log.error(
                    "Gate %s went back from epoch %s to %s: it was deleted, restored or overwritten",
                    self.name,
                    self.highest,
                    state.epoch,
                    extra={"action": "read", "resource": self.name, "epoch": state.epoch},
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

        Steps 1 to 4 of a release, see `coordinator.gates.gate`.

        What is known of the gate is taken for the stored state until a write shows that it is not: one request if it
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
        backoff = Backoff()
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
                pause = backoff.delay(attempt)
                if attempt == 0 and isinstance(error, _CONTENDED):
                    pause = 0.0  # what we knew was old: ask before anybody is suspected of a race
                if self._clock.monotonic() + pause >= deadline:
                    if isinstance(error, _CONTENDED):
                        raise GateContended(
                            f"gate {self.name}: others changed it {attempt + 1} times meanwhile"
                        ) from error
                    raise
            attempt += 1
            await self._clock.sleep(pause)

    def _from_known(self, transition: Transition, nonce: str) -> GateState | None:
        """The change of the gate as it is known; None if only storage can say what becomes of it."""
        if self.state is None:
            return None
        try:
            desired = transition(self.state, self.now(), nonce)
        except KennelError:
            return None
        return None if desired is self.state else desired

    @asynccontextmanager
    async def notified(self) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever something here changed."""
        event = asyncio.Event()
        self._events.add(event)
        try:
            yield event
        finally:
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
