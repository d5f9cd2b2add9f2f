"""The ordering site: workers wait at the gate, then take orders, number them, and insert them in a SQL table.

The primary key proves that no number is ever handed out twice; `order_id` is unique because a queue may deliver a
message again. Run a worker with ``python -m coordinator run examples.orders:worker`` and fill the queue with
``python -m examples.orders --orders 2000``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from coordinator import Storage, Worker
from coordinator.leadership.term import Term

DATABASE = os.environ.get("ORDERS_DATABASE", "orders.sqlite3")
WORK_SECONDS = float(os.environ.get("ORDERS_WORK_SECONDS", "0"))
TASKS = int(os.environ.get("ORDERS_TASKS", "50"))
SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (
    number INTEGER PRIMARY KEY, order_id TEXT NOT NULL UNIQUE, cents INTEGER NOT NULL, worker TEXT NOT NULL, at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS reports (epoch INTEGER PRIMARY KEY, orders INTEGER NOT NULL, cents INTEGER NOT NULL, at REAL NOT NULL);
"""


class Order(msgspec.Struct):
    order_id: str
    cents: int


worker = Worker("orders")
gate = worker.gate("start-order-processing")
numbers = worker.sequence("orders")
_one_writer = threading.Lock()
_local = threading.local()


@contextmanager
def table() -> Iterator[sqlite3.Connection]:
    """The orders table, one connection a thread and one writer a process at a time."""
    connection = getattr(_local, "connection", None)
    if connection is None:
        connection = _local.connection = sqlite3.connect(DATABASE, timeout=30)
        connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + SCHEMA)
    with _one_writer, connection:
        yield connection


@worker.listen("orders-in", gate=gate, tasks=range(1, TASKS + 1), visibility_seconds=10)
def process(order: Order) -> None:
    with table() as connection:
        if connection.execute("SELECT 1 FROM orders WHERE order_id = ?", (order.order_id,)).fetchone():
            return
    number = numbers.next_id()
    time.sleep(WORK_SECONDS)
    with table() as connection:
        connection.execute(
            "INSERT INTO orders VALUES (?, ?, ?, ?, ?) ON CONFLICT (order_id) DO NOTHING",
            (number, order.order_id, order.cents, worker.identity, time.time()),
        )


@worker.lead("daily-report")
async def report(term: Term) -> None:
    """One worker at a time keeps the report; its epoch keeps an overtaken leader from writing over a newer one."""
    while True:
        await asyncio.to_thread(write_report, term.epoch)
        await asyncio.sleep(5)


def write_report(epoch: int) -> None:
    with table() as connection:
        connection.execute(
            "INSERT INTO reports SELECT ?, count(*), coalesce(sum(cents), 0), ? FROM orders "
            "WHERE NOT EXISTS (SELECT 1 FROM reports WHERE epoch > ?) "
            "ON CONFLICT (epoch) DO UPDATE SET orders = excluded.orders, cents = excluded.cents, at = excluded.at",
            (epoch, time.time(), epoch),
        )


async def produce(
    count: int,
    *,
    every_seconds: float = 0.0,
    first: int = 1,
    wave: int = 0,
    wave_every_seconds: float = 120.0,
    prefix: str = "order",
) -> None:
    """Put `count` orders into the queue, sixteen at a time or one every so often.

    With `wave`, so many more come at once every now and then, unless as many wait already. `prefix` begins their ids.
    """
    async with Storage.from_env() as storage, asyncio.TaskGroup() as group:
        waves = group.create_task(_waves(storage, wave, wave_every_seconds)) if wave else None
        await _put(storage, count, every_seconds, first, prefix)
        if waves is not None:
            waves.cancel()


async def _waves(storage: Storage, wave: int, every_seconds: float) -> None:
    queue = storage.queue("orders-in", type=Order)
    while True:
        await asyncio.sleep(every_seconds)
        if await queue.depth() < wave:
            await _put(storage, wave, 0.0, 1, f"wave-{int(time.time())}")


async def _put(storage: Storage, count: int, every_seconds: float, first: int, prefix: str) -> None:
    queue = storage.queue("orders-in", type=Order)
    for start in range(first, first + count, 16):
        orders = [
            Order(order_id=f"{prefix}-{n:08d}", cents=100 + n % 9_900)
            for n in range(start, min(start + 16, first + count))
        ]
        if every_seconds:
            for order in orders:
                await queue.put(order)
                await asyncio.sleep(every_seconds)
        else:
            await asyncio.gather(*(queue.put(order) for order in orders))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fill the queue orders-in.")
    parser.add_argument("--orders", type=int, default=2000)
    parser.add_argument(
        "--every", type=float, default=0.0, help="seconds between orders (default: as fast as possible)"
    )
    parser.add_argument("--first", type=int, default=1, help="number of the first order")
    parser.add_argument(
        "--wave", type=int, default=0, help="so many more at once, every --wave-every seconds"
    )
    parser.add_argument("--wave-every", type=float, default=120.0)
    parser.add_argument("--prefix", default="order", help="how order ids begin")
    given = parser.parse_args()
    asyncio.run(
        produce(
            given.orders,
            every_seconds=given.every,
            first=given.first,
            wave=given.wave,
            wave_every_seconds=given.wave_every,
            prefix=given.prefix,
        )
    )
