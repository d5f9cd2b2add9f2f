"""What a gate does with a state that a push brings, and what it finds when it compares the push with storage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator import metrics
from coordinator.errors import StorageUnreachable
from coordinator.gates import state as rules
from coordinator.gates.gate import Gate, GateConfig, Release
from coordinator.gates.state import GateState
from coordinator.realtime.bus import LocalBus, Notification
from coordinator.testing.clock import ManualClock
from coordinator.testing.gates import MemoryGateStore
from tests.unit.gates.test_gate import PushBus

TOPIC = "gate:test-gate"
DISPROVED = "kennel.gate.pushes.disproved"


class Fleet:
    """Workers at one gate behind a hub, and an operator whose changes only the test passes on."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.hub = PushBus()
        self.store = MemoryGateStore(clock=self.clock)
        self.operator = self.gate("operator", LocalBus())
        self.kept: list[asyncio.Task[None]] = []
        self.waiting: list[asyncio.Task[Release]] = []

    def gate(self, identity: str, bus: LocalBus | None = None, config: GateConfig | None = None) -> Gate:
        return Gate(
            self.store,
            identity=identity,
            bus=lambda: bus or self.hub,
            clock=self.clock,
            config=config,
            rng=random.Random(7),
            keep=lambda task: self.kept.append(task),
        )

    async def worker(self, identity: str = "worker-1", config: GateConfig | None = None) -> Gate:
        """A worker that waits at the gate, and has read it."""
        gate = self.gate(identity, config=config)
        self.waiting.append(asyncio.ensure_future(gate.wait()))
        await self.clock.advance(0.1)
        return gate

    async def push(self, state: GateState) -> None:
        await self.hub.publish(Notification(TOPIC, epoch=state.epoch, state=rules.encode(state)))
        await self.clock.settle()

    async def end(self) -> None:
        for task in (*self.waiting, *self.kept):
            task.cancel()
        await asyncio.gather(*self.waiting, *self.kept, return_exceptions=True)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    made = Fleet()
    yield made
    await made.end()


def false_state(epoch: int, name: str = "test-gate") -> GateState:
    return GateState(name=name, epoch=epoch, state="open", by="mallory", recent=("never-stored",))


def nonced(epoch: int) -> GateState:
    return msgspec.structs.replace(false_state(epoch), recent=(f"never-stored-{epoch}",))


async def test_a_pushed_opening_is_passed_without_a_read_and_verified_within_the_time(fleet: Fleet) -> None:
    gates = [await fleet.worker(f"worker-{index}") for index in range(20)]
    opened = await fleet.operator.open(by="olga")
    reads = fleet.store.reads
    await fleet.push(opened)
    assert [task.result().source for task in fleet.waiting] == ["push"] * 20
    await fleet.clock.advance(0.99)
    assert fleet.store.reads == reads
    await fleet.clock.advance(59.02)
    assert fleet.store.reads == reads + 20
    assert {gate.status().disproved for gate in gates} == {0}
    assert {gate.problem for gate in gates} == {""}


async def test_nothing_but_the_pass_happens_at_once_and_nothing_after_the_storage_was_closed(
    fleet: Fleet,
) -> None:
    for index in range(3):
        await fleet.worker(f"worker-{index}")
    before = asyncio.all_tasks()
    await fleet.push(await fleet.operator.open(by="olga"))
    assert all(task.done() for task in fleet.waiting)
    assert not {task.get_name() for task in asyncio.all_tasks() - before if "verify" in task.get_name()}
    for task in fleet.kept:  # as `Storage.aclose` does
        task.cancel()
    await fleet.clock.advance(3600)
    assert not {task.get_name() for task in asyncio.all_tasks() if "gate test-gate" in task.get_name()}


async def test_who_waits_again_at_once_follows_a_gate_that_was_just_left(fleet: Fleet) -> None:
    gate = await fleet.worker()
    await fleet.push(await fleet.operator.open(by="olga"))
    await fleet.operator.close(by="olga")
    fleet.waiting.append(asyncio.ensure_future(gate.wait()))
    await fleet.clock.advance(1)
    assert not fleet.waiting[1].done()
    await fleet.push(await fleet.operator.open(by="olga"))
    assert fleet.waiting[1].result().epoch == 3


async def test_no_read_follows_a_push_soon_although_the_moment_of_an_earlier_one_comes(fleet: Fleet) -> None:
    gates = [await fleet.worker(f"worker-{index}") for index in range(60)]
    await fleet.push(await fleet.operator.open(by="olga"))
    await fleet.push(await fleet.operator.close(by="olga"))
    await fleet.clock.advance(1)
    for gate in gates:  # each waits again, and reads
        fleet.waiting.append(asyncio.ensure_future(gate.wait()))
    await fleet.clock.advance(10)
    await fleet.push(await fleet.operator.open(by="olga"))
    assert all(task.done() for task in fleet.waiting)
    reads = fleet.store.reads
    await fleet.clock.advance(1.4)
    assert fleet.store.reads == reads
    await fleet.clock.advance(58.6)
    assert fleet.store.reads == reads + 60
    assert not any(gate._cache.unverified for gate in gates)


class LargeFleetBus(PushBus):
    """The bus of a fleet of ten thousand."""

    safety_poll_seconds = 300.0


async def test_a_worker_of_a_large_fleet_waits_for_at_most_twelve_requests_an_hour(fleet: Fleet) -> None:
    gate = fleet.gate("worker-1", LargeFleetBus())
    fleet.waiting.append(asyncio.ensure_future(gate.wait()))
    await fleet.clock.advance(1)
    reads = fleet.store.reads
    await fleet.clock.advance(3600)
    assert 10 <= fleet.store.reads - reads <= 12


async def test_verifying_reads_are_spread_over_the_time(fleet: Fleet) -> None:
    for index in range(60):
        await fleet.worker(f"worker-{index}")
    await fleet.push(await fleet.operator.open(by="olga"))
    reads, most = fleet.store.reads, 0
    for _ in range(60):
        before = fleet.store.reads
        await fleet.clock.advance(1)
        most = max(most, fleet.store.reads - before)
    assert fleet.store.reads == reads + 60
    assert most <= 6


async def test_a_push_of_what_storage_does_not_have_is_noticed_and_reported(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    gate = await fleet.worker()
    await fleet.push(false_state(5))
    assert fleet.waiting[0].done()
    assert gate.is_open()
    await fleet.clock.advance(60)
    assert not gate.is_open()
    assert gate.state is not None
    assert gate.state.epoch == 0
    assert gate.status().disproved == 1
    assert "a push said epoch 5, open, which storage does not have" in gate.status().problem
    assert [record.levelname for record in caplog.records if "push said" in record.getMessage()] == ["ERROR"]
    await fleet.operator.open(by="olga")
    await gate.read()
    assert gate.problem == ""


async def test_every_worker_of_a_fleet_reports_a_false_push_in_its_metrics_and_follows_storage(
    fleet: Fleet,
) -> None:
    gates = [await fleet.worker(f"worker-{index}") for index in range(20)]
    await fleet.push(false_state(5))
    assert all(task.done() for task in fleet.waiting)
    await fleet.clock.advance(60)
    assert [gate.is_open() for gate in gates] == [False] * 20
    counted = [sample.value for sample in metrics.samples(gates) if sample.metric.name == DISPROVED]
    assert sum(counted) == 20


async def test_a_true_push_does_not_hide_the_false_one_before_it(fleet: Fleet) -> None:
    gate = await fleet.worker()
    await fleet.push(false_state(1))
    await fleet.operator.open(by="olga")
    closed = await fleet.operator.close(by="olga")
    await fleet.push(closed)
    await fleet.clock.advance(60)
    assert gate.status().disproved == 1
    assert gate.state == closed


async def test_a_push_with_the_nonce_of_an_earlier_state_is_not_believed(fleet: Fleet) -> None:
    await fleet.operator.open(by="olga")
    closed = await fleet.operator.close(by="olga")
    await fleet.worker()
    reads = fleet.store.reads
    await fleet.push(msgspec.structs.replace(closed, state="open", epoch=closed.epoch + 1))
    assert not fleet.waiting[0].done()
    assert fleet.store.reads == reads + 1


async def test_many_pushes_that_are_not_verified_yet_cause_a_read(fleet: Fleet) -> None:
    gate = fleet.gate("worker-1")
    async with gate.watch():
        await fleet.clock.advance(0.1)
        reads = fleet.store.reads
        for epoch in range(1, 9):
            await fleet.push(nonced(epoch))
        assert fleet.store.reads == reads
        await fleet.push(nonced(9))
        assert fleet.store.reads == reads + 1
        assert gate.status().disproved == 8
        assert not gate.is_open()


async def test_a_real_change_of_the_same_epoch_shows_that_a_push_was_false(fleet: Fleet) -> None:
    gate = await fleet.worker()
    await fleet.push(false_state(1))
    await fleet.operator.close(by="olga", reason="never")
    await fleet.clock.advance(60)
    assert gate.status().disproved == 1
    assert not gate.is_open()


@pytest.mark.parametrize("later", [1, 7, 20])
async def test_a_true_push_that_later_changes_overtook_is_no_false_one(fleet: Fleet, later: int) -> None:
    gate = await fleet.worker()
    opened = await fleet.operator.open(by="olga")
    await fleet.push(opened)
    for index in range(later):
        await (fleet.operator.open if index % 2 else fleet.operator.close)(by="olga")
    await fleet.clock.advance(60)
    assert gate.status().disproved == 0
    assert gate.state is not None
    assert gate.state.epoch == opened.epoch + later


async def test_an_answer_that_was_asked_for_before_the_push_does_not_undo_it(fleet: Fleet) -> None:
    answered = asyncio.Event()

    async def late() -> None:
        await answered.wait()

    gate = await fleet.worker()
    await fleet.operator.read()
    fleet.store.after_read = late  # type: ignore[method-assign]
    reading = asyncio.ensure_future(gate.read())
    await fleet.clock.settle()
    opened = await fleet.operator.open(by="olga")
    await fleet.push(opened)
    answered.set()
    await reading
    assert gate.state == opened
    assert gate.is_open()
    await fleet.clock.advance(60)
    assert gate.status().disproved == 0


async def test_a_pushed_close_holds_the_next_worker(fleet: Fleet) -> None:
    await fleet.operator.open(by="olga")
    gate = fleet.gate("worker-1")
    async with gate.watch():
        await fleet.clock.advance(1)
        assert gate.is_open()
        await fleet.push(await fleet.operator.close(by="olga"))
        assert not gate.is_open()


async def test_a_fleet_that_trusts_no_push_reads_before_it_passes(fleet: Fleet) -> None:
    await fleet.worker(config=GateConfig(trust_push=False))
    reads = fleet.store.reads
    await fleet.push(false_state(5))
    assert not fleet.waiting[0].done()
    assert fleet.store.reads == reads + 1


@pytest.mark.parametrize("stored", ["", "{", '{"epoch": -1}', "x" * 20_000])
async def test_what_is_no_state_only_causes_a_read(fleet: Fleet, stored: str) -> None:
    await fleet.worker()
    reads = fleet.store.reads
    await fleet.hub.publish(Notification(TOPIC, epoch=3, state=stored))
    await fleet.clock.settle()
    assert not fleet.waiting[0].done()
    assert fleet.store.reads == reads + 1


async def test_a_change_by_one_who_knows_the_gate_from_a_push_reads_it_first(fleet: Fleet) -> None:
    gate = await fleet.worker()
    await fleet.push(false_state(5))
    closed = await gate.close(by="olga")
    assert (closed.state, closed.epoch) == ("closed", 0)
    assert gate.status().disproved == 1


async def test_storage_that_is_away_is_asked_again_until_the_push_is_verified(fleet: Fleet) -> None:
    async def away() -> None:
        raise StorageUnreachable("storage is away", resource="test-gate")

    gate = await fleet.worker()
    opened = await fleet.operator.open(by="olga")
    fleet.store.before_read = away  # type: ignore[method-assign]
    await fleet.push(opened)
    await fleet.clock.advance(120)
    assert gate.is_open()
    del fleet.store.before_read
    reads = fleet.store.reads
    await fleet.clock.advance(60)
    assert fleet.store.reads > reads
    assert all(task.done() for task in fleet.kept)
    assert gate.status().disproved == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 11), min_size=1, max_size=30), st.lists(st.booleans(), max_size=30))
def test_pushes_late_twice_or_out_of_order_never_take_a_gate_back(
    order: list[int], reads: list[bool]
) -> None:
    async def play() -> None:
        fleet = Fleet()
        history: list[GateState] = []
        for index in range(12):
            change = fleet.operator.close if index % 2 else fleet.operator.open
            history.append(await change(by="olga"))
        gate = fleet.gate("worker-1")
        async with gate.watch():
            await fleet.clock.settle()
            newest = gate.state
            assert newest == history[-1]
            for index, epoch in enumerate(order):
                await fleet.push(history[epoch])
                assert gate.state == newest
                if reads[index : index + 1] == [True]:
                    newest = await fleet.operator.open(by="olga", share=1.0)
                    if newest.epoch == history[-1].epoch:
                        newest = await fleet.operator.close(by="olga")
                    history.append(newest)
                    await fleet.push(newest)
                    assert gate.state == newest
        await fleet.clock.advance(60)
        assert gate.status().disproved == 0
        await fleet.end()

    asyncio.run(play())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["change", "silent", "lie", "rest"]), min_size=1, max_size=12))
def test_whatever_is_pushed_storage_is_followed_and_each_lie_that_was_believed_is_counted(
    acts: list[str],
) -> None:
    async def play() -> None:
        fleet = Fleet()
        gate = fleet.gate("worker-1")
        stored, lies = GateState(name="test-gate"), 0
        async with gate.watch():
            await fleet.clock.advance(0.1)
            for number, act in enumerate(acts):
                match act:
                    case "rest":
                        await fleet.clock.advance(61)
                    case "lie":
                        assert gate.state is not None
                        lie = nonced(gate.state.epoch + 1)
                        await fleet.push(msgspec.structs.replace(lie, recent=(f"lie-{number}",)))
                        lies += gate.state.recent[:1] == (f"lie-{number}",)
                    case _:
                        change = fleet.operator.open if stored.state == "closed" else fleet.operator.close
                        stored = await change(by="olga")
                        if act == "change":
                            await fleet.push(stored)
            await fleet.clock.advance(130)
            assert gate.state is not None
            assert gate.state.epoch == stored.epoch
            assert gate.is_open() == (stored.state == "open")
            # Of a lie that eight changes followed before the read, storage has forgotten whether it was one.
            if acts.count("change") + acts.count("silent") < 8:
                assert gate.status().disproved == lies
        await fleet.end()

    asyncio.run(play())


async def test_the_moment_of_a_push_that_was_verified_early_brings_no_read_right_after_the_next(
    fleet: Fleet,
) -> None:
    gate = await fleet.worker()
    async with gate.watch():
        opened = await fleet.operator.open(by="olga")
        await fleet.push(opened)
        await fleet.clock.advance(0.3)
        await gate.read()
        moment = 0.25 + random.Random(f"worker-1 test-gate {opened.epoch}").uniform(1.5, 59.75)
        await fleet.clock.advance(moment - 0.3 - 0.1)
        await fleet.push(await fleet.operator.close(by="olga"))
        reads = fleet.store.reads
        await fleet.clock.advance(1.4)
        assert fleet.store.reads == reads
        await fleet.clock.advance(60)
        assert fleet.store.reads > reads
