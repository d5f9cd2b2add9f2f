"""Work that is carried to its end, however often its caller is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.uninterrupted import uninterrupted


async def test_a_cancellation_waits_until_the_work_has_ended() -> None:
    go, did = asyncio.Event(), list[str]()

    async def work() -> str:
        await go.wait()
        did.append("done")
        return "result"

    task = asyncio.create_task(uninterrupted(work))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert did == ["done"]


async def test_without_a_cancellation_it_gives_the_result_or_raises_the_error() -> None:
    async def well() -> int:
        return 7

    async def ill() -> int:
        raise ValueError("no")

    assert await uninterrupted(well) == 7
    with pytest.raises(ValueError, match="no"):
        await uninterrupted(ill)


async def test_a_cancellation_goes_before_an_error_of_the_work() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        raise ValueError("no")

    task = asyncio.create_task(uninterrupted(work))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_work_whose_own_task_is_cancelled_is_begun_once_more_and_no_oftener() -> None:
    begun: list[int] = []

    async def cancelled_once() -> str:
        begun.append(1)
        if len(begun) == 1:
            raise asyncio.CancelledError
        return "done"

    assert await uninterrupted(cancelled_once) == "done"

    async def always_cancelled() -> None:
        begun.append(2)
        raise asyncio.CancelledError

    begun.clear()
    with pytest.raises(asyncio.CancelledError):
        await uninterrupted(always_cancelled)
    assert begun == [2, 2]
    task = asyncio.create_task(uninterrupted(always_cancelled))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
