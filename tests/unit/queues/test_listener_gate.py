from __future__ import annotations

import asyncio

from coordinator.gates.gate import Gate
from coordinator.queues.notifications import follow
from coordinator.realtime.bus import LocalBus
from coordinator.testing.clock import ManualClock
from coordinator.testing.gates import MemoryGateStore


async def test_whoever_sleeps_on_an_empty_queue_is_told_that_the_gate_closed():
    clock, bus = ManualClock(), LocalBus()
    gate = Gate(MemoryGateStore("start-now"), identity="w", bus=lambda: bus, clock=clock)
    told = asyncio.Event()
    async with gate.watch():
        await gate.open(by="olga")
        task = asyncio.create_task(follow(gate, told.set))
        await asyncio.sleep(0)
        assert not told.is_set()
        await gate.close(by="olga", reason="stock check")
        async with asyncio.timeout(5):
            await told.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
