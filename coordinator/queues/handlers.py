"""Calling handlers: coroutines on the loop, plain functions in threads, one item or many, wrapped in middleware."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from coordinator.clock import Clock
from coordinator.errors import ConfigurationError
from coordinator.queues.delivery import DONE, Done, HandlerEnded, Loss, Outcome, Reject, Retry, WorkItem
from coordinator.queues.envelope import Envelope

Handler = Callable[[Any], Any]


@dataclass(frozen=True)
class MessageContext:
    """What a handler or middleware can know about its item; `current_message()` returns it.

    Attributes:
        queue: The queue.
        id: Equal for all deliveries of this item.
        attempt: The attempt, from 1.
        item: The item.
        inserted_at: When it was put, in seconds since 1970.
        taken_at: When it was received, by the monotonic clock.
        waited_seconds: From put to handler, by wall clocks.
        envelope: The envelope of its message.
        lost: When this process no longer holds the message: `await context.lost`, or `context.lost.wait(seconds)` in
            a thread.
    """

    queue: str
    id: str
    attempt: int
    item: Any
    inserted_at: float
    taken_at: float
    waited_seconds: float
    envelope: Envelope
    lost: Loss = field(default_factory=Loss, compare=False, repr=False)

    @property
    def held(self) -> bool:
        """Whether the message is still this process's. False once another may have it, or its time-out passed: stop then."""
        return self.lost.held


Middleware = Callable[[MessageContext], AbstractAsyncContextManager[Any]]


def handler_name(handler: Handler) -> str:
    """What a handler is called in log lines."""
    return getattr(handler, "__qualname__", "") or type(handler).__qualname__


def is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - objects with an async __call__
    )


def is_generator(handler: Handler) -> bool:
    """Whether a call of it gives a generator and runs nothing, which would look like success."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return any(
        inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        for function in (handler, getattr(handler, "__call__", None))  # noqa: B004 - objects with such a __call__
    )


class HandlerCall:
    """One call of the handler that has not ended. `task` awaits it; `waiting` is set for a `def` handler's thread."""

    __slots__ = (
        "_contexts",
        "_runner",
        "batch",
        "cancelled_at",
        "started_at",
        "task",
        "waiting",
        "warned_at",
        "work_items",
    )

    def __init__(
        self, runner: Runner, work_items: list[WorkItem], task: asyncio.Task[Any], started_at: float
    ) -> None:
        self.work_items = work_items
        self.started_at = started_at
        self.warned_at = started_at
        self.cancelled_at: float | None = None
        self.task = task
        self.waiting: asyncio.Future[Any] | None = None
        self.batch = runner.batch > 0
        self._runner = runner
        self._contexts: tuple[MessageContext, ...] = ()

    @property
    def contexts(self) -> tuple[MessageContext, ...]:
        if not self._contexts:
            self._contexts = tuple(self._runner.context(work_item) for work_item in self.work_items)
        return self._contexts


_current: contextvars.ContextVar[HandlerCall] = contextvars.ContextVar("kennel_message")


def current_message() -> MessageContext:
    """The message that the running handler processes. For a batch see `current_batch`.

    Returns:
        Its context.

    Raises:
        LookupError: No handler runs here, or one that has a batch of several items.
    """
    contexts = _current.get().contexts
    if len(contexts) != 1:
        raise LookupError("this handler has a batch of items: use current_batch()")
    return contexts[0]


def current_batch() -> tuple[MessageContext, ...]:
    """The message of each item that the running batch handler got, in their order.

    Returns:
        Their contexts.

    Raises:
        LookupError: No handler runs here.
    """
    return _current.get().contexts


def in_batch() -> bool:
    """Whether a batch handler is running here."""
    run = _current.get(None)
    return run is not None and run.batch


def current_loop() -> asyncio.AbstractEventLoop:
    """The event loop of the listener whose handler runs here, also in a thread; `LookupError` outside of one."""
    return _current.get().task.get_loop()


class Runner:
    """Runs one handler for units of work; every failure comes back as an outcome, none escapes.

    Set `stopping` before a task that is in `run` is cancelled: any other cancellation is the handler's own failure.
    `timeout` (seconds) ends a call: an `async def` handler is cancelled; a thread goes on, but its item counts as failed.
    """

    def __init__(
        self,
        queue: str,
        handler: Handler,
        *,
        batch: int,
        middleware: Sequence[Middleware],
        threads: int,
        clock: Clock,
        timeout: float | None = None,
    ) -> None:
        if batch and middleware:
            raise ConfigurationError("middleware wraps single items; a batch handler has none")
        if is_generator(handler):
            raise ConfigurationError(
                f"handler {handler_name(handler)} has a yield, so calling it runs none of it; remove the yield, or return a list"
            )
        self._queue, self.handler, self.batch = queue, handler, batch
        self._middleware = tuple(middleware)
        self.name = handler_name(handler)
        self.is_async = is_async(handler)
        self.timeout = timeout
        self.running: dict[HandlerCall, None] = {}
        self.stopping = False
        self._threads = threads
        self._clock = clock
        self._executor: ThreadPoolExecutor | None = None

    async def run(
        self, work_items: list[WorkItem], task: asyncio.Task[Any], started_at: float
    ) -> list[Outcome]:
        """The outcome of each unit; raises only `asyncio.CancelledError`, once `stopping`. `task` is the running one."""
        run = HandlerCall(self, work_items, task, started_at)
        self.running[run] = None
        token = _current.set(run)
        try:
            if self.batch:
                outcomes = outcomes_of(
                    await self._call(run, [work_item.item for work_item in work_items]), len(work_items)
                )
            elif self._middleware:
                async with AsyncExitStack() as stack:
                    for middleware in self._middleware:
                        await stack.enter_async_context(middleware(run.contexts[0]))
                    answer = await self._call(run, work_items[0].item)
                    if isinstance(answer, Retry | Reject):
                        raise answer
                outcomes = [DONE]
            else:
                item = work_items[0].item
                answer = await (self.handler(item) if self.is_async else self._call(run, item))
                outcomes = [answer if isinstance(answer, Retry | Reject) else DONE]
        except asyncio.CancelledError as error:
            if run.cancelled_at is not None:
                return self._timed_out(run, task, error)
            if self.stopping:
                raise
            while task.cancelling():  # a handler may have cancelled its own task
                task.uncancel()
            return [_ended("the handler raised CancelledError", error)] * len(work_items)
        except Exception as error:
            if run.cancelled_at is not None:
                return self._timed_out(run, task, error)
            return [error] * len(work_items)
        except (
            BaseException
        ) as error:  # sys.exit() in a handler must not end the listener and leave the message
            if run.cancelled_at is not None:
                return self._timed_out(run, task, error)
            return [_ended(f"the handler raised {type(error).__name__}({error})", error)] * len(work_items)
        finally:
            _current.reset(token)
            del self.running[run]
        if run.cancelled_at is not None and task.cancelling():
            task.uncancel()  # it was done all the same
        return outcomes

    def _timed_out(self, run: HandlerCall, task: asyncio.Task[Any], error: BaseException) -> list[Outcome]:
        if task.cancelling() and task.uncancel():
            raise asyncio.CancelledError from error
        return [_ended(f"it took longer than its time-out of {self.timeout:g} s", error)] * len(
            run.work_items
        )

    def oldest_seconds(self) -> float:
        """How long the longest-running call has run; 0 if none runs."""
        first = min((run.started_at for run in list(self.running)), default=None)
        return 0.0 if first is None else self._clock.monotonic() - first

    def time_out(self, run: HandlerCall, now: float) -> None:
        """End a call whose time is over."""
        run.cancelled_at = now
        for work_item in run.work_items:
            work_item.delivery.loss.happened("its time-out passed")
        if run.waiting is not None:
            if not run.waiting.done():
                run.waiting.set_exception(TimeoutError())
            if self._executor is not None:  # its thread may never end: others must not have to wait for it
                self._executor.shutdown(wait=False)
                self._executor = None
        else:
            run.task.cancel()

    async def _call(self, run: HandlerCall, argument: Any) -> Any:
        if self.is_async:
            return await self.handler(argument)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix=f"queue-{self._queue}")
        loop = asyncio.get_running_loop()
        context, done = contextvars.copy_context(), loop.create_future()

        def work() -> None:
            answer: Any = None
            error: BaseException | None = None
            try:
                answer = context.run(self.handler, argument)
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(finish, answer, error)
            except RuntimeError:
                return  # the loop ended first

        def finish(answer: Any, error: BaseException | None) -> None:
            if done.done():
                return
            if isinstance(error, StopIteration):  # which no future can hold
                error = _ended("the handler raised StopIteration", error)
            done.set_result(answer) if error is None else done.set_exception(error)

        run.waiting = done
        self._executor.submit(work)
        result = await done
        if not inspect.isawaitable(result):
            return result
        run.waiting = None
        return await result

    def context(self, work_item: WorkItem) -> MessageContext:
        delivery = work_item.delivery
        envelope = delivery.envelope
        inserted_at = envelope.at or delivery.message.inserted_at
        return MessageContext(
            queue=self._queue,
            id=f"{envelope.id or delivery.message.id}/{work_item.index}",
            attempt=delivery.attempt,
            item=work_item.item,
            inserted_at=inserted_at,
            taken_at=delivery.taken_at,
            waited_seconds=max(0.0, self._clock.time() - inserted_at),
            envelope=envelope,
            lost=delivery.loss,
        )

    def close(self) -> None:
        """Let go of the threads; the process ends when their handlers have."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None


def _ended(reason: str, cause: BaseException) -> HandlerEnded:
    ended = HandlerEnded(reason)
    ended.__cause__ = cause
    return ended


def outcomes_of(answer: Any, count: int) -> list[Outcome]:
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
