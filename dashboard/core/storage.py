"""Storage for code that runs in threads: views, actions, commands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Generic, NamedTuple, TypeVar, TypeVarTuple

from coordinator.errors import NotFound, StorageError
from coordinator.storage import Storage
from dashboard.core.runtime import current

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ANSWER_SECONDS, AWAY_SECONDS = 1.0, 0.25
MOST_KEPT = 200


class Seen(NamedTuple, Generic[T]):
    """What a page read from storage: now, or, with the `problem`, when storage last answered; None if it never did."""

    value: T | None
    problem: str = ""


def storage() -> Storage:
    """The storage account of this process."""
    return current().storage


def call(function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
    """Run a coroutine function on the process's one event loop and return its result. Not from that loop itself."""
    return current().call(function, *args)


def look(key: str, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> Seen[T]:
    """`call` for a page, which must not wait for storage: the answer within a second, or the last one of that `key` ("": none is kept).

    While storage is known to be away, a quarter of a second. Errors other than those of a storage that is away are raised.
    """
    runtime = current()
    away = runtime.board.sample.storage.unreachable_since is not None
    seconds, kept = AWAY_SECONDS if away else ANSWER_SECONDS, runtime.kept_reads

    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await function(*args)

    try:
        value = call(bounded)
    except NotFound:
        kept.pop(key, None)
        raise
    except (StorageError, TimeoutError) as error:
        problem = str(error) or f"Storage did not answer within {seconds:g} s"
        if key not in kept:
            return Seen(None, problem)
        at, value = kept[key]
        return Seen(value, f"{problem}. As read at {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC.")
    if key:
        keep(key, value)
    return Seen(value)


def keep(key: str, value: object) -> None:
    """What was just written, for `look`."""
    kept = current().kept_reads
    kept.pop(key, None)
    kept[key] = (time.time(), value)
    while len(kept) > MOST_KEPT:
        kept.pop(next(iter(kept)), None)
