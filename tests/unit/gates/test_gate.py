"""What a gate promises to those who wait at it, on a clock that tests move."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from coordinator.errors import AccessDenied, ConfigurationError, GateMoved, GateTimeout, StorageUnreachable
from coordinator.gates.gate import Gate, GateConfig, Release
from coordinator.gates.state import GateState
from coordinator.realtime.bus import RESYNC, LocalBus, Notification
from coordinator.testing.clock import ManualClock
from coordinator.testing.gates import MemoryGateStore
from coordinator.testing.leadership import MemoryEpochs

TOPIC = "gate:test-gate"


class PushBus(LocalBus):
    """A bus that says it is connected."""

    connected = True

    @property
    def is_connected(self) -> bool:
        return self.connected


class GateHarness:
    """A gate store, a bus and a clock, and workers at the gate."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.bus = LocalBus()
        self.push = PushBus()
        self.store = MemoryGateStore(clock=self.clock)
        self.operator = self.gate(bus=LocalBus(), identity="operator")
        self.tasks: list[asyncio.Task[Release]] = []

    def gate(self, *, bus: LocalBus | None = None, identity: str = "worker-1") -> Gate:
        return Gate(
            self.store, identity=identity, bus=lambda: bus or self.bus, clock=self.clock, rng=random.Random(7)
        )

    def arrive(self, gate: Gate, timeout: float | None = None) -> asyncio.Task[Release]:
        task = asyncio.ensure_future(gate.wait(timeout))
        self.tasks.append(task)
        return task


@pytest.fixture
async def harness() -> GateHarness:
    return GateHarness()


@pytest.fixture(autouse=True)
async def end_waits(harness: GateHarness) -> Iterator[None]:  # type: ignore[misc]
    yield
    for task in harness.tasks:
        task.cancel()
    await asyncio.gather(*harness.tasks, return_exceptions=True)


async def test_an_open_gate_lets_pass_at_once(harness: GateHarness) -> None:
    await harness.operator.open(by="olga", reason="tickets on sale")
    release = await harness.gate().wait()
    assert (release.gate, release.epoch, release.source) == ("test-gate", 1, "open")


async def test_a_gate_that_nobody_made_holds(harness: GateHarness) -> None:
    waiting = harness.arrive(harness.gate())
    await harness.clock.advance(600)
    assert not waiting.done()


async def test_polling_alone_releases_within_one_interval(harness: GateHarness) -> None:
    waiting = [harness.arrive(harness.gate(identity=f"w{i}")) for i in range(20)]
    await harness.clock.advance(100)
    await harness.operator.open(by="olga")
    await harness.clock.advance(2.5)
    assert [task.result().source for task in waiting] == ["poll"] * 20
    assert max(task.result().delay_seconds for task in waiting) <= 2.5


async def test_a_hint_releases_at_once(harness: GateHarness) -> None:
    waiting = harness.arrive(harness.gate(bus=harness.push))
    await harness.clock.advance(10)
    await harness.operator.open(by="olga")
    await harness.push.publish(Notification(TOPIC, epoch=1))
    await harness.clock.settle()
    assert (waiting.result().source, waiting.result().delay_seconds) == ("push", 0.0)


async def test_a_hint_that_lies_opens_nothing(harness: GateHarness) -> None:
    waiting = harness.arrive(harness.gate(bus=harness.push))
    await harness.clock.advance(10)
    for epoch in range(1, 50):
        await harness.push.publish(Notification(TOPIC, epoch=epoch))
        await harness.clock.settle()
    assert not waiting.done()


async def test_polling_goes_on_while_push_looks_healthy_but_is_dead(harness: GateHarness) -> None:
    """Mistake 9: the bus says it is connected and delivers nothing."""
    waiting = harness.arrive(harness.gate(bus=harness.push))
    await harness.clock.advance(10)
    await harness.operator.open(by="olga")
    await harness.clock.advance(66)
    assert waiting.result().source == "poll"


async def test_waiting_with_push_costs_at_most_60_requests_an_hour(harness: GateHarness) -> None:
    harness.arrive(harness.gate(bus=harness.push))
    await harness.clock.advance(0)
    before = harness.store.reads
    await harness.clock.advance(3600)
    assert 50 <= harness.store.reads - before <= 60


async def test_losing_the_bus_brings_polling_back_within_one_interval(harness: GateHarness) -> None:
    waiting = harness.arrive(harness.gate(bus=harness.push))
    await harness.clock.advance(10)
    harness.push.connected = False
    harness.push.deliver(Notification(RESYNC))
    await harness.clock.advance(20)
    await harness.operator.open(by="olga")
    await harness.clock.advance(2.5)
    assert waiting.done()


async def test_a_release_during_a_cut_is_found_on_reconnect(harness: GateHarness) -> None:
    waiting = harness.arrive(harness.gate(bus=harness.push))
    await harness.clock.advance(10)
    await harness.operator.open(by="olga")  # its hint is lost
    harness.push.deliver(Notification(RESYNC))
    await harness.clock.advance(0.5)
    assert waiting.done()


async def test_an_answer_overtaken_by_a_newer_one_is_not_applied(harness: GateHarness) -> None:
    """Mistake 10: a slow poll that saw the open gate comes in after the news that it was closed."""
    gate = harness.gate()
    await harness.operator.open(by="olga")
    late, go = asyncio.Event(), asyncio.Event()

    async def hold_the_answer() -> None:
        if not late.is_set():
            late.set()
            await go.wait()

    harness.store.after_read = hold_the_answer  # type: ignore[method-assign]
    slow = asyncio.ensure_future(gate.read())
    await late.wait()
    await harness.operator.close(by="olga")
    await gate.read()
    go.set()
    await slow
    assert gate.state is not None
    assert (gate.state.epoch, gate.is_open()) == (2, False)


async def test_a_worker_that_comes_after_the_close_is_held_whatever_was_known_before(
    harness: GateHarness,
) -> None:
    gate = harness.gate(bus=harness.push)
    await harness.operator.open(by="olga")
    async with gate.watch():
        await gate.wait()
        await harness.operator.close(
            by="olga"
        )  # no hint reaches this worker, whose next poll is a minute away
        assert gate.is_open()
        waiting = harness.arrive(gate)
        await harness.clock.settle()
        assert not waiting.done()
        assert not gate.is_open()


async def test_an_armed_gate_opens_by_the_clock_without_storage_or_hub(harness: GateHarness) -> None:
    waiting = [harness.arrive(harness.gate(identity=f"w{i}")) for i in range(20)]
    await harness.operator.open(by="olga", at=harness.clock.time() + 30)
    await harness.clock.advance(29.9)
    assert not any(task.done() for task in waiting)

    async def unreachable() -> None:
        raise StorageUnreachable("cut off")

    harness.store.before_read = unreachable  # type: ignore[method-assign]
    await harness.clock.advance(0.101)
    assert {task.result().source for task in waiting} == {"clock"}
    assert max(task.result().delay_seconds for task in waiting) < 0.002


async def test_a_close_just_before_the_set_time_is_seen_though_its_hint_is_lost(harness: GateHarness) -> None:
    waiting = harness.arrive(harness.gate(bus=harness.push))
    await harness.operator.open(by="olga", at=harness.clock.time() + 100)
    harness.push.deliver(Notification(TOPIC))
    await harness.clock.advance(97)
    await harness.operator.close(by="olga", reason="not yet")
    await harness.clock.advance(10)
    assert not waiting.done()


async def test_an_opening_ends_by_itself(harness: GateHarness) -> None:
    await harness.operator.open(by="olga", until=harness.clock.time() + 60)
    gate = harness.gate()
    await gate.wait()
    assert gate.is_open()
    await harness.clock.advance(60)
    assert not gate.is_open()
    waiting = harness.arrive(gate)
    await harness.clock.advance(60)
    assert not waiting.done()


async def test_a_share_lets_the_same_workers_through_and_widening_adds_to_them(harness: GateHarness) -> None:
    waiting = [harness.arrive(harness.gate(identity=f"w{i}")) for i in range(200)]
    await harness.operator.open(by="olga", share=0.1)
    await harness.clock.advance(3)
    tenth = {number for number, task in enumerate(waiting) if task.done()}
    assert 8 <= len(tenth) <= 36
    await harness.operator.open(by="olga", share=0.5)
    await harness.clock.advance(3)
    half = {number for number, task in enumerate(waiting) if task.done()}
    assert tenth < half
    await harness.operator.open(by="olga")
    await harness.clock.advance(3)
    assert all(task.done() for task in waiting)


async def test_opening_twice_is_one_epoch(harness: GateHarness) -> None:
    first = await harness.operator.open(by="olga")
    assert await harness.operator.open(by="piet") == first
    assert harness.store.writes == 1


async def test_closing_is_a_new_epoch(harness: GateHarness) -> None:
    await harness.operator.open(by="olga")
    closed = await harness.operator.close(by="olga")
    again = await harness.operator.open(by="olga")
    assert (closed.epoch, again.epoch) == (2, 3)


async def test_a_change_whose_answer_was_lost_is_recognised_after_others_wrote(harness: GateHarness) -> None:
    """The opening won, its answer was lost, and somebody closed the gate: retrying must not open it again."""
    rival = harness.gate(bus=LocalBus(), identity="rival")

    async def lose_the_answer() -> None:
        del harness.store.after_write
        await rival.close(by="piet")
        raise StorageUnreachable("connection cut", maybe_done=True)

    harness.store.after_write = lose_the_answer  # type: ignore[method-assign]
    opening = asyncio.ensure_future(harness.operator.open(by="olga"))
    await harness.clock.advance(5)
    assert (await opening).state == "closed"
    assert harness.store.state is not None
    assert (harness.store.state.epoch, harness.store.state.state) == (2, "closed")


async def test_two_operators_at_once_both_get_what_they_asked_for_in_some_order(harness: GateHarness) -> None:
    await harness.operator.open(by="olga", share=0.1)
    changes = asyncio.gather(
        harness.gate(bus=LocalBus()).open(by="olga", share=0.5), harness.gate(bus=LocalBus()).close(by="piet")
    )
    await harness.clock.advance(5)
    states = await changes
    assert sorted(state.epoch for state in states) == [2, 3]


async def test_an_unreachable_store_is_waited_for(harness: GateHarness) -> None:
    async def unreachable() -> None:
        raise StorageUnreachable("connection refused")

    harness.store.before_read = unreachable  # type: ignore[method-assign]
    gate = harness.gate(bus=harness.push)
    waiting = harness.arrive(gate)
    await harness.clock.advance(100)
    assert isinstance(gate.error, StorageUnreachable)
    del harness.store.before_read
    await harness.operator.open(by="olga")
    await harness.clock.advance(2.5)
    assert waiting.done()


async def test_a_wrong_credential_is_told_to_whoever_waits(harness: GateHarness) -> None:
    async def denied() -> None:
        raise AccessDenied("403")

    harness.store.before_read = denied  # type: ignore[method-assign]
    with pytest.raises(AccessDenied):
        await harness.gate().wait()


async def test_a_wait_ends_at_its_timeout(harness: GateHarness) -> None:
    waiting = harness.arrive(harness.gate(), 5)
    await harness.clock.advance(4.9)
    assert not waiting.done()
    await harness.clock.advance(0.2)
    with pytest.raises(GateTimeout, match="test-gate did not open within 5 s"):
        waiting.result()


async def test_a_worker_passes_once_per_epoch(harness: GateHarness) -> None:
    gate = harness.gate()
    receipts: list[int] = []
    gate.on_pass = lambda release: receipts.append(release.epoch)
    await harness.operator.open(by="olga")
    await gate.wait()
    await gate.wait()
    await harness.operator.close(by="olga")
    await harness.operator.open(by="olga")
    await gate.wait()
    assert receipts == [1, 3]


async def test_a_removed_gate_holds_and_a_new_one_of_its_name_releases(harness: GateHarness) -> None:
    gate = harness.gate()
    for _ in range(3):
        await harness.operator.open(by="olga")
        await harness.operator.close(by="olga")
    waiting = harness.arrive(gate)
    await harness.clock.advance(5)
    harness.store.remove()
    await harness.clock.advance(5)
    await harness.operator.open(by="olga")
    await harness.clock.advance(5)
    assert waiting.result().epoch == 7, "above every epoch that was ever seen"


async def test_a_close_is_complete_when_nothing_is_inside(harness: GateHarness) -> None:
    gate, leave = harness.gate(), asyncio.Event()
    await harness.operator.open(by="olga")

    async def work() -> None:
        async with gate.passing():
            await leave.wait()

    working = asyncio.ensure_future(work())
    await harness.clock.settle()
    leashed = asyncio.ensure_future(gate.wait_leashed())
    await harness.operator.close(by="olga")
    await harness.clock.advance(5)
    assert (gate.is_open(), gate.inside, leashed.done()) == (False, 1, False)
    leave.set()
    await harness.clock.settle()
    await working
    assert leashed.done()


async def test_passing_inside_a_watch_costs_no_request(harness: GateHarness) -> None:
    gate = harness.gate(bus=harness.push)
    await harness.operator.open(by="olga")
    async with gate.watch():
        await gate.wait()
        before = harness.store.reads
        for _ in range(100):
            async with gate.passing():
                pass
        assert harness.store.reads == before


async def test_many_waiters_of_one_process_share_the_polling(harness: GateHarness) -> None:
    gate = harness.gate()
    for _ in range(50):
        harness.arrive(gate)
    await harness.clock.settle()
    before = harness.store.reads
    await harness.clock.advance(25)
    assert harness.store.reads - before <= 13


async def test_status_is_unknown_before_the_first_answer(harness: GateHarness) -> None:
    gate = harness.gate()
    assert gate.status().state == "unknown"
    await gate.read()
    assert gate.status().state == "closed"


@pytest.mark.parametrize("field", ["poll_seconds", "push_poll_seconds", "confirm_seconds", "write_seconds"])
def test_bad_settings_are_named(field: str) -> None:
    with pytest.raises(ConfigurationError, match=field):
        GateConfig(**{field: 0.0})


async def test_a_gate_known_by_its_state_tells_who_and_why(harness: GateHarness) -> None:
    await harness.operator.open(by="olga", reason="tickets on sale")
    state = await harness.gate().read()
    assert isinstance(state, GateState)
    assert (state.by, state.reason) == ("olga", "tickets on sale")


async def test_a_change_that_is_for_an_older_epoch_changes_nothing(harness: GateHarness) -> None:
    await harness.operator.open(by="olga")
    await harness.operator.close(by="otto", reason="stock check")
    with pytest.raises(GateMoved) as refused:
        await harness.operator.open(by="olga", epoch=1)
    with pytest.raises(GateMoved):
        await harness.operator.close(by="olga", epoch=1)
    assert (refused.value.epoch, (await harness.gate().read()).state) == (2, "closed")
    assert (await harness.operator.open(by="olga", epoch=2)).epoch == 3


async def test_a_wall_clock_that_jumps_opens_no_armed_gate(harness: GateHarness) -> None:
    class TrueTime:
        """The service's clock, which nobody sets."""

        def time(self) -> float:
            return 1_700_000_000.0 + harness.clock.monotonic() - 1000.0

    harness.store._clock = TrueTime()  # type: ignore[assignment]
    await harness.operator.open(by="olga", at=harness.operator.now() + 60)
    gate = harness.gate()
    waiting = harness.arrive(gate)
    await harness.clock.advance(10)
    harness.clock.step_wall(3600)
    assert not gate.is_open()
    await harness.clock.advance(40)
    assert not gate.is_open()
    assert not waiting.done()
    await harness.clock.advance(11)
    assert abs(waiting.result().passed_at - 1_700_000_060.0) <= 1.0


async def test_the_next_change_of_a_gate_that_went_back_goes_above_every_epoch_ever_seen(
    harness: GateHarness,
) -> None:
    epochs = MemoryEpochs()

    def stranger() -> Gate:
        return Gate(
            harness.store, identity="stranger", bus=lambda: harness.bus, clock=harness.clock, epochs=epochs
        )

    old = await stranger().open(by="olga")
    version = (harness.store.state, harness.store._etag)
    for _ in range(3):
        await stranger().close(by="olga")
        await stranger().open(by="olga")
    worker = harness.gate()
    assert (await worker.wait()).epoch == 7
    harness.store.state, harness.store._etag = version
    waiting = harness.arrive(worker)
    await harness.clock.advance(5)
    assert not waiting.done(), "a lower epoch never acts"
    assert "process has seen 7" in worker.status().problem
    again = await stranger().open(by="piet")
    assert (again.state, again.epoch > 7, old.epoch) == ("open", True, 1)
    await harness.clock.advance(5)
    assert waiting.result().epoch == again.epoch
    assert worker.status().problem == ""


async def test_a_change_goes_above_the_epoch_that_its_caller_has_seen(harness: GateHarness) -> None:
    opened = await harness.operator.open(by="olga", above=41)
    again = await harness.operator.open(by="olga", above=99)
    closed = await harness.operator.close(by="olga", above=7)
    assert [opened.epoch, again.epoch, closed.epoch] == [42, 100, 101]


@pytest.mark.parametrize("timeout", [float("nan"), -1.0])
async def test_a_timeout_that_is_no_time_is_refused(harness: GateHarness, timeout: float) -> None:
    with pytest.raises(ConfigurationError, match="timeout must be seconds from 0"):
        await harness.gate().wait(timeout)


@pytest.mark.parametrize("forged", [10**15, 10**15 - 1, 10**11, 10**11 + 1])
async def test_a_gate_with_an_epoch_that_nobody_counts_to_can_be_changed_again_and_again(
    harness: GateHarness, forged: int
) -> None:
    worker = harness.gate()
    await harness.operator.open(by="olga")
    await worker.wait()
    harness.store.state = GateState(name="test-gate", epoch=forged, state="open", by="script")
    harness.store._etag = '"forged"'
    await harness.operator.read()
    await worker.read()
    epochs = [forged]
    for verb in (
        harness.operator.close,
        harness.operator.open,
        harness.operator.close,
        harness.operator.open,
    ):
        epochs.append((await verb(by="olga")).epoch)
        assert 0 < epochs[-1] != epochs[-2]
    assert worker.passed_epoch == 1
    assert (await asyncio.wait_for(harness.arrive(worker), 5)).epoch == epochs[-1]
    assert worker.status().problem == ""


async def test_a_damaged_row_of_the_highest_epoch_does_not_stop_changes(harness: GateHarness) -> None:
    epochs = MemoryEpochs()
    epochs.highest["test-gate"] = (10**15, "forged")
    gate = Gate(harness.store, identity="x", bus=lambda: harness.bus, clock=harness.clock, epochs=epochs)
    assert [(await gate.open(by="olga")).epoch, (await gate.close(by="olga")).epoch] == [1, 2]
