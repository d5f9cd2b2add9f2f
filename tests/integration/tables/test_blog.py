"""The blog's saga (S18): killed before each of its requests in turn, or robbed of each answer, it always ends deleted."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from coordinator import Saga, Storage
from coordinator.config import StorageConfig
from coordinator.errors import NotFound, StorageError
from coordinator.testing.azurite import Azurite
from coordinator.testing.faults import DROP_ANSWER, FaultProxy
from coordinator.testing.kills import DeadlyMeter, in_child
from examples.blog import Blog, fill, left

T = TypeVar("T")
POSTS = 120  # more than a transaction holds
LEFT = {"channels": {"kept": True}, "posts": {"kept": 5}}


def connect(connection_string: str, prefix: str) -> Storage:
    return Storage.from_connection_string(connection_string, config=StorageConfig(prefix=prefix))


async def prepare(storage: Storage) -> None:
    blog = Blog(storage)
    await asyncio.gather(fill(blog, "doomed", POSTS), fill(blog, "kept", 5))


async def delete(
    storage: Storage, observer: Storage, *, start: bool = True, relay_seconds: float = 300.0
) -> int:
    """Start the saga unless told not to, and listen until it is done and its message gone; how many requests."""
    saga = Blog(storage).deletion
    if start:
        await saga.start("doomed", "doomed")
    listener = saga.listener(tasks=range(1, 2), visibility_seconds=1, relay_seconds=relay_seconds)
    listening = asyncio.create_task(listener.run())
    seen: Saga[Any] = Blog(observer).deletion
    while not ((await seen.read("doomed")).is_ended and await seen.queue.depth() == 0):
        await asyncio.sleep(0.1)
    await listener.stop(5.0)
    await listening
    return storage.meter.total


async def recover(connection_string: str, prefix: str) -> dict[str, Any]:
    """What another process finds and leaves: only a start that nobody stored is repeated."""
    async with connect(connection_string, prefix) as storage, connect(connection_string, prefix) as observer:
        try:
            await Blog(observer).deletion.read("doomed")
            stored = True
        except NotFound:
            stored = False
        async with asyncio.timeout(20):
            await delete(storage, observer, start=not stored, relay_seconds=0.3)
        assert (await Blog(observer).deletion.read("doomed")).state == "done"
        return await left(Blog(observer))


@pytest.mark.timeout(180)
def test_killed_at_any_request_it_ends_deleted_and_nothing_else_is_touched(
    azurite: Azurite, storage_prefix: str
) -> None:
    async def whole() -> int:
        async with connect(azurite.connection_string, storage_prefix) as storage:
            await prepare(storage)
            async with connect(azurite.connection_string, storage_prefix) as acting:
                return await delete(acting, storage)

    requests = asyncio.run(whole())
    assert requests > 20
    prefixes = [f"{storage_prefix[:-1]}x{number}-" for number in range(1, requests + 1)]

    async def prepare_all() -> None:
        for prefix in prefixes:
            async with connect(azurite.connection_string, prefix) as storage:
                await prepare(storage)

    asyncio.run(prepare_all())
    codes = []
    for number, prefix in enumerate(prefixes, start=1):

        async def work(number: int = number, prefix: str = prefix) -> None:
            async with (
                connect(azurite.connection_string, prefix) as storage,
                connect(azurite.connection_string, prefix) as observer,
            ):
                storage.meter = DeadlyMeter(number)
                await delete(storage, observer)

        codes.append(in_child(work))
    # Idle looks differ from run to run: once one has ended before its turn came, each request of that run has been tried.
    assert set(codes) <= {-signal.SIGKILL, 0}
    tried = codes.index(0) if 0 in codes else requests
    assert tried > 20

    async def recover_all() -> list[dict[str, Any]]:
        return await a_few_at_a_time([recover(azurite.connection_string, prefix) for prefix in prefixes])

    for number, found in enumerate(asyncio.run(recover_all()), start=1):
        assert found == LEFT, f"killed before request {number}"


async def a_few_at_a_time(works: list[Coroutine[Any, Any, T]]) -> list[T]:
    turn = asyncio.Semaphore(4)

    async def one(work: Coroutine[Any, Any, T]) -> T:
        async with turn:
            return await work

    return list(await asyncio.gather(*(one(work) for work in works)))


@pytest.mark.timeout(180)
async def test_with_any_answer_lost_it_ends_deleted_and_nothing_else_is_touched(
    azurite: Azurite, storage_prefix: str
) -> None:
    async def run(lose: int | None) -> tuple[int, int]:
        """How many requests there were, and how many of them lost their answer."""
        prefix = f"{storage_prefix[:-1]}y{lose}-" if lose is not None else storage_prefix
        with FaultProxy(azurite.connection_string) as proxy:
            async with (
                connect(proxy.connection_string, prefix) as storage,
                connect(azurite.connection_string, prefix) as observer,
            ):
                await prepare(observer)
                if lose is not None:
                    proxy.once(DROP_ANSWER, skip=lose)
                try:
                    async with asyncio.timeout(30):
                        await delete(storage, observer)
                except (TimeoutError, StorageError) as error:
                    raise AssertionError(f"answer {lose} lost: {error!r} {proxy.applied}") from error
                assert await left(Blog(observer)) == LEFT, f"answer {lose} lost"
            return proxy.requests, len(proxy.applied)

    requests, _ = await run(None)
    assert requests > 20
    lost = [lost for _, lost in await a_few_at_a_time([run(number) for number in range(requests)])]
    # Idle looks differ from run to run, so the last few numbers may never be reached.
    assert sum(lost) >= requests - 3
