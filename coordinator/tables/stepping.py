"""Carrying out one step of a saga: its time-out, its thread, and what became of it in words."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from coordinator.errors import LeadershipLost, PreconditionFailed, StorageError
from coordinator.queues.delivery import Reject, Retry

_log = logging.getLogger("coordinator.tables")
HOLD_SECONDS = 20.0


@dataclass(frozen=True)
class StepOutcome:
    """What became of a try: `error` is "" for success; `is_final` says that another try is useless.

    `after` is when the step itself wants the next try; `was_cancelled` that the runner must stop once this is stored.
    """

    result: Any = None
    error: str = ""
    is_final: bool = False
    after: float | None = None
    was_cancelled: bool = False


async def attempt(
    function: Callable[[Any], Any],
    context: Any,
    *,
    timeout_seconds: float,
    hold: Callable[[bool], Awaitable[None]],
) -> StepOutcome:
    """Call a step once. Raises `LeadershipLost`, what `hold` raises, and `asyncio.CancelledError` of an `async def` step.

    An `async def` step is cancelled at its time-out. A `def` step cannot be: it is waited for, because what it does may
    still take effect, and its result counts. `hold` is called when the time is used up (False) or the runner is cancelled
    (True), and each 20 s from then on.
    """
    if not inspect.iscoroutinefunction(function):
        return await _in_thread(function, context, timeout_seconds, hold)
    try:
        async with asyncio.timeout(timeout_seconds) as limit:
            return _checked(await function(context))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return StepOutcome(error=said(error))  # the step's own, not ours
    except TimeoutError as error:
        return StepOutcome(
            error=f"took longer than {timeout_seconds:g} s" if limit.expired() else said(error)
        )
    except (Exception, SystemExit) as error:
        return _of(error)


async def _in_thread(
    function: Callable[[Any], Any],
    context: Any,
    timeout_seconds: float,
    hold: Callable[[bool], Awaitable[None]],
) -> StepOutcome:
    def call() -> tuple[Any, BaseException | None]:
        try:
            return function(context), None
        except BaseException as error:  # a future cannot carry them all
            return None, error

    running = contextvars.copy_context().run
    future = asyncio.get_running_loop().run_in_executor(None, running, call)
    wait_seconds, was_cancelled = timeout_seconds, False
    while not future.done():
        try:
            await asyncio.wait({future}, timeout=wait_seconds)
            if future.done():
                break
        except asyncio.CancelledError:
            was_cancelled = True
        wait_seconds = HOLD_SECONDS
        try:
            await hold(was_cancelled)
        except PreconditionFailed:
            raise
        except StorageError as error:
            _log.warning("A step exceeds its time-out, which could not be recorded: %s", error)
    result, raised = future.result()
    if inspect.isawaitable(result):
        result = await result
    outcome = _checked(result) if raised is None else _of(raised)
    return replace(outcome, was_cancelled=was_cancelled)


def _checked(result: Any) -> StepOutcome:
    try:
        msgspec.json.encode(result)
    except Exception as error:
        return StepOutcome(error=f"its result cannot be kept as JSON: {said(error)}", is_final=True)
    return StepOutcome(result)


def _of(error: BaseException) -> StepOutcome:
    if isinstance(error, LeadershipLost | KeyboardInterrupt):
        raise error
    after = error.after if isinstance(error, Retry) else None
    return StepOutcome(error=said(error), is_final=isinstance(error, Reject), after=after)


def said(error: BaseException) -> str:
    """The error in words that can be stored, whatever it is made of."""
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be read)"
    return f"{type(error).__name__}: {text}".encode(errors="backslashreplace").decode()
