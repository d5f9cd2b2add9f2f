"""What one process knows of a gate: the newest answer, and how it changes the gate."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from coordinator.backoff import TRANSIENT, Backoff
from coordinator.clock import Clock
from coordinator.errors import AlreadyExists, GateContended, KennelError, PreconditionFailed
from coordinator.gates.state import GateState
from coordinator.gates.store import Answer, GateStore
from coordinator.offset import ClockOffset

_CONTENDED = (PreconditionFailed, AlreadyExists)


class GateView:
    """The newest state that storage told, and when.

    Guarantees that an answer that was overtaken on its way never replaces a newer one, and that `change` is done once
    however often its answer is lost. `confirmed` is the number of the newest request that was answered: whoever needs
    the truth as of now waits until it reaches `sends` + 1.
    """

    def __init__(self, store: GateStore, clock: Clock) -> None:
        self.name = store.name
        self.state: GateState | None = None
        self.source = "poll"
        self.offset = ClockOffset()
        self.error: KennelError | None = None
        self.sends = 0
        self.confirmed = 0
        self._store = store
        self._clock = clock
        self._etag = ""
        self._applied = 0
        self._events: set[asyncio.Event] = set()

    def now(self) -> float:
        """Seconds since 1970, by this machine's clock as corrected by the storage service's."""
        return self._clock.time() + self.offset.correction

    async def look(self, source: str, *, whole: bool = False) -> Answer:
        """Ask storage once. `whole` asks for the state even if it has not changed."""
        self.sends += 1
        number, sent = self.sends, self._clock.time()
        answer = await self._store.read("" if whole else self._etag)
        if answer.date is not None:
            self.offset = self.offset.observed(sent=sent, received=self._clock.time(), date=answer.date)
        if answer.state is not None:
            self._apply(number, answer.state, answer.etag, source)
        self.confirmed = max(self.confirmed, number)
        self.error = None
        self.notify()
        return answer

    async def try_look(self, source: str) -> KennelError | None:
        """`look`, but an error is kept in `error` for those who wait; returns it if it is news."""
        try:
            await self.look(source)
        except KennelError as error:
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

    async def change(
        self, transition: Callable[[GateState, float, str], GateState], *, deadline_seconds: float
    ) -> GateState:
        """Apply `transition(state, now, nonce)` to the stored state, once, against all rivals; returns what is stored.

        What is known of the gate is taken for the stored state until a write shows that it is not: one request if it
        is. Nothing but a write is decided by it, no refusal and no "so it is already".
        """
        nonce = uuid.uuid4().hex
        backoff = Backoff(deadline_seconds=deadline_seconds)
        started, attempt, sent = self._clock.monotonic(), 0, False
        while True:
            try:
                wanted, etag = self._from_known(transition, nonce) if attempt == 0 else None, self._etag
                if wanted is None:
                    answer = await self.look("poll", whole=True)
                    current, etag = answer.state, answer.etag
                    assert current is not None
                    # Our write may have won and lost its answer, and others may have written since: then it is done.
                    if sent and nonce in current.recent:
                        return current
                    wanted = transition(current, self.now(), nonce)
                    if wanted is current:
                        return current
                sent = True
                self.sends += 1
                number = self.sends
                written = await self._store.write(wanted, etag)
                self._apply(number, wanted, written, "poll")
                self.notify()
                return wanted
            except (*_CONTENDED, *TRANSIENT) as error:
                pause = backoff.delay(attempt)
                if attempt == 0 and isinstance(error, _CONTENDED):
                    pause = 0.0  # what we knew was old: ask before anybody is suspected of a race
                if self._clock.monotonic() + pause - started >= backoff.deadline_seconds:
                    if isinstance(error, _CONTENDED):
                        raise GateContended(
                            f"gate {self.name}: others changed it {attempt + 1} times meanwhile"
                        ) from error
                    raise
            attempt += 1
            await self._clock.sleep(pause)

    def _from_known(
        self, transition: Callable[[GateState, float, str], GateState], nonce: str
    ) -> GateState | None:
        """The change of the gate as it is known; None if only storage can say what becomes of it."""
        if self.state is None:
            return None
        try:
            wanted = transition(self.state, self.now(), nonce)
        except KennelError:
            return None
        return None if wanted is self.state else wanted

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
