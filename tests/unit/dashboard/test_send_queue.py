"""Promises of the fan-out."""

from __future__ import annotations

import asyncio

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from coordinator.realtime import protocol
from coordinator.realtime.bus import Notification
from coordinator.testing.clock import ManualClock
from dashboard.core.backplane import Backplane
from dashboard.hub.notifications import RECENT_SECONDS, FanoutBus, WorkerSockets
from dashboard.hub.socket import RateLimit, SendQueue, on_wire


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


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


class Listening:
    """Sockets that take everything."""

    def __init__(self, clock: ManualClock) -> None:
        self.sockets = WorkerSockets(clock=clock)
        self.bus = FanoutBus(self.sockets, Backplane(clock=clock))
        self.got: dict[str, list[str]] = {}

    def join(self, name: str, *follows: str, version: int = 2) -> SendQueue:
        async def send(frame: str) -> None:
            match protocol.decode_from_hub(frame):
                case protocol.Hinted(hint):
                    self.got[name].append(hint.topic)
                case protocol.Pace(seconds):
                    self.got[name].append(f"pace {seconds:g}")

        async def close(code: int, reason: str) -> None:
            raise AssertionError(reason)

        self.got[name] = []
        box = SendQueue(send, close)
        self.sockets.join(name, box, follows or None, takes_pace=version >= 2)
        return box


async def test_a_hint_reaches_those_who_follow_its_topic_and_those_who_follow_all(clock: ManualClock) -> None:
    here = Listening(clock)
    here.join("orders", "queue:orders", "gate:start")
    here.join("bills", "queue:bills", "gate:start")
    here.join("older")
    assert here.bus.send(Notification("queue:orders")) == 2
    assert here.bus.send(Notification("gate:start", 1)) == 3
    assert here.bus.send(Notification("queue:nobodys")) == 1
    assert here.got == {
        "orders": ["queue:orders", "gate:start"],
        "bills": ["gate:start"],
        "older": ["queue:orders", "gate:start", "queue:nobodys"],
    }
    assert here.sockets.following("queue:bills") == 2


async def test_who_begins_to_follow_a_topic_gets_its_newest_recent_hint_and_who_ends_gets_none(
    clock: ManualClock,
) -> None:
    here = Listening(clock)
    here.join("a", "queue:orders")
    here.bus.send(Notification("gate:old", 1))
    await clock.advance(RECENT_SECONDS + 1)
    here.bus.send(Notification("gate:start", 1))
    here.sockets.follow("a", ["gate:start", "gate:old", "gate:never"])
    assert here.got["a"] == ["gate:start"]
    here.bus.send(Notification("queue:orders"))
    assert here.got["a"] == ["gate:start"]
    here.sockets.follow("a", protocol.ALL_TOPICS)
    here.bus.send(Notification("queue:orders"))
    assert here.got["a"] == ["gate:start", "queue:orders"]


async def test_a_worker_that_left_or_came_again_leaves_nothing_in_the_index(clock: ManualClock) -> None:
    here = Listening(clock)
    older = here.join("a", "queue:orders")
    newer = here.join("a", "gate:start")
    assert (here.sockets.following("queue:orders"), here.sockets.following("gate:start")) == (0, 1)
    assert not here.sockets.leave("a", older)
    assert here.sockets.leave("a", newer)
    assert here.sockets.following("gate:start") == 0
    here.sockets.follow("a", ["gate:start"])
    assert here.bus.send(Notification("gate:start", 1)) == 0


async def test_the_pace_goes_to_workers_that_understand_it(clock: ManualClock) -> None:
    here = Listening(clock)
    here.join("old", version=1)
    here.join("new")
    here.sockets.send_pace(7)
    assert here.got == {"old": [], "new": ["pace 7"]}


async def test_a_frame_for_many_is_encoded_once_and_goes_out_as_text_where_it_cannot_be_written() -> None:
    sent: list[str | bytes] = []
    takes = [True, False]

    async def send(frame: str) -> None:
        sent.append(frame)

    async def close(code: int, reason: str) -> None:
        raise AssertionError(reason)

    def write(wire: bytes) -> bool:
        if taken := takes.pop(0):
            sent.append(wire)
        return taken

    box = SendQueue(send, close, write=write)
    box.put("x", wire=on_wire("x"))
    box.put("y", wire=on_wire("y"))
    box.put("z")
    assert sent == [on_wire("x"), "y", "z"]


async def test_a_frame_for_many_does_not_overtake_what_waits_in_line() -> None:
    sent: list[str] = []
    may = asyncio.Event()

    async def send(frame: str) -> None:
        await may.wait()
        sent.append(frame)

    async def close(code: int, reason: str) -> None:
        raise AssertionError(reason)

    box = SendQueue(send, close, write=lambda wire: sent.append(wire.decode()) is None)
    box.put("first")
    box.put("second", wire=on_wire("second"))
    may.set()
    await asyncio.sleep(0.01)
    assert sent == ["first", "second"]


@pytest.mark.parametrize("text", ["x", "é" * 100, "x" * 200, "x" * 70_000])
def test_a_frame_on_the_wire_is_one_that_a_client_reads(text: str) -> None:
    client = ClientProtocol(parse_uri("ws://x/"), state=State.OPEN, max_size=100_000)
    client.receive_data(on_wire(text))
    (frame,) = client.events_received()
    assert isinstance(frame, Frame)
    assert (frame.opcode, frame.fin, bytes(frame.data).decode()) == (Opcode.TEXT, True, text)


class Shared(Backplane):
    """A line to other processes that notes what is sent, and may never answer."""

    is_shared = True  # type: ignore[assignment]

    def __init__(self, order: list[str], *, answers: bool = True) -> None:
        super().__init__()
        self.order, self.may_answer = order, asyncio.Event()
        if answers:
            self.may_answer.set()

    async def publish(self, kind: str, body: bytes) -> None:
        self.order.append(kind)
        await self.may_answer.wait()


@pytest.mark.parametrize("answers", [True, False])
async def test_other_processes_are_notified_before_this_one_writes_to_its_sockets(answers: bool) -> None:
    order: list[str] = []

    async def send(frame: str) -> None:
        order.append("socket")

    async def close(code: int, reason: str) -> None:
        raise AssertionError(reason)

    sockets, line = WorkerSockets(), Shared(order, answers=answers)
    sockets.join("a", SendQueue(send, close))
    publishing = asyncio.create_task(FanoutBus(sockets, line).publish(Notification("gate:x", 1)))
    await asyncio.sleep(0.1)
    assert order == ["hint", "socket"]
    line.may_answer.set()
    await publishing
