"""What a worker sends to the hub of its own accord, with and without a connection."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from coordinator import Worker
from coordinator.gates.gate import Release
from coordinator.realtime import protocol
from coordinator.realtime.bus import RESYNC, Hint, LocalBus
from coordinator.realtime.hub_client import HubConnection
from coordinator.realtime.redis_bus import RedisBus
from coordinator.testing.clock import ManualClock

ENVIRON = {
    "AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true",
    "KENNEL_HUB_URL": "ws://127.0.0.1:1/ws/workers/",
    "KENNEL_WORKER_TOKEN": "kw_0123456789_0123456789",
}


class Hub(LocalBus):
    """Notes what it is asked to send."""

    def __init__(self) -> None:
        super().__init__()
        self.did: list[Any] = []

    async def run(self) -> None:
        self.did.append("run")
        await asyncio.Event().wait()

    def refresh(self) -> None:
        self.did.append("refresh")

    def refresh_soon(self) -> None:
        self.did.append("refresh soon")

    async def flush(self) -> None:
        self.did.append("flush")

    def receipt(self, receipt: protocol.Receipt) -> None:
        self.did.append(receipt)


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def worker(hub: Hub) -> Worker:
    worker = Worker("billing", environ=ENVIRON)
    worker._hub = hub  # type: ignore[assignment]
    return worker


async def test_a_worker_is_connected_while_it_runs_and_sends_its_last_state_before_it_ends(
    worker: Worker, hub: Hub
) -> None:
    running = asyncio.create_task(worker.run())
    while worker.mode != "running" or "run" not in hub.did:
        await asyncio.sleep(0)
    assert hub.did == ["run"]
    worker.stop()
    await running
    assert hub.did == ["run", "refresh", "flush"]


async def test_the_dashboard_is_shown_soon_who_leads(worker: Worker, hub: Hub) -> None:
    @worker.lead("month-end")
    async def task(term: Any) -> None: ...

    ((election, _),) = worker._elections

    async def campaign(clock: Any) -> None:
        assert election.on_status is not None
        election.on_status()
        await asyncio.Event().wait()

    worker._elections = [(election, campaign)]
    running = asyncio.create_task(worker.run())
    while "refresh soon" not in hub.did:
        assert not running.done()
        await asyncio.sleep(0)
    worker.stop()
    await running


def test_a_pass_of_a_gate_is_receipted_with_its_delay(worker: Worker, hub: Hub) -> None:
    worker._passed("start", Release("start", 7, "push", 0.25, 1_700_000_000.0, "r1"))
    (receipt,) = hub.did
    assert (receipt.gate, receipt.epoch, receipt.source, receipt.delay_seconds) == ("start", 7, "push", 0.25)


# --- the connection -------------------------------------------------------------------------------------------------


def connection() -> HubConnection:
    def hello() -> protocol.Hello:
        raise AssertionError("nobody answers there")

    return HubConnection(
        ENVIRON["KENNEL_HUB_URL"], "kw_x", hello=hello, on_command=print, clock=ManualClock()
    )


async def test_changes_of_one_moment_send_one_state_and_a_later_one_another() -> None:
    hub = connection()
    running = asyncio.create_task(hub.run())
    await asyncio.sleep(0)
    timers = list[Any]()
    hub._loop = Timers(timers)  # type: ignore[assignment]
    for _ in range(50):
        hub.refresh_soon()
    assert len(timers) == 1 and not hub._state_due
    timers.pop()()
    assert hub._state_due
    hub.refresh_soon()
    assert len(timers) == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class Timers:
    """What an event loop would call later."""

    def __init__(self, timers: list[Any]) -> None:
        self._timers = timers

    def call_later(self, seconds: float, call: Any) -> None:
        assert seconds > 0
        self._timers.append(call)

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, call: Any) -> None:
        call()


def test_a_change_before_the_connection_runs_waits_for_it() -> None:
    hub = connection()
    hub._thread = threading.get_ident()
    hub.refresh_soon()
    hub.receipt(protocol.Receipt(gate="start", epoch=1, source="poll", delay_seconds=0.0, passed_at=0.0))
    assert hub._has_unsent and not hub._state_soon


async def test_a_bus_over_redis_announces_a_change_of_its_connection_once() -> None:
    bus, heard = RedisBus("redis://127.0.0.1:1"), list[str]()
    bus.subscribe("gate:start", lambda hint: heard.append(hint.topic))
    for _ in range(2):
        bus._take({"type": "subscribe", "data": 1})
    assert bus.is_connected and heard == [RESYNC]
    bus._take({"type": "unsubscribe", "data": 0})
    bus._take({"type": "pong", "data": b""})
    assert bus.is_connected and heard == [RESYNC], "what is no message wakes nobody"
    bus.deliver(Hint("gate:start"))
    assert heard == [RESYNC, "gate:start"]
    await bus._redis.aclose()
