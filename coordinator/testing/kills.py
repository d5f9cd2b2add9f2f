"""Processes that die at a chosen request, as `kill -9` would end them; and all such deaths of a program in turn."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from coordinator.azure.metering import Meter, Request
from coordinator.config import StorageConfig
from coordinator.errors import ConfigurationError
from coordinator.storage import Storage

Part = Callable[[Storage], Awaitable[Any]]
AT_ONCE = 4


class DeadlyMeter(Meter):
    """Ends the process with SIGKILL when its n-th request is about to be sent: the one before it was carried out."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._left = number

    def count(self, request: Request, *, bytes_sent: int = 0) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        super().count(request, bytes_sent=bytes_sent)


def in_child(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run a coroutine in a forked process; its return code, -9 if it was killed. Call it outside of any event loop."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asyncio.run(work())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


@dataclass(frozen=True)
class Kills:
    """What `kill_everywhere` did: the requests of an unharmed run, and before which of them a process was killed."""

    requests: int
    killed: tuple[int, ...]


def kill_everywhere(
    connection_string: str,
    act: Part,
    check: Part,
    *,
    prepare: Part | None = None,
    recover: Part | None = None,
    prefix: str = "",
    seconds: float = 60.0,
    may_miss: int = 3,
) -> Kills:
    """Run `act` in a process that is killed before each of its requests in turn, recover, and check, every time.

    These are all the states of storage in which the process can die. For each number n there is a fresh prefix of storage:
    `prepare(storage)` fills it; `act(storage)` runs in a forked process that ends with SIGKILL instead of sending its n-th
    request; `recover(storage)` (default: `act` once more) is what another process does then; `check(storage)` raises if what it
    finds is not as promised. First all of it runs once unharmed, to count the requests.

    `connection_string` should be of an emulator, such as `Azurite` of `coordinator.testing.azurite`. `prefix` begins the names of
    what is created (lower-case letters and digits, a letter first; default: by chance). `seconds` bounds each run of a part.
    Runs may differ by a few idle requests: up to `may_miss` of the last numbers may go unused.

    Does not find what only two processes do to each other at the same moment. Takes about as long as that many runs. Call it
    from a plain ``def`` test: it forks, so no event loop may run. Needs `os.fork`: Linux and macOS.

    Raises `AssertionError` naming the request before which the process was killed, with the error of `recover` or `check` as its
    cause; also if `act` fails by itself, or too few of the deaths were reached.
    """
    if not hasattr(os, "fork"):
        raise ConfigurationError("kill_everywhere needs os.fork, which this system has not; run it on Linux")
    start = prefix.rstrip("-") or f"k{secrets.token_hex(4)}"

    async def with_storage(part: Part | None, number: int, meter: Meter | None = None) -> int:
        if part is None:
            return 0
        config = StorageConfig(prefix=f"{start}x{number}-")
        async with Storage.from_connection_string(connection_string, config=config) as storage:
            if meter is not None:
                storage.meter = meter
            async with asyncio.timeout(seconds):
                await part(storage)
            return storage.meter.total

    async def unharmed() -> int:
        await with_storage(prepare, 0)
        requests = await with_storage(act, 0)
        await with_storage(check, 0)
        return requests

    requests = asyncio.run(unharmed())
    numbers = range(1, requests + 1)
    asyncio.run(_a_few_at_a_time(lambda number: with_storage(prepare, number), numbers))
    killed = []
    for number in numbers:

        async def dying(number: int = number) -> None:
            await with_storage(act, number, DeadlyMeter(number))

        code = in_child(dying)
        if code == -signal.SIGKILL:
            killed.append(number)
        elif code:
            raise AssertionError(f"to be killed before request {number}, it ended by itself with {code}")
    if len(killed) < requests - may_miss:
        raise AssertionError(f"only {len(killed)} of {requests} requests were reached: {killed}")

    async def recovered(number: int) -> None:
        try:
            await with_storage(recover or act, number)
            await with_storage(check, number)
        except Exception as error:
            raise AssertionError(f"killed before request {number} of {requests}: {error!r}") from error

    asyncio.run(_a_few_at_a_time(recovered, numbers))
    return Kills(requests, tuple(killed))


async def _a_few_at_a_time(work: Callable[[int], Awaitable[Any]], numbers: range) -> None:
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with turn:
            await work(number)

    ends = await asyncio.gather(*(one(number) for number in numbers), return_exceptions=True)
    for error in ends:
        if isinstance(error, BaseException):
            raise error
