"""Storage for code that runs in threads: views, actions, commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

from coordinator.storage import Storage
from dashboard.core.runtime import current

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def storage() -> Storage:
    """The storage account of this process."""
    return current().storage


def call(function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
    """Run a coroutine function on the process's one event loop and return its result. Not from that loop itself."""
    return current().call(function, *args)
