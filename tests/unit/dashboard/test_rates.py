"""Rates come from what was read, never from what could not be."""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.testing.clock import ManualClock
from dashboard.live.fleet import NOTHING, Depth, StorageView
from dashboard.live.presence import Presence

from .making import fleet_state_of, hello


async def test_a_rate_stays_what_it_was_while_storage_cannot_be_read() -> None:
    clock = ManualClock()
    presence = Presence("here", clock=clock)
    board = fleet_state_of(presence, clock)
    presence.joined(hello("a"))
    presence.done["orders"] = 0

    def sampled(depth: int, gone: float | None = None) -> float | None:
        now = clock.time()
        board.apply(
            replace(
                NOTHING,
                at=now,
                storage=StorageView(as_of=now if gone is None else gone, unreachable_since=gone),
                queues=(Depth("orders", depth, 0, now),),
            )
        )
        return next(queue.in_per_second for queue in board.fleet(fresh=True).queues)

    sampled(0)
    await clock.advance(2)
    assert sampled(20) == 10
    gone = clock.time()
    for _ in range(20):
        await clock.advance(2)
        assert sampled(20, gone) == 10
    await clock.advance(2)
    sampled(20)
    await clock.advance(2)
    assert sampled(20) == 0
