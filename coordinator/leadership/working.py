"""Running what leads: coroutines as they are, plain functions in a thread that is never left behind."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from coordinator.leadership.term import Term

A = TypeVar("A")


async def run_task(task: Callable[[A], Any], argument: A, term: Term) -> Any:
    """Run an async or plain function for that term; returns or raises what it did.

    Guarantees that nothing of it runs any more afterwards: a thread cannot be cancelled, so when this is, `term.held`
    becomes False for it, and its end is waited for.
    """
    if inspect.iscoroutinefunction(task):
        return await task(argument)
    result = await _in_thread(
        lambda: task(argument), f"leader {term.name}", lambda: term.stop("it was asked to stop")
    )
    return await result if inspect.isawaitable(result) else result


async def _in_thread(function: Callable[[], Any], name: str, stop: Callable[[], None]) -> Any:
    # A thread of its own: a few leaders would occupy the loop's pool for good, and a process could not end before them.
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is gone, and everybody who waited with it
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=name, daemon=True).start()
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
            stop()
    if cancelled is not None and future.exception() is None:
        raise cancelled
    return future.result()
