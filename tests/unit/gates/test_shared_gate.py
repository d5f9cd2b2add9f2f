"""One gate object used by many tasks at a time, while answers are slow or lost."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import hypothesis.strategies as st
from hypothesis import given, settings

from coordinator.errors import GateTimeout, StorageError
from coordinator.gates import state as rules
from coordinator.gates.gate import Gate
from coordinator.gates.state import GateState
from coordinator.realtime.bus import LocalBus
from coordinator.testing.clock import ManualClock
from coordinator.testing.faults import BUSY_COMMITTED, DROP_ANSWER, FaultyStore, answer_delayed
from coordinator.testing.gates import MemoryGateStore
from tests.unit.gates.test_gate import PushBus


class Record(MemoryGateStore):
    """Remembers what was stored from when on."""

    def __init__(self, *, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.history: list[tuple[float, GateState]] = []

    async def after_write(self) -> None:
        assert self.state is not None
        self.history.append((self._clock.monotonic(), self.state))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    slow=st.floats(0.0, 3.0),
    rate=st.sampled_from([0.0, 0.1, 0.3]),
    push=st.booleans(),
)
def test_nobody_passes_what_was_not_open_and_nobody_is_stuck_however_slow_the_answers(
    seed: int, slow: float, rate: float, push: bool
) -> None:
    """Tasks of one object wait, pass, give up, open and close; another object's operator does, too."""

    async def play() -> None:
        clock, rng, bus = ManualClock(), random.Random(seed), PushBus() if push else LocalBus()
        record = Record(clock=clock)
        store = FaultyStore(record, clock=clock)
        store.always(answer_delayed(slow))
        store.at_random(rate, seed=seed, faults=(DROP_ANSWER, BUSY_COMMITTED, answer_delayed(6.0)))
        shared, other = (
            Gate(store, identity=identity, bus=lambda: bus, clock=clock, rng=random.Random(seed))
            for identity in ("worker", "operator")
        )
        passed = 0

        async def worker() -> None:
            nonlocal passed
            for _ in range(4):
                came = clock.monotonic()
                with suppress(GateTimeout):
                    release = await shared.wait(timeout=rng.choice([None, None, 20.0]))
                    passed += 1
                    began = next(at for at, state in record.history if state.epoch == release.epoch)
                    over = next(
                        (at for at, state in record.history if state.epoch > release.epoch), float("inf")
                    )
                    state = next(state for _, state in record.history if state.epoch == release.epoch)
                    assert rules.admits(state, "worker", release.passed_at)
                    assert began <= clock.monotonic()
                    assert over >= came, "it was closed before this task came"
                await clock.sleep(rng.uniform(0.0, 10.0))

        async def operator(gate: Gate) -> None:
            for _ in range(5):
                await clock.sleep(rng.uniform(0.0, 15.0))
                with suppress(StorageError):
                    await rng.choice([gate.open, gate.close])(by="olga")

        workers = [asyncio.ensure_future(worker()) for _ in range(5)]
        quitter = asyncio.ensure_future(worker())
        operators = [asyncio.ensure_future(operator(gate)) for gate in (shared, shared, other)]
        await clock.advance(rng.uniform(0.0, 30.0))
        quitter.cancel()
        for _ in range(3):
            await clock.advance(60)
        assert all(task.done() for task in operators)
        store.heal()
        opening = asyncio.ensure_future(other.open(by="olga"))
        await clock.advance(400)
        assert (await opening).epoch == record.history[-1][1].epoch
        assert all(task.done() for task in workers), "the gate is open, and somebody waits"
        await asyncio.gather(*workers, *operators)
        with suppress(asyncio.CancelledError):
            await quitter
        assert passed
        epochs = [state.epoch for _, state in record.history]
        assert epochs == sorted(set(epochs))
        assert (shared.waiting, shared.inside, shared._watchers, shared._follower) == (0, 0, 0, None)

    asyncio.run(play())


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), slow=st.floats(0.0, 3.0))
def test_a_close_is_complete_only_when_all_tasks_of_the_object_are_outside(seed: int, slow: float) -> None:
    async def play() -> None:
        clock, rng, bus = ManualClock(), random.Random(seed), LocalBus()
        store = FaultyStore(MemoryGateStore(clock=clock), clock=clock)
        store.always(answer_delayed(slow))
        gate = Gate(store, identity="worker", bus=lambda: bus, clock=clock, rng=random.Random(seed))
        inside = 0

        async def work() -> None:
            nonlocal inside
            async with gate.passing():
                inside += 1
                await clock.sleep(rng.uniform(0.0, 20.0))
                inside -= 1

        working = [asyncio.ensure_future(work()) for _ in range(6)]

        async def close() -> None:
            await gate.open(by="olga")
            await clock.sleep(rng.uniform(0.0, 15.0))
            await gate.close(by="olga")
            await gate.wait_leashed()
            assert inside == 0

        closing = asyncio.ensure_future(close())
        await clock.advance(120)
        await closing
        reopening = asyncio.ensure_future(gate.open(by="olga"))
        await clock.advance(120)
        await asyncio.gather(reopening, *working)
        assert (inside, gate.inside) == (0, 0)

    asyncio.run(play())
