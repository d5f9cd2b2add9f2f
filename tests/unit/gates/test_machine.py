"""Anything may happen to a gate, in any order: nobody passes while it is closed, nobody is forgotten when it opens."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.errors import ConfigurationError, StorageUnreachable
from coordinator.gates import state as rules
from coordinator.gates.gate import Gate, Release
from coordinator.gates.state import GateState
from coordinator.realtime.bus import RESYNC, LocalBus, Notification
from coordinator.testing.clock import ManualClock
from coordinator.testing.gates import MemoryGateStore

TOPIC = "gate:test-gate"
WORKERS = 4
THEN = st.sampled_from([0.0, 0.0, 0.0, 3.1, 70.0, 140.0])


class Push(LocalBus):
    connected = True

    @property
    def is_connected(self) -> bool:
        return self.connected


class GateMachine(RuleBasedStateMachine):
    """Workers wait at a gate behind a bus and a store that both misbehave."""

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock, self.bus, self.own = ManualClock(), Push(), LocalBus()
        self.store = MemoryGateStore(clock=self.clock)
        self.cut = False
        self.held: asyncio.Event | None = None
        self.store.before_read, self.store.after_read = self.maybe_cut, self.maybe_hold  # type: ignore[method-assign]
        # (from when, what) was stored; the machine's own record, apart from what gates believe
        self.history: list[tuple[float, GateState]] = [(self.clock.time(), GateState(name="test-gate"))]
        self.operator = Gate(self.store, identity="operator", bus=lambda: self.own, clock=self.clock)
        self.gates = [
            Gate(
                self.store,
                identity=f"worker-{number}",
                bus=lambda: self.bus,
                clock=self.clock,
                rng=random.Random(seed + number),
            )
            for number in range(WORKERS)
        ]
        self.waits: list[tuple[float, asyncio.Task[Release]]] = []
        self.reachable_since = self.hub_since = self.clock.time()
        self.receipts: list[list[int]] = [[] for _ in self.gates]
        for number, gate in enumerate(self.gates):
            gate.on_pass = lambda release, number=number: self.receipts[number].append(release.epoch)
            self.waits.append((self.clock.time(), self.loop.create_task(gate.wait())))
        self.settle()

    # --- what the world does ------------------------------------------------------------------------------------

    async def maybe_cut(self) -> None:
        if self.cut:
            raise StorageUnreachable("cut off")

    async def maybe_hold(self) -> None:
        if self.held is not None:
            await self.held.wait()

    def settle(self) -> None:
        self.loop.run_until_complete(self.clock.settle())

    def change(self, call: Any, told: bool) -> None:
        """The operator has a way of his own to storage."""
        cut, held, self.cut, self.held = self.cut, self.held, False, None
        try:
            state = self.loop.run_until_complete(call)
        except ConfigurationError:
            return
        finally:
            self.cut, self.held = cut, held
        if state != self.history[-1][1]:
            self.history.append((self.clock.time(), state))
        if told:
            self.tell(state.epoch)

    def tell(self, epoch: int) -> None:
        if self.bus.connected:
            self.bus.deliver(Notification(TOPIC, epoch=epoch))
        self.settle()

    @rule(told=st.booleans(), share=st.sampled_from([0.25, 0.5, 1.0, 1.0]), then=THEN)
    def open(self, told: bool, share: float, then: float) -> None:
        self.change(self.operator.open(by="olga", share=share), told)
        self.some_time_passes(then)

    @rule(told=st.booleans(), seconds=st.floats(0.5, 90), lasting=st.none() | st.floats(1, 90))
    def arm(self, told: bool, seconds: float, lasting: float | None) -> None:
        at = self.clock.time() + seconds
        self.change(self.operator.open(by="olga", at=at, until=lasting and at + lasting), told)

    @rule(told=st.booleans(), then=THEN)
    def close(self, told: bool, then: float) -> None:
        self.change(self.operator.close(by="olga"), told)
        self.some_time_passes(then)

    @rule(told=st.booleans(), seconds=st.none() | st.floats(1, 90))
    def extend(self, told: bool, seconds: float | None) -> None:
        self.change(self.operator.extend(by="olga", until=seconds and self.clock.time() + seconds), told)

    @rule(epoch=st.integers(0, 99))
    def lie(self, epoch: int) -> None:
        self.tell(epoch)

    @rule(connected=st.booleans(), told=st.booleans())
    def cut_or_mend_the_hub(self, connected: bool, told: bool) -> None:
        """Not told: the push died in silence, and still says it is alive."""
        if not told:
            return
        self.bus.connected = connected
        self.hub_since = self.clock.time()
        self.bus.deliver(Notification(RESYNC))
        self.settle()

    @precondition(lambda self: self.held is None)
    @rule()
    def cut_storage(self) -> None:
        self.cut = True

    @precondition(lambda self: self.cut)
    @rule()
    def mend_storage(self) -> None:
        self.cut = False
        self.reachable_since = self.clock.time()

    @precondition(lambda self: self.held is None and not self.cut)
    @rule()
    def hold_answers(self) -> None:
        self.held = asyncio.Event()

    @precondition(lambda self: self.held is not None)
    @rule()
    def let_answers_go(self) -> None:
        assert self.held is not None
        self.held.set()
        self.held = None
        self.reachable_since = self.clock.time()
        self.settle()

    @rule(seconds=st.floats(0.01, 5))
    def some_time_passes(self, seconds: float) -> None:
        self.loop.run_until_complete(self.clock.advance(seconds))

    @rule(number=st.integers(0, WORKERS - 1))
    def come_again(self, number: int) -> None:
        _, task = self.waits[number]
        if task.done():
            self.waits[number] = (self.clock.time(), self.loop.create_task(self.gates[number].wait()))
            self.settle()

    # --- what must hold -----------------------------------------------------------------------------------------

    @invariant()
    def nobody_passed_a_closed_gate(self) -> None:
        for gate, (came, task) in zip(getattr(self, "gates", []), getattr(self, "waits", []), strict=True):
            if not task.done():
                continue
            release = task.result()
            starts = {state.epoch: (moment, state) for moment, state in self.history}
            moment, state = starts[release.epoch]
            assert rules.admits(state, gate.identity, release.passed_at), (release, state)
            over = next((then for then, later in self.history if later.epoch > release.epoch), float("inf"))
            # What storage said after this worker came, and (a set time aside) what it said just now.
            assert over >= came, (release, "was over before the worker came")
            if self.held or self.cut:
                continue
            if release.source == "clock":
                if state.not_before is not None and self.reachable_since < over:
                    assert over >= state.not_before - 2.001, (release, "was closed well before its time")
                continue
            if self.reachable_since < moment:
                assert over >= release.passed_at, (release, "was over before the pass")

    @invariant()
    def nobody_is_forgotten(self) -> None:
        if getattr(self, "held", None) is not None or getattr(self, "cut", True):
            return
        now = self.clock.time()
        since, state = self.history[-1]
        for gate, (came, task) in zip(self.gates, self.waits, strict=True):
            if task.done() or not rules.admits(state, gate.identity, now):
                continue
            waited = now - max(since, state.opened_at, came, self.reachable_since)
            # The interval that held when the wait began may have been the long one.
            assert waited <= 66.0, (gate.identity, waited, state)
            if not self.bus.connected and state.not_before is None:
                assert min(waited, now - self.hub_since) <= 3.0, (gate.identity, waited, state)

    @invariant()
    def everybody_passes_once_for_each_epoch(self) -> None:
        for receipts in getattr(self, "receipts", []):
            assert receipts == sorted(set(receipts))

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        if self.held is not None:
            self.held.set()
        for _, task in self.waits:
            task.cancel()
        self.loop.run_until_complete(
            asyncio.gather(*(task for _, task in self.waits), return_exceptions=True)
        )
        self.settle()
        self.loop.close()


TestGateMachine = GateMachine.TestCase
TestGateMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
