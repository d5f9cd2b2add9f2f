"""The blocking faces: how threads, scripts and frameworks without an event loop call what is async.

One event loop in a thread of its own (`Storage.portal`) runs the calls of all threads, so connections and polling are shared
and there is no second implementation of anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

from anyio.from_thread import BlockingPortal

from coordinator.errors import ConfigurationError, KennelError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Portal = Callable[[], BlockingPortal]


def call_blocking(
    portal: Portal | None, face: str, instead: str, call: Callable[[*Ts], Awaitable[T]], *args: *Ts
) -> T:
    """Run `call(*args)` on the portal's event loop and wait for it in this thread.

    `face` names the method for error messages, `instead` what an async caller should use. An exception in this thread
    while it waits (Ctrl-C, for one) cancels the call; it does not go on unseen. Raises `ConfigurationError` without a portal
    and `KennelError` in a thread that runs an event loop, which would stop meanwhile.
    """
    if portal is None:
        raise ConfigurationError(
            f"{face} needs an event loop in another thread: give `portal=lambda: storage.portal`, or use `{instead}`"
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise KennelError(f"{face} would stop this event loop; use `{instead}`")
    future = portal().start_task_soon(call, *args)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
