"""Doing something outside at most once for each item: a marker row in a table."""

from __future__ import annotations

import asyncio
import functools
import inspect
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from coordinator.backoff import Backoff, retry
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import (
    AlreadyExists,
    ConfigurationError,
    NotFound,
    PreconditionFailed,
    StorageError,
)
from coordinator.queues.delivery import DONE, Done, Outcome, Reject, Retry
from coordinator.queues.handlers import (
    current_batch,
    current_loop,
    handler_name,
    in_batch,
    is_async,
    outcomes_of,
)
from coordinator.tables.operations import ANY, Delete, Insert, Merge, Replace
from coordinator.tables.rows import Key, Value
from coordinator.tables.table import Table

KeyOf = Callable[[Any], str]
H = TypeVar("H", bound=Callable[[Any], Any])
R = TypeVar("R")


def idempotent(
    table: Table,
    *,
    key: KeyOf | None = None,
    claim_seconds: float = 300.0,
    clock: Clock = SYSTEM_CLOCK,
) -> Callable[[H], H]:
    """Decorate a handler whose effect is outside (a mail, a payment): `async def` or `def`, of one item or of a batch.

    Guarantees: after it returned for a key, it never runs for that key again, however often the message comes. Two deliveries
    never run at the same time unless one takes longer than `claim_seconds`. If it raises (or, for an item of a batch, answers
    `Retry` or `Reject`), the marker is removed and another attempt runs. A batch handler gets the items that are not done yet.

    Does not guarantee that an effect happened only once if the process died inside the handler: nobody can know whether it
    did, and it is repeated after `claim_seconds`.

    Args:
        table: Where the markers are stored, created on first use. Rows stay until you delete them.
        key: Makes the key of an item (default: the message's id, equal for all deliveries of it). Use one of the business, such
            as the order number, to recognise items that were put twice.
        claim_seconds: How long one delivery may take before another may run (default 300).
        clock: The clock, for tests.

    Returns:
        The decorator.

    Raises:
        ConfigurationError: The handler is a generator, which no listener runs.

    Examples:
        >>> @idempotent(storage.table("marks"), key=lambda order: order.order_id)
        ... async def pay(order: Order) -> None: ...
    """
    marks = _Marks(table, claim_seconds, clock)

    def decorate(handler: H) -> H:
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise ConfigurationError(
                f"idempotent: {handler_name(handler)} is a generator; a handler must be a function"
            )
        run: Any
        if is_async(handler):

            @functools.wraps(handler)
            async def run(argument: Any) -> Any:
                work = _Work(marks, key, argument)
                try:
                    todo = await work.begin()
                    return await work.end(await handler(todo) if work.is_needed else None)
                except BaseException:
                    await work.forget()
                    raise
        else:

            @functools.wraps(handler)
            def run(argument: Any) -> Any:
                work = _Work(marks, key, argument)
                try:
                    todo = _await(work.begin())
                    return _await(work.end(handler(todo) if work.is_needed else None))
                except BaseException:
                    _await(work.forget())
                    raise

        return cast(H, run)

    return decorate


once = idempotent  # its earlier name


def _await(work: Coroutine[Any, Any, R]) -> R:
    """From a handler's thread: on the listener's event loop, whose connections the table uses."""
    try:
        loop = current_loop()
    except LookupError:
        return asyncio.run(work)
    try:
        return asyncio.run_coroutine_threadsafe(work, loop).result()
    except RuntimeError:
        work.close()
        raise


class _Work:
    """One call of a handler: which of its items it is to do, and what is noted of each afterwards."""

    def __init__(self, marks: _Marks, key: KeyOf | None, argument: Any) -> None:
        self._marks, self._argument = marks, argument
        self._batch = in_batch()
        self._items = list(argument) if self._batch else [argument]
        if key is not None:
            self._names = [key(item) for item in self._items]
        else:
            self._names = [context.id.replace("/", ":") for context in current_batch()]
        self._outcomes: list[Outcome | None] = []
        self._begun: dict[int, str] = {}

    @property
    def is_needed(self) -> bool:
        return bool(self._begun)

    async def begin(self) -> Any:
        """Claim the keys; the argument for the handler. Of one item, raises `Retry` while another works on it."""
        first = {name: index for index, name in reversed(list(enumerate(self._names)))}
        unique = [first[name] == index for index, name in enumerate(self._names)]
        self._outcomes = list(
            await asyncio.gather(
                *(self._claim(index, unique[index]) for index in range(len(self._items))),
            )
        )
        if not self._batch:
            if isinstance(error := self._outcomes[0], Exception):
                raise error
            return self._argument
        return [self._items[index] for index in sorted(self._begun)]

    async def _claim(self, index: int, unique: bool) -> Outcome | None:
        """None if the item is to be done now."""
        name = self._names[index]
        if not unique:
            return Retry("another item of this batch has the same key", after=1)
        try:
            if await self._marks.is_done(name):
                return DONE
        except Exception as error:
            return error
        self._begun[index] = name
        return None

    async def end(self, answer: Any) -> Any:
        """Note what is done; the answer for the listener."""
        begun = sorted(self._begun)
        if not self._batch:
            if isinstance(answer, Retry | Reject):
                raise answer
            if begun:
                await self._marks.finish(self._names[0])
            return answer
        for index, outcome in zip(begun, outcomes_of(answer, len(begun)), strict=True):
            self._outcomes[index] = await self._note(index, outcome)
        return self._outcomes

    async def _note(self, index: int, outcome: Outcome) -> Outcome:
        name = self._names[index]
        try:
            if outcome is DONE or isinstance(outcome, Done):
                await self._marks.finish(name)
            else:
                await self._marks.forget(name)
        except Exception as error:
            return error
        finally:
            del self._begun[index]
        return outcome

    async def forget(self) -> None:
        """It failed: what was begun may be tried again."""
        for name in self._begun.values():
            await self._marks.forget(name)


class _Marks:
    """The marker rows: one for each key."""

    def __init__(self, table: Table, claim_seconds: float, clock: Clock) -> None:
        self._table, self._claim_seconds, self._clock = table, claim_seconds, clock

    async def is_done(self, name: str) -> bool:
        """Claim the key; True if it was done before. `Retry` while another delivery works on it."""
        return await _is_done(self._table, Key(name, "once"), self._claim_seconds, self._clock)

    async def finish(self, name: str) -> None:
        done = Merge(Key(name, "once"), {"state": "done", "done_at": self._clock.time()}, etag=ANY)
        await retry(lambda: self._table.write(done), backoff=Backoff(), clock=self._clock)

    async def forget(self, name: str) -> None:
        await _forget(self._table, Key(name, "once"))


async def _is_done(table: Table, row: Key, claim_seconds: float, clock: Clock) -> bool:
    """Claim the key; True if it was done before. `Retry` while another delivery works on it."""
    owner = uuid.uuid4().hex
    values: dict[str, Value] = {"state": "begun", "until": clock.time() + claim_seconds, "owner": owner}
    try:
        await retry(lambda: table.write(Insert(row, values)), backoff=Backoff(), clock=clock)
        return False
    except AlreadyExists:
        pass
    try:
        known = await table.read(row)
    except NotFound:
        raise Retry("another delivery has just failed", after=1) from None
    if known["state"] == "done":
        return True
    if known.get("owner") == owner:  # our insert was carried out, only its answer was lost
        return False
    left = known["until"] - clock.time()
    if left > 0:
        raise Retry("another delivery is being processed", after=max(1.0, left))
    # Whoever began it is dead or hopelessly late. Two who find that out at once: one write wins.
    try:
        await table.write(Replace(row, values, etag=known.etag))
    except (PreconditionFailed, NotFound):
        raise Retry("another delivery began first", after=1) from None
    return False


async def _forget(table: Table, row: Key) -> None:
    try:
        await table.write(Delete(row, etag=ANY))
    except StorageError:
        return  # it is tried again when the claim ends
