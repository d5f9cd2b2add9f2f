"""Anything may happen to an election, in any order: two never hold it, epochs only grow, somebody leads in the end."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coordinator.errors import StorageUnreachable
from coordinator.leadership.election import Election
from coordinator.leadership.lease import LeaderInfo, Successor
from coordinator.leadership.term import Term
from coordinator.realtime.bus import LocalBus, Notification
from coordinator.testing.clock import ManualClock
from coordinator.testing.leadership import MemoryLeaseStore

NODES = 3
number = st.integers(0, NODES - 1)
THEN = st.sampled_from([0.0, 0.3, 1.0, 4.0, 9.0, 14.0, 21.0])


class Push(LocalBus):
    @property
    def is_connected(self) -> bool:
        return True


class NodeConnection:
    """One node's way to the shared lease: it may be cut, or lose the answer after the request was carried out."""

    def __init__(self, store: MemoryLeaseStore) -> None:
        self.name = store.name
        self.cut = False
        self.lose_answers = 0
        self._store = store

    async def _send(self, call: Any) -> Any:
        if self.cut:
            raise StorageUnreachable("cut off")
        answer = await call()
        if self.lose_answers:
            self.lose_answers -= 1
            raise StorageUnreachable("the answer was lost", maybe_done=True)
        return answer

    async def acquire(self, lease_id: str, lease_seconds: int) -> None:
        await self._send(lambda: self._store.acquire(lease_id, lease_seconds))

    async def renew(self, lease_id: str) -> None:
        await self._send(lambda: self._store.renew(lease_id))

    async def change(self, lease_id: str, successor_id: str) -> None:
        await self._send(lambda: self._store.change(lease_id, successor_id))

    async def release(self, lease_id: str, *, etag: str = "") -> None:
        await self._send(lambda: self._store.release(lease_id, etag=etag))

    async def break_now(self) -> None:
        await self._send(lambda: self._store.break_now())

    async def read(self) -> LeaderInfo:
        info: LeaderInfo = await self._send(self._store.read)
        return info

    async def write(self, info: LeaderInfo, *, lease_id: str = "", etag: str = "") -> str:
        written: str = await self._send(lambda: self._store.write(info, lease_id=lease_id, etag=etag))
        return written

    async def nominate(self, nominee: Successor) -> None:
        await self._send(lambda: self._store.nominate(nominee))

    async def nominee(self) -> Successor | None:
        found: Successor | None = await self._send(self._store.nominee)
        return found


class ElectionMachine(RuleBasedStateMachine):
    """Nodes that campaign, crash, are cut off and lose answers."""

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock, self.bus, self.rng = ManualClock(), Push(), random.Random(seed)
        self.store = MemoryLeaseStore(clock=self.clock)
        self.lines = [NodeConnection(self.store) for _ in range(NODES)]
        self.terms: list[Term] = []
        self.acting: set[int] = set()
        self.well_since = self.clock.monotonic()
        self.elections: list[Election] = []
        self.runs = [self.start(index) for index in range(NODES)]
        self.pass_time(0.0)

    def start(self, index: int) -> asyncio.Task[object]:
        election = Election(
            self.lines[index],
            identity=f"node-{index}",
            bus=lambda: self.bus,
            clock=self.clock,
            rng=random.Random(self.rng.random()),
        )
        self.elections[index : index + 1] = [election]
        return self.loop.create_task(election.run(self.lead))

    async def lead(self, term: Term) -> None:
        self.terms.append(term)
        self.acting.add(term.epoch)
        try:
            await asyncio.Event().wait()
        finally:
            self.acting.discard(term.epoch)

    def pass_time(self, seconds: float) -> None:
        async def step() -> None:
            # In small steps, to look at every moment in between.
            left = seconds
            while left > 0:
                await self.clock.advance(min(left, 0.5))
                left -= 0.5
                self.two_never_hold_it()
            await self.clock.settle()

        self.loop.run_until_complete(step())

    def unwell(self) -> None:
        self.well_since = self.clock.monotonic()

    @rule(index=number, cut=st.booleans(), then=THEN)
    def cut_or_mend(self, index: int, cut: bool, then: float) -> None:
        self.lines[index].cut = cut
        self.unwell()
        self.pass_time(then)

    @rule(index=number, answers=st.integers(1, 3), then=THEN)
    def lose_answers(self, index: int, answers: int, then: float) -> None:
        self.lines[index].lose_answers = answers
        self.unwell()
        self.pass_time(then)

    @rule(index=number, then=THEN)
    def step_down(self, index: int, then: float) -> None:
        if self.elections[index].step_down():
            self.unwell()
        self.pass_time(then)

    @rule(index=number, then=THEN)
    def stop_and_start(self, index: int, then: float) -> None:
        self.runs[index].cancel()
        self.pass_time(3.0)
        while not self.runs[index].done():
            self.pass_time(5.0)
        self.runs[index] = self.start(index)
        self.unwell()
        self.pass_time(then)

    @rule(index=number, then=THEN)
    def stop_dead(self, index: int, then: float) -> None:
        """kill -9: nothing of it runs any more, and its lease stays."""
        line, self.lines[index] = self.lines[index], NodeConnection(self.store)
        line.cut = True
        self.runs[index].cancel()
        while not self.runs[index].done():
            self.pass_time(1.0)
        self.runs[index] = self.start(index)
        self.unwell()
        self.pass_time(then)

    @rule(then=THEN)
    def hint(self, then: float) -> None:
        self.bus.deliver(Notification("election:test-election"))
        self.pass_time(then)

    @rule(then=THEN)
    def nothing(self, then: float) -> None:
        self.pass_time(then)

    @invariant()
    def two_never_hold_it(self) -> None:
        held = [term for term in getattr(self, "terms", []) if term.held]
        assert len(held) <= 1, held

    @invariant()
    def whoever_holds_it_has_the_lease(self) -> None:
        for term in getattr(self, "terms", []):
            if term.held:
                assert self.store.holder_id == term.lease_id
                assert self.store._is_leased

    @invariant()
    def whoever_acts_holds_it(self) -> None:
        held = {term.epoch for term in getattr(self, "terms", []) if term.held}
        assert getattr(self, "acting", set()) <= held

    @invariant()
    def epochs_only_grow(self) -> None:
        epochs = [term.epoch for term in getattr(self, "terms", [])]
        assert epochs == sorted(set(epochs))

    @invariant()
    def somebody_leads_in_the_end(self) -> None:
        if not hasattr(self, "lines") or any(line.cut for line in self.lines):
            return
        # A lease that nobody uses, the longest time between two checks, and the pause after stepping down.
        if self.clock.monotonic() - self.well_since > 15 + 21 + 15:
            assert any(term.held for term in self.terms)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        for run in self.runs:
            run.cancel()
        ending = asyncio.gather(*self.runs, return_exceptions=True)
        while not ending.done():
            self.loop.run_until_complete(self.clock.advance(30))
        self.loop.close()


TestElectionMachine = ElectionMachine.TestCase
TestElectionMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
