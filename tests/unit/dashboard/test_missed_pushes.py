"""Promises of pushes that were lost on their way to a worker."""

from __future__ import annotations

import pytest

from coordinator.gates import state as rules
from coordinator.gates.state import GateState
from coordinator.realtime import protocol
from coordinator.realtime.bus import Notification
from coordinator.realtime.protocol import GateStatus
from coordinator.testing.clock import ManualClock
from dashboard.core.backplane import Backplane
from dashboard.hub.notifications import (
    ARRIVES_SECONDS,
    MOST_TIMES,
    SENT_AGAIN_SECONDS,
    MissedPushes,
    WorkerSockets,
)
from dashboard.hub.socket import SendQueue
from dashboard.live.releases import KnownGates

GATE = "start"


def opened(epoch: int = 2) -> GateState:
    return GateState(name=GATE, epoch=epoch, state="open", by="olga", changed_at=1.0)


class Hub:
    """One worker's socket, and what is known of the gate."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.known = clock, opened(1)
        self.heard: list[Notification] = []
        self.sockets = WorkerSockets(clock=clock)

        async def send(frame: str) -> None:
            message = protocol.decode_from_hub(frame)
            assert isinstance(message, protocol.Hinted)
            self.heard.append(message.hint)

        async def close(code: int, reason: str) -> None:
            raise AssertionError(reason)

        self.sockets.join("i", SendQueue(send, close), [f"gate:{GATE}"])
        self.missed = MissedPushes(
            lambda name: self.known if name == GATE else None, self.sockets, clock=clock
        )

    def report(self, epoch: int, *, waiting: bool = True, gate: str = GATE) -> None:
        self.missed.reported("i", [GateStatus(gate, "closed", epoch, waiting=waiting)])

    async def beats(self, count: int, epoch: int, *, waiting: bool = True) -> None:
        for _ in range(count):
            self.report(epoch, waiting=waiting)
            await self.clock.advance(1.0)


@pytest.fixture
def hub() -> Hub:
    return Hub(ManualClock())


async def test_a_waiting_worker_that_still_reports_the_older_epoch_gets_the_state_once_more(hub: Hub) -> None:
    await hub.beats(3, 1)
    hub.known = opened()
    hub.report(1)
    assert hub.heard == []  # the push may be on its way
    await hub.clock.advance(ARRIVES_SECONDS)
    hub.report(1)
    assert [(hint.topic, hint.epoch) for hint in hub.heard] == [(f"gate:{GATE}", 2)]
    assert rules.decode(GATE, hub.heard[0].state) == opened()


async def test_who_knows_the_change_gets_nothing(hub: Hub) -> None:
    hub.known = opened()
    await hub.beats(30, 2)
    await hub.beats(30, 3)
    hub.report(0, gate="another")
    assert hub.heard == []


async def test_it_is_repeated_for_a_while_and_again_for_the_next_change(hub: Hub) -> None:
    hub.known = opened()
    await hub.beats(int(ARRIVES_SECONDS + 2 * SENT_AGAIN_SECONDS * MOST_TIMES), 1)
    assert len(hub.heard) == MOST_TIMES
    hub.known = opened(3)
    await hub.beats(int(ARRIVES_SECONDS) + 1, 1)
    assert [hint.epoch for hint in hub.heard[MOST_TIMES:]] == [3]


async def test_who_does_not_wait_gets_it_once_and_who_does_not_follow_the_gate_never(hub: Hub) -> None:
    hub.known = opened()
    await hub.beats(40, 1, waiting=False)
    assert len(hub.heard) == 1
    hub.sockets.follow("i", [])
    hub.known = opened(3)
    await hub.beats(40, 1)
    assert len(hub.heard) == 1


async def test_a_worker_that_left_leaves_nothing(hub: Hub) -> None:
    hub.known = opened()
    await hub.beats(4, 1)
    hub.missed.forget("i", [GateStatus(GATE)])
    assert hub.missed._sent == {}


async def test_what_a_reading_finds_changed_is_news_once_and_what_was_announced_is_none() -> None:
    clock = ManualClock()
    gates, found = KnownGates(Backplane(clock=clock), clock=clock), []
    gates.on_found.append(lambda state: found.append(state.epoch))
    gates.sampled((opened(1),), {}, clock.time())
    assert found == []  # the first reading
    gates.sampled((opened(2),), {}, clock.time())
    gates.sampled((opened(2),), {}, clock.time())
    assert found == [2]
    await gates.changed(opened(3))
    gates.sampled((opened(3),), {}, clock.time())
    assert found == [2]


async def test_a_gate_that_was_read_long_ago_is_not_known_lately() -> None:
    clock = ManualClock()
    gates = KnownGates(Backplane(clock=clock), clock=clock)
    gates.sampled((opened(),), {}, clock.time())
    assert gates.lately(GATE, 15) == opened()
    await clock.advance(16)
    assert gates.lately(GATE, 15) is None
    await gates.changed(opened(3))
    assert gates.lately(GATE, 15) == opened(3)
