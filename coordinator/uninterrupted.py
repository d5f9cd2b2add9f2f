"""Ends that must not be cut short, however often the waiting task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def uninterrupted(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `work()` to its end in a task of its own; a cancellation that came meanwhile is raised afterwards.

    `work` must end by itself, soon. It is started a second time if somebody cancels its own task, as `asyncio.run` does to
    every task at its end.
    """
    cancelled: asyncio.CancelledError | None = None
    for _ in range(2):
        task = asyncio.create_task(work())
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        if not task.cancelled():
            break
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved: the cancellation goes first
        raise cancelled
    return task.result()
