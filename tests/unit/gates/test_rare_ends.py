"""Gates that somebody else never lets alone, and what workers inside of one keep closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.errors import GateContended, GateTimeout, PreconditionFailed, StorageUnreachable
from coordinator.gates.gate import Gate
from coordinator.realtime.bus import LocalBus
from coordinator.testing.clock import ManualClock
from coordinator.testing.gates import MemoryGateStore
from coordinator.testing.leadership import MemoryEpochs
from tests.support.dying import HastyClock


class Contended(MemoryGateStore):
    async def before_write(self) -> None:
        raise PreconditionFailed("somebody wrote first", status=412)


class Away(MemoryGateStore):
    async def before_write(self) -> None:
        raise StorageUnreachable("no network")


def gate(store: MemoryGateStore, clock: ManualClock, **options: Any) -> Gate:
    bus = LocalBus()
    return Gate(store, identity="worker-1", bus=lambda: bus, clock=clock, **options)


@pytest.mark.parametrize(
    ("store", "kind", "words"),
    [(Contended, GateContended, "others changed it"), (Away, StorageUnreachable, "no network")],
)
async def test_a_change_that_never_comes_about_ends_with_its_reason(
    store: type[MemoryGateStore], kind: type[Exception], words: str
) -> None:
    clock = HastyClock()
    began = clock.monotonic()
    with pytest.raises(kind, match=words):
        await gate(store(clock=clock), clock).open(by="olga")
    assert clock.monotonic() - began < 120, "an operator waits for the answer"


async def test_who_waits_until_a_gate_is_left_waits_no_longer_than_was_said() -> None:
    clock = ManualClock()
    store = MemoryGateStore(clock=clock)
    worker, operator = gate(store, clock), gate(store, clock)
    await operator.open(by="olga")
    inside, leave = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with worker.passing():
            inside.set()
            await leave.wait()

    working = asyncio.create_task(work())
    await clock.advance(3)
    assert inside.is_set()
    await operator.close(by="olga", reason="stock check")
    waiting = asyncio.create_task(worker.wait_leashed(timeout=10))
    await clock.advance(9)
    assert not waiting.done()
    await clock.advance(2)
    with pytest.raises(GateTimeout, match="still had work inside after 10 s"):
        await waiting
    waiting = asyncio.create_task(worker.wait_leashed(timeout=10))
    await clock.advance(3)
    leave.set()
    await clock.advance(1)
    await waiting
    await working


async def test_a_change_whose_epoch_cannot_be_recorded_holds_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(MemoryEpochs):
        async def claim(self, record: Any) -> int:
            raise StorageUnreachable("the table is away")

    clock = ManualClock()
    store = MemoryGateStore(clock=clock)
    state = await gate(store, clock, epochs=Broken()).open(by="olga")
    assert state.state == "open" and store.state is not None
    assert state.epoch == 1
    assert "is not recorded" in caplog.text
