"""One election object used by many tasks, and one for each of two nodes, while answers are slow or lost."""

from __future__ import annotations

import asyncio
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from coordinator.errors import KennelError
from coordinator.leadership.election import Election
from coordinator.leadership.term import Term
from coordinator.realtime.bus import LocalBus
from coordinator.testing.faults import BUSY_COMMITTED, DROP_ANSWER, Fault, FaultyStore, answer_delayed
from tests.unit.leadership.candidates import Candidates
from tests.unit.leadership.test_election import Push

CUT = Fault("cut off", committed=False, answer="close")


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    slow=st.floats(0.0, 2.4),
    rate=st.sampled_from([0.0, 0.05, 0.15]),
    push=st.booleans(),
)
def test_two_never_act_and_nobody_is_stuck_however_slow_the_answers(
    seed: int, slow: float, rate: float, push: bool
) -> None:
    async def play() -> None:
        candidates, rng = Candidates(), random.Random(seed)
        bus = Push() if push else LocalBus()
        stores = [FaultyStore(candidates.store, clock=candidates.clock) for _ in range(2)]
        slowed = answer_delayed(slow)

        def slow_down(store: FaultyStore) -> None:
            store.always(slowed)
            store.at_random(rate, seed=seed, faults=(DROP_ANSWER, BUSY_COMMITTED, answer_delayed(4.0)))

        shared = [
            Election(
                store,
                identity=f"node-{number}",
                bus=lambda: bus,
                clock=candidates.clock,
                rng=random.Random(seed + number),
            )
            for number, store in enumerate(stores)
        ]
        acting: list[Term] = []
        epochs: list[int] = []

        async def lead(term: Term) -> None:
            # Who has begun is not to be met by anybody who still may act.
            assert not [each for each in acting if each.held]
            assert not epochs or term.epoch > epochs[-1]
            acting.append(term)
            epochs.append(term.epoch)
            try:
                await asyncio.Event().wait()
            finally:
                acting.remove(term)

        running = [asyncio.ensure_future(election.run(lead)) for election in shared for _ in range(3)]
        refused = [run for run in running if run not in (running[0], running[3])]
        await candidates.clock.advance(1)
        assert all(isinstance(run.exception(), KennelError) for run in refused)
        for _ in range(6):
            for store in stores:
                slow_down(store)
            await candidates.clock.advance(rng.uniform(0.0, 40.0))
            if rng.random() < 0.5:
                cut = rng.choice(stores)
                cut.heal()
                cut.always(CUT)
                await candidates.clock.advance(rng.uniform(0.0, 25.0))
                continue
            # Many ask at the same moment; it is one stepping down.
            for election in rng.sample(shared, rng.randint(0, 2)):
                for _ in range(3):
                    election.step_down()
        for store in stores:
            store.heal()
        await candidates.clock.advance(60)
        assert len([term for term in acting if term.held]) == 1, "nobody leads though storage answers"
        alive = [running[0], running[3]]
        for run in alive:
            run.cancel()
            await candidates.clock.advance(rng.uniform(0.0, 3.0))
            run.cancel()
        await candidates.clock.advance(30)
        assert all(run.cancelled() for run in alive)
        assert acting == []
        assert not candidates.store._is_leased, "the lease was left taken"

    asyncio.run(play())


async def test_an_object_may_run_again_when_its_run_has_ended(candidates: Candidates) -> None:
    election = candidates.election("node-1")

    async def once(term: Term) -> int:
        return term.epoch

    assert [await election.run(once) for _ in range(3)] == [1, 2, 3]
    running = candidates.campaign(election)
    await candidates.clock.advance(1)
    with pytest.raises(KennelError, match="runs already in this object"):
        await election.run(once)
    assert not running.done()
