"""Calling handlers: coroutines on the loop, plain functions in threads, one item or many, wrapped in middleware."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any

from coordinator.clock import Clock
from coordinator.errors import ConfigurationError
from coordinator.queues.delivery import Unit
from coordinator.queues.envelope import Envelope
from coordinator.queues.outcomes import DONE, Done, Outcome

Handler = Callable[[Any], Any]


@dataclass(frozen=True)
class MessageContext:
    """What a handler or middleware can know about the item in hand; `current_message()` gives it.

    `attempt` counts from 1. `id` is equal for all deliveries of this item. `waited_seconds` is from put to
    the handler, by wall clocks.
    """

    queue: str
    id: str
    attempt: int
    item: Any
    inserted_at: float
    taken_at: float
    waited_seconds: float
    envelope: Envelope


Middleware = Callable[[MessageContext], AbstractAsyncContextManager[Any]]
_current: contextvars.ContextVar[MessageContext] = contextvars.ContextVar("kennel_message")


def current_message() -> MessageContext:
    """The message that the running handler processes; `LookupError` outside of one."""
    return _current.get()


def is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - objects with an async __call__
    )


class Runner:
    """Runs one handler for units of work; every failure comes back as an outcome, none escapes."""

    def __init__(
        self,
        queue: str,
        handler: Handler,
        *,
        batch: int,
        middleware: Sequence[Middleware],
        threads: int,
        clock: Clock,
    ) -> None:
        if batch and middleware:
            raise ConfigurationError("middleware wraps single items; a batch handler has none")
        self._queue, self._handler, self._batch = queue, handler, batch
        self._middleware = tuple(middleware)
        self.is_async = is_async(handler)
        self._threads = threads
        self._clock = clock
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, units: list[Unit]) -> list[Outcome]:
        """The outcome of each unit; `asyncio.CancelledError` alone goes through."""
        try:
            if self._batch:
                return _spread(await self._call([unit.item for unit in units]), len(units))
            unit = units[0]
            context = self._context(unit)
            token = _current.set(context)
            try:
                if self._middleware:
                    async with AsyncExitStack() as stack:
                        for middleware in self._middleware:
                            await stack.enter_async_context(middleware(context))
                        await self._call(unit.item)
                elif self.is_async:
                    await self._handler(unit.item)
                else:
                    await self._call(unit.item)
            finally:
                _current.reset(token)
        except Exception as error:
            return [error] * len(units)
        return [DONE]

    async def _call(self, argument: Any) -> Any:
        if self.is_async:
            return await self._handler(argument)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix=f"queue-{self._queue}")
        context = contextvars.copy_context()
        result = await asyncio.get_running_loop().run_in_executor(
            self._executor, context.run, self._handler, argument
        )
        return await result if inspect.isawaitable(result) else result

    def _context(self, unit: Unit) -> MessageContext:
        delivery = unit.delivery
        envelope = delivery.envelope
        inserted_at = envelope.at or delivery.message.inserted_at
        return MessageContext(
            queue=self._queue,
            id=f"{envelope.id or delivery.message.id}/{unit.index}",
            attempt=delivery.attempt,
            item=unit.item,
            inserted_at=inserted_at,
            taken_at=delivery.taken_at,
            waited_seconds=max(0.0, self._clock.time() - inserted_at),
            envelope=envelope,
        )

    def close(self) -> None:
        """Let go of the threads; one that still runs a handler ends with it."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


def _spread(answer: Any, count: int) -> list[Outcome]:
    """A batch handler's answer as one outcome an item: None means all are done."""
    if answer is None:
        return [DONE] * count
    outcomes = list(answer)
    if len(outcomes) != count:
        raise ConfigurationError(
            f"a batch handler must return None or one outcome for each item: it got {count} items and gave {len(outcomes)}"
        )
    for outcome in outcomes:
        if outcome is not None and not isinstance(outcome, Done | Exception):
            raise ConfigurationError(f"a batch handler's outcomes are Done, Retry or Reject, not {outcome!r}")
    return [DONE if outcome is None else outcome for outcome in outcomes]
