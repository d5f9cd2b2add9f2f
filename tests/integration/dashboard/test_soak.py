"""Promises that only time can test: the short form in every run, an hour with ``-m slow``."""

from __future__ import annotations

import asyncio
import random
import time

import psutil
import pytest

from coordinator.realtime.bus import Notification
from coordinator.realtime.protocol import Announce, GateStatus, ListenerStatus, Receipt, WorkerState
from tests.support.dashboard import BareWorker, Dashboard, Person, until

GATE = "start-order-processing"


async def test_hub_memory_and_sockets_stay_flat_while_workers_and_browsers_come_and_go(
    dashboard: Dashboard,
) -> None:
    await _soak(dashboard, warm_up_seconds=30, seconds=25)


@pytest.mark.slow
@pytest.mark.timeout(4500)
async def test_hub_memory_and_sockets_stay_flat_for_an_hour(own_dashboard: Dashboard) -> None:
    await _soak(own_dashboard, warm_up_seconds=300, seconds=3600)


async def _soak(dashboard: Dashboard, *, warm_up_seconds: float, seconds: float) -> None:
    assert dashboard.process is not None
    process = psutil.Process(dashboard.process.pid)
    stop = asyncio.Event()
    with Person(dashboard, "olga") as olga:
        before = await _settled(process)
        churn = [asyncio.create_task(_workers(dashboard, number, stop)) for number in range(12)]
        churn += [asyncio.create_task(_browsers(olga, number, stop)) for number in range(4)]
        await asyncio.sleep(warm_up_seconds)
        warm = process.memory_info().rss
        await asyncio.sleep(seconds)
        worked = process.memory_info().rss
        print("warm, worked:", warm, worked)
        stop.set()
        await asyncio.gather(*churn)
        assert worked < warm * 1.05 + 2 * 2**20, (warm, worked)
        await until(
            lambda: len(process.net_connections("tcp")) <= before + 2, seconds=15, what="sockets stay open"
        )
    assert "Traceback" not in dashboard.said()


async def _settled(process: psutil.Process) -> int:
    await asyncio.sleep(1)
    return len(process.net_connections("tcp"))


async def _workers(dashboard: Dashboard, number: int, stop: asyncio.Event) -> None:
    """A worker that works for a while, and ends politely or not, again and again."""
    rng, epoch = random.Random(number), 0
    while not stop.is_set():
        async with BareWorker(dashboard, f"soak-{number}") as worker:
            worker.beat(0.1)
            ends = time.monotonic() + rng.uniform(0.3, 2.0)
            while time.monotonic() < ends and not stop.is_set():
                epoch += 1
                worker.state = WorkerState(
                    gates=(GateStatus(GATE, "open", epoch),),
                    listeners=(ListenerStatus("orders-in", 1, 2, 2, done=epoch),),
                )
                await worker.send(Announce(Notification("queue:orders-in", size=epoch)))
                await worker.send(Receipt(GATE, epoch, "push", 0.01, time.time()))
                await asyncio.sleep(0.1)
            if rng.random() < 0.5:
                await worker.send("rude")


async def _browsers(person: Person, number: int, stop: asyncio.Event) -> None:
    page = ("overview", "gates", "workers", "queues")[number]
    while not stop.is_set():
        async with person.socket(page) as socket:
            for _ in range(4):
                await socket.recv()
        await asyncio.to_thread(person.get, "/")
