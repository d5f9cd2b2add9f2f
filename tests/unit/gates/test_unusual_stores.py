"""Gates whose store keeps no clock, and reads and changes that meet others."""

from __future__ import annotations

import asyncio
import dataclasses

from coordinator.epochs import EpochRecord
from coordinator.gates.azure import SharedReads
from coordinator.gates.gate import Answer, GateCache
from coordinator.gates.state import GateState
from coordinator.testing.clock import ManualClock
from coordinator.testing.gates import MemoryGateStore


class WithoutClock(MemoryGateStore):
    async def read(self, etag: str) -> Answer:
        return dataclasses.replace(await super().read(etag), date=None)


def opened(current: GateState, now: float, nonce: str) -> GateState:
    return GateState(
        name=current.name, epoch=current.epoch + 1, state="open", by="olga", changed_at=now, recent=(nonce,)
    )


async def test_a_store_without_a_clock_leaves_a_gate_its_machine_s() -> None:
    clock = ManualClock()
    store = WithoutClock(clock=clock)
    await store.write(GateState(name="test-gate", epoch=3, state="open"), "")
    cache = GateCache(store, clock)
    answer = await cache.refresh("poll")
    assert answer.date is None and cache.state is not None and cache.state.epoch == 3
    before = cache.now()
    await clock.advance(5)
    assert cache.now() - before == 5
    assert cache.now() == clock.time()


async def test_a_change_without_an_announcement_is_stored_and_its_epoch_recorded() -> None:
    clock, recorded = ManualClock(), list[int]()

    class Epochs:
        async def claim(self, record: EpochRecord) -> int:
            recorded.append(record.epoch)
            return 0

    store = MemoryGateStore(clock=clock)
    state = await GateCache(store, clock, Epochs()).change(opened, deadline_seconds=5)
    assert state.state == "open" and store.state == state
    assert recorded == [state.epoch] and store.writes == 1


async def test_an_epoch_that_was_used_before_is_raised_unless_somebody_else_changed_the_gate_since() -> None:
    clock, published = ManualClock(), list[int]()
    store = MemoryGateStore(clock=clock)

    class Epochs:
        """The first epoch was used before; meanwhile another closes the gate."""

        highest = 40

        async def claim(self, record: EpochRecord) -> int:
            if record.epoch > self.highest:
                return 0
            other = GateCache(store, clock)

            def closed(current: GateState, now: float, nonce: str) -> GateState:
                return GateState(name=current.name, epoch=60, state="closed", by="otto", recent=(nonce,))

            await other.change(closed, deadline_seconds=5)
            return self.highest

    async def publish(state: GateState) -> None:
        published.append(state.epoch)

    state = await GateCache(store, clock, Epochs()).change(opened, deadline_seconds=5, publish=publish)
    assert (state.by, state.state, state.epoch) == ("otto", "closed", 60), "the newer word of another holds"
    assert store.state == state
    assert published == [1, 60]


async def test_a_read_that_was_asked_for_meanwhile_waits_for_the_one_on_its_way() -> None:
    store, go, reading = MemoryGateStore(), asyncio.Event(), list[int]()
    reads = SharedReads(store)

    async def hold() -> None:
        reading.append(store.reads)
        await go.wait()

    store.after_read = hold  # type: ignore[method-assign]
    early = asyncio.ensure_future(reads.read(""))
    while not reading:
        await asyncio.sleep(0)
    late = [asyncio.ensure_future(reads.read("")) for _ in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert reading == [1], "one request at a time, however many ask"
    go.set()
    answers = await asyncio.gather(early, *late)
    assert {answer.state for answer in answers} == {GateState(name="test-gate")}
    assert store.reads == 2
