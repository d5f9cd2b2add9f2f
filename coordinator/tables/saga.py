"""`Saga`: steps over several tables, queues or services that end done or undone, whoever crashes."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, Unpack, overload

import msgspec

from coordinator.backoff import Backoff
from coordinator.bounds import KeyText
from coordinator.errors import (
    AlreadyExists,
    ConfigurationError,
    NotFound,
    PreconditionFailed,
)
from coordinator.queues.delivery import Retry
from coordinator.queues.handlers import current_message
from coordinator.queues.listener import ListenerOptions, QueueListener
from coordinator.queues.queue import Queue
from coordinator.queues.settling import RetryPolicy
from coordinator.tables import progress as rules
from coordinator.tables.commit import commit
from coordinator.tables.operations import ANY, Delete, Insert, Operation, Replace, Upsert
from coordinator.tables.outbox import RELAY_SECONDS, Outbox, RelayingListener
from coordinator.tables.progress import Progress, SagaError, Shape, State
from coordinator.tables.rows import MAX_BYTES, Row, Values, check_key, chunk_columns, join_columns
from coordinator.tables.stepping import StepOutcome, attempt
from coordinator.tables.table import Table

I = TypeVar("I")  # noqa: E741
_log = logging.getLogger("coordinator.tables")

ROW = "saga|"
# Each open saga (running, being undone or stuck) has a row here, so that finding them does not cost more with each that ended.
OPEN, OPEN_END = "open|", "open}"
SWEEP = "kennel-sweep"
# The saga counts its own failures. Its message must not go to poison: nothing else brings the saga to a runner.
_RETRIES = RetryPolicy(attempts=1_000_000, base_seconds=1.0, cap_seconds=60.0)
# Beside input and results a row holds the history.
MAX_KEPT_BYTES = 900 * 1024
# How long after a runner should have been heard of others may take the saga for lost.
GRACE_SECONDS = 60.0
ORPHAN_SECONDS = 300.0
# With messages in the queue, its own may be among them.
BACKLOG_SECONDS = 3600.0
SWEPT = 200
_OVERTAKEN_SECONDS = 5.0


class SagaMessage(msgspec.Struct, frozen=True):
    """Says that a saga has something to do; its row says what."""

    key: KeyText


@dataclass(frozen=True)
class SagaContext(Generic[I]):
    """What a step knows.

    Attributes:
        key: The key of the saga.
        input: Its input.
        results: What earlier steps returned, by name.
        epoch: A fencing token: larger than that of every earlier runner.
        attempt: The attempts of this step, from 1.
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

    @property
    def shape(self) -> Shape:
        return Shape(self.name, self.undo is not None)

    async def __call__(self, context: SagaContext[Any]) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return await self.function(context)
        result = await asyncio.to_thread(self.function, context)
        return await result if isinstance(result, Awaitable) else result


class Saga(Generic[I]):
    """Named steps, run in order, each at least once, resumed where they stopped by any worker that listens.

    Guarantees that a started saga ends `done`, `compensated`, or `stuck` and visible, as long as some worker listens;
    that a step is not run again once its success was stored; that a runner which was overtaken cannot store progress
    any more. Steps are known by name: a saga whose steps do not fit what was done is `stuck` and says why, and is
    never carried on.

    Does not guarantee that a step runs once only: it must be idempotent, and so must its compensation, which may also
    be called for a step that never began. Others can see the states in between.

    Args:
        name: Its name, for good.
        table: Where progress is stored.
        queue: The queue of its messages.
        input_type: The type of the input (default: any JSON).
        timeout_seconds: Bound of the whole saga in seconds (default 0: none). After it, what was done is rolled back.
        version: Separates sagas that other code started under the same name (default ""): only its own version
            carries each on, over a queue of its own.
        identity: What this process is called in records.

    Raises:
        ConfigurationError: An option is out of bounds.
        StorageError: Storage refused or stayed unreachable; also raised by each method.

    Examples:
        >>> trip = storage.saga("trip", Trip)
        >>> @trip.step
        ... async def book_hotel(context: SagaContext[Trip]) -> str: ...
        >>> @book_hotel.compensate
        ... async def cancel_hotel(context: SagaContext[Trip]) -> None: ...
        >>> await trip.start("trip-4711", Trip("Lisbon"))
    """

    def __init__(
        self,
        name: str,
        table: Table,
        queue: Queue[SagaMessage],
        *,
        input_type: Any = Any,
        timeout_seconds: float = 0.0,
        version: str = "",
        identity: Callable[[], str] = lambda: "",
    ) -> None:
        if timeout_seconds < 0:
            raise ConfigurationError(f"timeout_seconds must not be negative, got {timeout_seconds}")
        check_key((name, name))
        self.name = name
        self.table = table
        self.queue = queue
        self.timeout_seconds = timeout_seconds
        self.version = version
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
        """Decorate the next step, `async def` or `def` (in a thread), called with a `SagaContext`.

        The step's result must be JSON and is kept; input and results together may take 900 KiB.

        Args:
            function: The step.
            timeout_seconds: Bound of one attempt in seconds (default 60). A `def` cannot be stopped: after it the
                step is waited for and shown as overdue, and what it returns counts.
            attempts: Failed attempts after which the saga is rolled back (default 5; None: never). `Reject` rolls it
                back at once.
            backoff: The pauses between attempts (default: below 1 s first, 60 s at most).

        Returns:
            The step, whose `compensate` decorates the function that undoes it; without `function`, the decorator.

        Raises:
            ConfigurationError: The name is used twice, or an option is out of bounds.
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
        """Begin the saga of that key.

        Guarantees that the saga is stored and its message sent when it returns. If it raises, the saga may be stored:
        repeat it with the same key.

        Args:
            key: Names this saga, for good, such as an order number.
            input: What the steps get.

        Returns:
            False if it was begun before; then the input is not looked at.

        Raises:
            ConfigurationError: The input is not JSON or too large, or the key is not allowed.
        """
        now = self._clock.time()
        content = msgspec.json.encode(input)
        if len(content) > MAX_KEPT_BYTES:
            raise ConfigurationError(
                f"saga {self.name} {key}: its input has {len(content)} bytes; input and results together may take "
                f"{MAX_KEPT_BYTES}. Keep it in a blob and give the blob's name"
            )
        progress = Progress(
            saga=self.name,
            key=key,
            input=msgspec.Raw(content),
            started_at=now,
            changed_at=now,
            deadline_at=now + self.timeout_seconds if self.timeout_seconds else 0.0,
            history=(rules.Event(now, "started", by=self._identity()),),
            queue=self.queue.name,
            plan=tuple(step.name for step in self.steps),
            undoable=tuple(step.name for step in self.steps if step.undo is not None),
            version=self.version,
            indexed=True,
        )
        writes: list[Operation] = [
            Insert((self.name, ROW + key), _columns(progress)),
            self._open(progress),
        ]
        try:
            await self.outbox.commit(self.name, writes, SagaMessage(key), intent=key)
        except AlreadyExists:
            await self.outbox.relay_one(self.name, key)
            return False
        return True

    async def read(self, key: str) -> Progress:
        """How far the saga of that key is; one request.

        Args:
            key: The saga.

        Returns:
            Its progress.

        Raises:
            NotFound: It was never started.
        """
        return decode_progress(await self.table.read((self.name, ROW + key)))

    async def wait(self, key: str, *, poll_seconds: float = 0.2) -> Progress:
        """Read again and again until the saga has ended.

        Args:
            key: The saga.
            poll_seconds: Seconds between two requests (default 0.2).

        Returns:
            Its progress at the end.

        Raises:
            NotFound: It was never started.
        """
        while not (progress := await self.read(key)).is_ended:
            await self._clock.sleep(poll_seconds)
        return progress

    async def retry(self, key: str, *, by: str = "") -> State:
        """Have a `stuck` saga go on once its cause is fixed: rolling back, or with its steps if only they did not fit.

        Needs no steps, so any process can call it.

        Args:
            key: The saga.
            by: Who does it, for the record.

        Returns:
            Its new state.

        Raises:
            SagaError: It is not stuck.
            NotFound: It was never started.
        """
        row = await self.table.read((self.name, ROW + key))
        freed = rules.freed(decode_progress(row), at=self._clock.time(), by=by or self._identity())
        await self._send(row, freed)
        return freed.state

    async def mark_repaired(self, key: str, step: str, *, by: str = "") -> State:
        """Count a step as undone that could not be undone, after somebody has undone it by hand; the saga goes on with those before it.

        Needs no steps, so any process can call it. Guarantees that each call marks one step: who names another than the one that
        the saga is stuck on, or is late, is refused. Does not check that the effects are gone.

        Args:
            key: The saga.
            step: The name of the step that the saga is stuck on.
            by: Who does it, for the record.

        Returns:
            Its new state: `compensating`, or `compensated` if that was the last one.

        Raises:
            SagaError: It is not stuck on that step.
            NotFound: It was never started.
        """
        row = await self.table.read((self.name, ROW + key))
        who = by or self._identity()
        progress = rules.repaired(decode_progress(row), step, at=self._clock.time(), by=who)
        if progress.is_ended:
            await self._save(row, progress)
        else:
            await self._send(row, progress)
        return progress.state

    def listener(
        self, *, relay_seconds: float = RELAY_SECONDS, **options: Unpack[ListenerOptions]
    ) -> QueueListener[SagaMessage]:
        """A listener that runs sagas.

        Args:
            relay_seconds: Seconds between two looks for what a starter that died left unsent, and for sagas that
                nobody carries on (default 300; see `sweep`). Two requests each time, and some more for the one
                process that sweeps.
            **options: As for `QueueListener`.

        Returns:
            The listener; run it with `Worker.add`.

        Raises:
            ConfigurationError: An option is out of bounds.
        """
        options.setdefault("retries", _RETRIES)

        async def handle(message: SagaMessage) -> None:
            await self.carry_on(message.key, guard=current_message().id)

        async def sweep() -> None:
            await self.sweep(interval_seconds=relay_seconds)

        return RelayingListener(
            self.outbox, self.name, handle, relay_seconds=relay_seconds, besides=sweep, **options
        )

    async def carry_on(self, key: str, *, guard: str) -> None:
        """`run` for a message; returns only when that message may be deleted.

        Args:
            key: The saga.
            guard: The id of the message.

        Raises:
            Retry: The saga has not ended, so it must keep its message.
        """
        progress = await self.run(key, guard=guard)
        if progress is not None and progress.is_ended:
            return
        try:
            now = await self.read(key)
        except NotFound:
            return
        if not now.is_ended:
            raise Retry("another runner has taken it over", after=_OVERTAKEN_SECONDS)

    # --- running ------------------------------------------------------------------------------------------------

    async def run(self, key: str, *, guard: str = "") -> Progress | None:
        """Take the saga over and carry it to its end.

        1. Read the row. A saga that has ended stays as it is.
        2. Leave it to another message's runner as long as that one may be at work.
        3. Mark it stuck if its steps do not fit those of this process.
        4. Take it: a higher epoch, stored under the row's ETag. From now on a former runner can store nothing.
        5. Choose the next step, or the next one to undo; past the saga's deadline, begin to undo.
        6. Call the step. When its time is used up, note that in the row, each 20 s until it ends.
        7. Store the result or the error under the row's ETag, before anything else happens. If somebody else has
           stored since, stop: the saga is theirs.
        8. After a failure that has another attempt, raise `Retry`: the message comes again. Otherwise back to 5.

        Args:
            key: The saga.
            guard: The message that this is done for (default: none). A saga on which another message's runner works
                is left to it.

        Returns:
            Its progress; None if another runner has taken it, or it does not exist.

        Raises:
            Retry: A step failed and will be attempted again, or another runner works on the saga.
            ConfigurationError: This process has no steps of it.
        """
        names = [step.name for step in self.steps]
        if not names:
            raise ConfigurationError(f"saga {self.name} has no steps in this process")
        shapes = [step.shape for step in self.steps]
        by = self._identity()
        try:
            row = await self.table.read((self.name, ROW + key))  # 1
        except NotFound:
            _log.warning("Saga %s %s: its row is gone; the message is dropped", self.name, key)
            return None
        progress = decode_progress(row)
        now = self._clock.time()
        progress = self._resumed(progress, shapes, at=now, by=by)
        if progress.is_ended:
            return progress
        is_others = progress.guard == rules.THREAD or (guard and progress.guard not in ("", guard))
        if is_others and now < progress.held_until:  # 2
            raise Retry(
                "another runner is processing it", after=min(GRACE_SECONDS, progress.held_until - now + 1.0)
            )
        try:
            if why := self._why_not(progress, shapes):  # 3
                progress = rules.unfit(progress, why, at=now, by=by)
                _log.warning("Saga %s %s does not fit the steps of this process: %s", self.name, key, why)
                await self._save(row, progress)
                return progress
            progress = rules.taken(rules.named(progress, names), shapes, at=now, by=by, guard=guard)  # 4
            row, progress = await self._save(row, progress)
            while (name := rules.next_step(progress, names)) is not None:  # 5
                step = next(step for step in self.steps if step.name == name)
                now = self._clock.time()
                if progress.state == "running" and 0 < progress.deadline_at <= now:
                    progress = rules.timed_out(progress, names, at=now, by=by)
                    row, progress = await self._save(row, progress)
                    continue
                row, progress, outcome = await self._attempt(step, row, progress)  # 6
                now = self._clock.time()
                if outcome.was_cancelled:
                    progress = msgspec.structs.replace(progress, guard="")
                if outcome.error:
                    attempts = step.attempts if progress.state == "running" else step.attempts or 5
                    state = progress.state
                    progress = rules.failed(
                        progress, names, outcome.error, 0 if outcome.is_final else attempts, at=now, by=by
                    )
                else:
                    progress = rules.succeeded(progress, names, outcome.result, at=now, by=by)
                row, progress = await self._save(row, progress)  # 7
                if outcome.was_cancelled:
                    raise asyncio.CancelledError
                if outcome.error and progress.state == state:
                    delay = step.backoff.delay(progress.tries) if outcome.after is None else outcome.after
                    raise Retry(f"{step.name}: {outcome.error}", after=delay)  # 8
        except PreconditionFailed:  # 7
            return None
        return progress

    def _why_not(self, progress: Progress, shapes: Sequence[Shape]) -> str:
        try:
            progress = rules.named(progress, [shape.name for shape in shapes])
        except SagaError as error:
            return str(error)
        return rules.misfit(progress, shapes, self.version)

    def _resumed(self, progress: Progress, shapes: Sequence[Shape], *, at: float, by: str) -> Progress:
        """A saga that is stuck for other steps than these goes on if these fit; else as it is."""
        if not progress.unfit:
            return progress
        going = rules.resumed(progress, "fits again", at=at, by=by)
        return progress if self._why_not(going, shapes) else going

    async def _attempt(self, step: Step, row: Row, progress: Progress) -> tuple[Row, Progress, StepOutcome]:
        undoing = progress.state == "compensating"
        function = step.undo if undoing else step.function
        if function is None:
            return row, progress, StepOutcome()
        context = SagaContext(
            key=progress.key,
            input=msgspec.json.decode(progress.input, type=self._input_type),
            results=dict(progress.results),
            epoch=progress.epoch,
            attempt=progress.tries + 1,
        )
        names = [each.name for each in self.steps]

        async def hold(was_cancelled: bool) -> None:
            nonlocal row, progress
            now = self._clock.time()
            progress = rules.overdue(
                progress,
                names,
                step.timeout_seconds,
                was_cancelled=was_cancelled,
                at=now,
                by=self._identity(),
            )
            row, progress = await self._save(row, progress)
            _log.warning("Saga %s %s: step %s %s", self.name, progress.key, step.name, progress.error)

        outcome = await attempt(function, context, timeout_seconds=step.timeout_seconds, hold=hold)
        if not outcome.error and not undoing:
            kept = {**progress.results, step.name: outcome.result}
            size = len(progress.input) + len(msgspec.json.encode(kept))
            if size > MAX_KEPT_BYTES:
                error = (
                    f"input and results would take {size} bytes with what it returned; at most {MAX_KEPT_BYTES} can be kept. "
                    "Keep the result in a blob and return the blob's name"
                )
                outcome = replace(outcome, result=None, error=error, is_final=True)
        if outcome.error:
            _log.warning("Saga %s %s: step %s failed: %s", self.name, progress.key, step.name, outcome.error)
        return row, progress, outcome

    async def _save(self, row: Row, progress: Progress) -> tuple[Row, Progress]:
        """Store, if nobody else has since `row` was read or written."""
        before = row["state"]
        if progress.is_ended:
            progress = msgspec.structs.replace(progress, guard="", held_until=0.0)
        else:
            seconds = max(
                (step.timeout_seconds for step in self.steps if step.name == self._step_in_flight(progress)),
                default=0,
            )
            until = progress.changed_at + seconds + GRACE_SECONDS
            progress = msgspec.structs.replace(progress, held_until=until)
        writes: list[Operation] = []
        if progress.state in rules.OPEN:
            if not progress.indexed or progress.state != before:
                progress = msgspec.structs.replace(progress, indexed=True)
                writes = [self._open(progress)]
        elif progress.indexed:
            writes = [Delete((self.name, OPEN + progress.key), ANY)]
            progress = msgspec.structs.replace(progress, indexed=False)
        values = _columns(progress)
        replacing = Replace(row.key, values, row.etag)
        try:
            etags = await commit(self.table, replacing, *writes)
        except NotFound:  # somebody deleted the row of the index; that must not hold up the saga
            etags = await commit(self.table, replacing)
        return Row(row.key, dict(values), etags[0]), progress

    def _step_in_flight(self, progress: Progress) -> str | None:
        return rules.next_step(progress, [step.name for step in self.steps])

    async def _send(self, row: Row, progress: Progress) -> None:
        """Store, and send a message, both or neither."""
        progress = msgspec.structs.replace(progress, indexed=True)
        writes: list[Operation] = [
            Replace(row.key, _columns(progress), row.etag),
            self._open(progress),
        ]
        await self.outbox.commit(self.name, writes, SagaMessage(progress.key), intent=progress.key)

    def _open(self, progress: Progress) -> Upsert:
        """The saga's row of the index. Its state is always right; the rest is of when the state changed."""
        values = {
            "state": progress.state,
            "epoch": progress.epoch,
            "changed_at": progress.changed_at,
            "unfit": progress.unfit,
        }
        return Upsert((self.name, OPEN + progress.key), values)

    # --- what nobody carries on ---------------------------------------------------------------------------------

    async def sweep(self, *, interval_seconds: float = 0.0) -> int:
        """Send messages for sagas that nobody carries on, and for stuck ones that fit this process.

        One process does it each `interval_seconds`; for the others it is one request. A saga counts as forsaken five
        minutes after it should have been heard of if the queue is empty, or an hour after if it is not. At most 200
        open sagas are looked at each time.

        Args:
            interval_seconds: Seconds between two sweeps of the fleet (default 0: now).

        Returns:
            How many messages were sent.
        """
        now = self._clock.time()
        key = (self.name, f"{SWEEP}|{self.version}" if self.version else SWEEP)
        try:
            row: Row | None = await self.table.read(key)
        except NotFound:
            row = None
        if row is not None and now - float(row["at"]) < interval_seconds * 0.9:
            return 0
        after = str(row["after"]) if row is not None else ""
        is_indexed = row is not None and bool(row.get("indexed"))
        scan = self.table.scan(
            partition=self.name,
            row_from=OPEN + after + "\x20" if after else OPEN,
            row_before=OPEN_END,
            page_size=SWEPT,
        )
        found = [each async for each in _first(scan, SWEPT)]
        values: Values = {
            "at": now,
            "after": found[-1].key.row.removeprefix(OPEN) if len(found) == SWEPT else "",
            "indexed": is_indexed,
        }
        try:
            etag = await commit(self.table, Replace(key, values, row.etag) if row else Insert(key, values))
        except (PreconditionFailed, AlreadyExists):
            return 0  # another process sweeps
        if not is_indexed:
            await self._index()
            with suppress(PreconditionFailed):
                await commit(self.table, Replace(key, {**values, "indexed": True}, etag[0]))
        count, is_empty = 0, None
        for each in found:
            if now - float(each["changed_at"]) < ORPHAN_SECONDS and not each.get("unfit"):
                continue
            if each["state"] == "stuck" and not (each.get("unfit") and self.steps):
                continue
            try:
                there = await self.table.read((self.name, ROW + each.key.row.removeprefix(OPEN)))
            except NotFound:
                await self.table.write(Delete(each.key, each.etag))
                continue
            progress = decode_progress(there)
            if progress.state not in rules.OPEN:
                await self.table.write(Delete(each.key, each.etag))
                continue
            if progress.state == "stuck":
                going = self._resumed(
                    progress, [step.shape for step in self.steps], at=now, by=self._identity()
                )
                if going.is_ended:
                    continue
            else:
                if progress.version != self.version:
                    continue  # its own version's listeners look after it
                silent = now - max(progress.changed_at, progress.held_until)
                if silent < ORPHAN_SECONDS:
                    continue
                if is_empty is None:
                    is_empty = await self.queue.depth() == 0
                if not is_empty and silent < BACKLOG_SECONDS:
                    continue
                going = rules.requeued(progress, at=now, until=now + GRACE_SECONDS, by=self._identity())
                _log.warning("Saga %s %s had no runner and was requeued", self.name, progress.key)
            try:
                await self._send(there, going)
            except (PreconditionFailed, AlreadyExists):
                continue  # somebody has it in hand after all, or its message was not sent yet: the relay does
            count += 1
        return count

    async def _index(self) -> None:
        """Once for each name: the rows of the index for sagas that an older version started."""
        scan = self.table.scan(
            partition=self.name,
            prefix=ROW,
            where=[("state", "ne", "done"), ("state", "ne", "compensated")],
        )
        async for row in scan:
            progress = decode_progress(row)
            if not progress.indexed:
                with suppress(AlreadyExists):
                    index = self._open(progress)
                    await self.table.write(Insert(index.key, index.values))


async def _first(scan: AsyncIterable[Row], count: int) -> AsyncIterator[Row]:
    async for row in scan:
        yield row
        count -= 1
        if not count:
            return


def _columns(progress: Progress) -> Values:
    content = msgspec.json.encode(progress)
    while len(content) > MAX_BYTES and progress.history:
        # The oldest half of the history goes before the saga does.
        progress = msgspec.structs.replace(
            progress, history=progress.history[len(progress.history) // 2 + 1 :]
        )
        content = msgspec.json.encode(progress)
    return {
        "state": progress.state,
        "epoch": progress.epoch,
        "changed_at": progress.changed_at,
        **chunk_columns("progress", content),
    }


def decode_progress(row: Row) -> Progress:
    return msgspec.json.decode(join_columns("progress", row.values), type=Progress)
