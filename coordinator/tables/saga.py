"""`Saga`: steps over several tables, queues or services that end done or undone, whoever crashes (S18)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack, overload

import msgspec

from coordinator.backoff import Backoff
from coordinator.errors import (
    AlreadyExists,
    ConfigurationError,
    LeadershipLost,
    NotFound,
    PreconditionFailed,
)
from coordinator.queues.listener import ListenerOptions, QueueListener
from coordinator.queues.outcomes import Retry
from coordinator.queues.queue import Queue
from coordinator.queues.settling import RetryPolicy
from coordinator.tables import progress as rules
from coordinator.tables.columns import gather, spread
from coordinator.tables.commit import commit
from coordinator.tables.operations import Insert, Replace
from coordinator.tables.outbox import RELAY_SECONDS, Outbox, RelayingListener
from coordinator.tables.progress import Progress
from coordinator.tables.rows import Row, Values, check_key
from coordinator.tables.table import Table

I = TypeVar("I")  # noqa: E741
_log = logging.getLogger("coordinator.tables")

ROW = "saga|"
# The saga counts its own failures; its message goes to poison only when not even its row can be read or written.
_RETRIES = RetryPolicy(attempts=1000, base_seconds=1.0, cap_seconds=60.0)


class SagaMessage(msgspec.Struct, frozen=True):
    """Says that a saga has something to do; its row says what."""

    key: str


@dataclass(frozen=True)
class SagaContext(Generic[I]):
    """What a step knows: the key and input of its saga, what earlier steps returned, and the epoch of its runner.

    `epoch` is a fencing token: larger than that of every runner before. `attempt` counts the tries of this step from 1.
    """

    key: str
    input: I
    results: dict[str, Any]
    epoch: int
    attempt: int


StepFunction = Callable[[SagaContext[Any]], Any]


class Step:
    """One step of a saga. `compensate` decorates the function that undoes it."""

    def __init__(
        self, function: StepFunction, *, timeout_seconds: float, attempts: int | None, backoff: Backoff
    ) -> None:
        if timeout_seconds <= 0 or (attempts is not None and attempts < 1):
            raise ConfigurationError("a step needs timeout_seconds > 0, and attempts of at least 1 or None")
        self.name = function.__name__
        self.function = function
        self.undo: StepFunction | None = None
        self.timeout_seconds = timeout_seconds
        self.attempts = attempts
        self.backoff = backoff

    def compensate(self, function: StepFunction) -> StepFunction:
        """Undo this step. Also called if the step failed or timed out, when nobody knows how far it came."""
        self.undo = function
        return function

    async def __call__(self, context: SagaContext[Any]) -> Any:
        return await _call(self.function, context)


class Saga(Generic[I]):
    """Named steps, run in order, each at least once, resumed where they stopped by whichever worker is there.

    Guarantees: a started saga ends `done`, or `compensated`, or `stuck` and visible, as long as some worker listens; a
    step is not run again once its success was stored; a runner that was overtaken cannot store progress any more.
    Does not guarantee that a step runs once only: it must be idempotent, and so must its compensation, which may also be
    called for a step that never began. Others can see the states in between.

    `timeout_seconds` bounds the whole (0: no bound): later, what was done is undone.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        queue: Queue[SagaMessage],
        *,
        input_type: Any = Any,
        timeout_seconds: float = 0.0,
        identity: Callable[[], str] = lambda: "",
    ) -> None:
        if timeout_seconds < 0:
            raise ConfigurationError(f"timeout_seconds must not be negative, got {timeout_seconds}")
        check_key((name, name))
        self.name = name
        self.table = table
        self.queue = queue
        self.timeout_seconds = timeout_seconds
        self.steps: list[Step] = []
        self.outbox = Outbox(table, queue)
        self._input_type = input_type
        self._identity = identity
        self._clock = table.store.clock

    # --- declaring ----------------------------------------------------------------------------------------------

    @overload
    def step(self, function: StepFunction) -> Step: ...
    @overload
    def step(
        self,
        *,
        timeout_seconds: float = ...,
        attempts: int | None = ...,
        backoff: Backoff = ...,
    ) -> Callable[[StepFunction], Step]: ...
    def step(
        self,
        function: StepFunction | None = None,
        *,
        timeout_seconds: float = 60.0,
        attempts: int | None = 5,
        backoff: Backoff = Backoff(base_seconds=1.0, cap_seconds=60.0),  # noqa: B008 - frozen
    ) -> Step | Callable[[StepFunction], Step]:
        """Decorate the next step, ``async def`` or ``def`` (in a thread), called with a `SagaContext`.

        `timeout_seconds` bounds one try; a ``def`` cannot be stopped, only be given up. After `attempts` failed tries
        (None: never) the saga is undone. `backoff` spaces the tries. What the step returns must be JSON and is kept.
        """

        def register(function: StepFunction) -> Step:
            if any(step.name == function.__name__ for step in self.steps):
                raise ConfigurationError(f"saga {self.name} has a step {function.__name__} already")
            step = Step(function, timeout_seconds=timeout_seconds, attempts=attempts, backoff=backoff)
            self.steps.append(step)
            return step

        return register if function is None else register(function)

    # --- using --------------------------------------------------------------------------------------------------

    async def start(self, key: str, input: I) -> bool:
        """Begin the saga of that key; False if it was begun before (then the input is not looked at).

        When this returns, the saga is stored and its message sent. If it raises, it may be stored all the same: repeat
        it with the same key.
        """
        now = self._clock.time()
        progress = Progress(
            saga=self.name,
            key=key,
            input=msgspec.Raw(msgspec.json.encode(input)),
            started_at=now,
            changed_at=now,
            deadline_at=now + self.timeout_seconds if self.timeout_seconds else 0.0,
            history=(rules.Event(now, "started", by=self._identity()),),
            queue=self.queue.name,
        )
        insert = Insert((self.name, ROW + key), _columns(progress))
        try:
            await self.outbox.commit(self.name, [insert], SagaMessage(key), intent=key)
        except AlreadyExists:
            await self.outbox.relay_one(self.name, key)
            return False
        return True

    async def read(self, key: str) -> Progress:
        """How far the saga of that key is; raises `NotFound`."""
        return decode_progress(await self.table.read((self.name, ROW + key)))

    async def wait(self, key: str, *, poll_seconds: float = 0.2) -> Progress:
        """Look again and again until the saga of that key has ended; one request each time."""
        while not (progress := await self.read(key)).is_ended:
            await self._clock.sleep(poll_seconds)
        return progress

    async def retry(self, key: str, *, by: str = "") -> None:
        """Try to undo a `stuck` saga again, once its cause is repaired. Raises `SagaError` if it is not stuck.

        Needs no steps, so any process can.
        """
        row = await self.table.read((self.name, ROW + key))
        freed = rules.freed(decode_progress(row), at=self._clock.time(), by=by or self._identity())
        replace = Replace(row.key, _columns(freed), row.etag)
        await self.outbox.commit(self.name, [replace], SagaMessage(key), intent=key)

    def listener(
        self, *, relay_seconds: float = RELAY_SECONDS, **options: Unpack[ListenerOptions]
    ) -> QueueListener[SagaMessage]:
        """A listener that runs sagas; options as of `QueueListener`.

        Each `relay_seconds` it also looks for what a starter that died left unsent; one request each time.
        """
        options.setdefault("retries", _RETRIES)

        async def handle(message: SagaMessage) -> None:
            await self.run(message.key)

        return RelayingListener(self.outbox, self.name, handle, relay_seconds=relay_seconds, **options)

    # --- running ------------------------------------------------------------------------------------------------

    async def run(self, key: str) -> Progress | None:
        """Take the saga over and carry it to its end; None if another runner has taken it, or it does not exist.

        Raises `Retry` if a step failed and is to be tried again later.
        """
        names = [step.name for step in self.steps]
        if not names:
            raise ConfigurationError(f"saga {self.name} has no steps in this process")
        by = self._identity()
        try:
            row = await self.table.read((self.name, ROW + key))
        except NotFound:
            _log.warning("Saga %s %s: its row is gone; the message is dropped", self.name, key)
            return None
        progress = decode_progress(row)
        if progress.is_ended:
            return progress
        try:
            progress = rules.taken(progress, at=self._clock.time(), by=by)
            row = await self._save(row, progress)
            while (index := rules.next_step(progress, names)) is not None:
                now = self._clock.time()
                if progress.state == "running" and 0 < progress.deadline_at <= now:
                    progress = rules.timed_out(progress, names, at=now, by=by)
                    row = await self._save(row, progress)
                    continue
                step = self.steps[index]
                result, error = await self._attempt(step, progress)
                now = self._clock.time()
                if error:
                    attempts = step.attempts if progress.state == "running" else step.attempts or 5
                    state = progress.state
                    progress = rules.failed(progress, names, error, attempts, at=now, by=by)
                    row = await self._save(row, progress)
                    if progress.state == state:
                        raise Retry(f"{step.name}: {error}", after=step.backoff.delay(progress.tries))
                else:
                    progress = rules.succeeded(progress, names, result, at=now, by=by)
                    row = await self._save(row, progress)
        except PreconditionFailed:
            return None
        return progress

    async def _attempt(self, step: Step, progress: Progress) -> tuple[Any, str]:
        undoing = progress.state == "compensating"
        function = step.undo if undoing else step.function
        if function is None:
            return None, ""
        context = SagaContext(
            key=progress.key,
            input=msgspec.json.decode(progress.input, type=self._input_type),
            results=dict(progress.results),
            epoch=progress.epoch,
            attempt=progress.tries + 1,
        )
        try:
            async with asyncio.timeout(step.timeout_seconds):
                result = await _call(function, context)
            msgspec.json.encode(result)
        except TimeoutError:
            return None, f"took longer than {step.timeout_seconds:g} s"
        except LeadershipLost:
            raise
        except Exception as error:
            _log.warning("Saga %s %s: step %s failed", self.name, progress.key, step.name, exc_info=error)
            return None, f"{type(error).__name__}: {error}"
        return result, ""

    async def _save(self, row: Row, progress: Progress) -> Row:
        """Store, if nobody else has since `row` was read or written."""
        values = _columns(progress)
        etags = await commit(self.table, Replace(row.key, values, row.etag))
        return Row(row.key, dict(values), etags[0])


async def _call(function: StepFunction, context: SagaContext[Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(context)
    result = await asyncio.to_thread(function, context)
    return await result if isinstance(result, Awaitable) else result


def _columns(progress: Progress) -> Values:
    return {
        "state": progress.state,
        "epoch": progress.epoch,
        "changed_at": progress.changed_at,
        **spread("progress", msgspec.json.encode(progress)),
    }


def decode_progress(row: Row) -> Progress:
    return msgspec.json.decode(gather("progress", row.values), type=Progress)
