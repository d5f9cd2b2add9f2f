"""Commands to a demo that runs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from coordinator.leadership.azure import list_leaders
from coordinator.storage import Storage
from dashboard.demo.running import running_in
from dashboard.demo.stack import DemoFailed

COMMANDS = ("burst", "add-worker", "kill-leader", "cut-hub")
BURST_ORDERS = 1500
ELECTION = "daily-report"


def send(folder: Path, command: str) -> str:
    """Do `command` to the demo that runs in `folder`; returns what happened, in words."""
    running = running_in(folder)
    if running is None:
        raise DemoFailed("no demo runs here: start it with `make demo` first")
    match command:
        case "burst":
            asyncio.run(_burst(running["storage"]))
            return f"{BURST_ORDERS} orders are in the queue; see the Scaling page."
        case "add-worker":
            os.kill(running["demo"], signal.SIGUSR1)
            return "One more worker is starting; see it on the Workers page."
        case "cut-hub":
            os.kill(running["dashboard"], signal.SIGKILL)
            return "The dashboard was killed; it is started again in 5 s. Workers poll meanwhile."
        case _:
            holder = _leader(running["storage"])
            if holder not in running["names"]:
                raise DemoFailed("there is no leader at the moment: try again in a few seconds")
            os.kill(running["names"][holder], signal.SIGKILL)
            return f"{holder} led {ELECTION} and was killed; another leads within the lease (15 s)."


async def _burst(connection_string: str) -> None:
    async with Storage.from_connection_string(connection_string) as storage:
        queue = storage.queue("orders-in")
        orders = [
            {"order_id": f"burst-{time.time_ns()}-{n}", "cents": 100 + n % 900} for n in range(BURST_ORDERS)
        ]
        for start in range(0, BURST_ORDERS, 16):
            await asyncio.gather(*(queue.put(order) for order in orders[start : start + 16]))


def _leader(connection_string: str) -> str:
    async def look() -> str:
        async with Storage.from_connection_string(connection_string) as storage:
            leaders = await list_leaders(storage)
            return next((info.holder for info in leaders if info.name == ELECTION and info.is_held), "")

    return asyncio.run(look())
