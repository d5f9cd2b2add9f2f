"""Promises of the fan-out."""

from __future__ import annotations

import asyncio

from coordinator.realtime import protocol
from coordinator.realtime.bus import Notification
from dashboard.core.backplane import Backplane
from dashboard.hub.notifications import FanoutBus, WorkerSockets
from dashboard.hub.socket import RateLimit, SendQueue


async def test_a_socket_that_takes_nothing_is_closed_with_the_reason() -> None:
    closed: list[tuple[int, str]] = []
    stuck = asyncio.Event()

    async def send(frame: str) -> None:
        await stuck.wait()

    async def close(code: int, reason: str) -> None:
        closed.append((code, reason))

    outbox = SendQueue(send, close, frames=3)
    await asyncio.sleep(0)
    for _ in range(10):
        outbox.put("x")
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    await outbox.stop()
    assert [code for code, _ in closed] == [protocol.CLOSE_SLOW]
    assert "slow" in closed[0][1]


async def test_a_hint_reaches_every_socket_in_order_but_not_the_one_it_came_from() -> None:
    sent: dict[str, list[str]] = {"a": [], "b": []}
    sockets = WorkerSockets()
    boxes = []
    for name in sent:

        async def send(frame: str, name: str = name) -> None:
            sent[name].append(frame)

        async def close(code: int, reason: str) -> None:
            raise AssertionError(reason)

        box = SendQueue(send, close)
        boxes.append(box)
        sockets.join(name, box)
    heard: list[str] = []
    bus = FanoutBus(sockets, Backplane())
    bus.subscribe("gate:x", lambda hint: heard.append(hint.topic))
    bus.send(Notification("gate:x", 1), but="a")
    await bus.publish(Notification("gate:x", 2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for box in boxes:
        await box.stop()
    epochs = {name: [protocol.decode_from_hub(frame) for frame in frames] for name, frames in sent.items()}
    assert [m.hint.epoch for m in epochs["a"] if isinstance(m, protocol.Hinted)] == [2]
    assert [m.hint.epoch for m in epochs["b"] if isinstance(m, protocol.Hinted)] == [1, 2]
    assert heard == ["gate:x", "gate:x"]


def test_the_rate_limit_allows_a_burst_then_the_average() -> None:
    limit = RateLimit(10, 20, now=0.0)
    assert sum(limit.allows(0.0) for _ in range(100)) == 20
    assert sum(limit.allows(1.0) for _ in range(100)) == 10
