"""However often somebody presses, a slow look at storage does not follow the other at once."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from coordinator.storage import Storage
from coordinator.testing.clock import ManualClock
from dashboard.live.presence import Presence
from dashboard.live.sampler import Sampler

from .making import fleet_state_of


async def looks_of(seconds: float) -> list[float]:
    """When looks began that take so long each, while somebody presses ten times a second for eight seconds."""
    clock = ManualClock()
    board = fleet_state_of(Presence("here", clock=clock), clock)
    began: list[float] = []

    async def step(*, record: bool) -> Any:
        began.append(clock.monotonic())
        await clock.sleep(seconds)

    async with Storage.from_connection_string("UseDevelopmentStorage=true") as storage:
        sampler = Sampler(storage, board, board.backplane, clock=clock)
        sampler.step = step  # type: ignore[method-assign]
        sampler._leading = True
        sampler._election = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
        running = asyncio.create_task(sampler.run())
        for _ in range(80):
            sampler.wake()
            await clock.advance(0.1)
        running.cancel()
        sampler._election.cancel()
        await asyncio.gather(running, sampler._election, return_exceptions=True)
    return began


async def test_a_slow_look_is_followed_by_a_rest_of_three_times_as_long() -> None:
    began = await looks_of(0.5)
    assert [round(later - one, 1) for one, later in pairwise(began)] == [2.0] * 4


async def test_a_quick_look_is_taken_again_at_each_press() -> None:
    began = await looks_of(0.0)
    assert len(began) >= 40


async def test_a_look_takes_one_listing_at_a_time_so_that_a_press_waits_for_one_at_most() -> None:
    clock = ManualClock()
    board = fleet_state_of(Presence("here", clock=clock), clock)
    under_way: list[int] = []
    at_once = 0

    async def listed() -> tuple[()]:
        nonlocal at_once
        at_once += 1
        under_way.append(at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        return ()

    async def no_work(before: Any, at: float) -> Any:
        return before

    async with Storage.from_connection_string("UseDevelopmentStorage=true") as storage:
        sampler = Sampler(storage, board, board.backplane, clock=clock)
        for listing in (sampler._gates, sampler._leaders, sampler._counters):
            listing.read = listed  # type: ignore[method-assign,assignment]
        sampler._queue_names = listed  # type: ignore[method-assign]
        sampler._work = no_work  # type: ignore[method-assign]
        await sampler.step(record=False)
    assert under_way == [1, 1, 1, 1]
