"""The billing night: a batch of transactions is priced, summed per customer and reported, equal to the cent.

``python -m examples.billing --transactions 100000 --workers 4 --chaos`` starts its own storage if none is configured,
runs an initiator, a controller and the workers as processes of their own, and prints one JSON object as its last line.
With ``--chaos`` processes are killed with -9 every few seconds, initiator and controller too, and 2 % of all storage
requests go wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing as mp
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec

from coordinator import Pipeline, Storage
from coordinator.config import StorageConfig
from coordinator.errors import StorageError
from coordinator.pipelines.azure import BlobReports
from coordinator.testing.azurite import Azurite
from coordinator.testing.faults import FaultProxy

TARIFFS = {"call": 7, "message": 2, "data": 1, "roaming": 39}
KINDS = tuple(TARIFFS)
CUSTOMERS = 250
BATCH = "night"
START = mp.get_context("forkserver")


class Transaction(msgspec.Struct, frozen=True):
    """What a customer used."""

    id: int
    customer: int
    kind: str
    units: int


class Charge(msgspec.Struct, frozen=True):
    """What that costs; also the sum of several."""

    customer: int
    cents: int
    count: int = 1


class Source(msgspec.Struct, frozen=True):
    """Where a batch comes from: so many transactions, made from a seed."""

    transactions: int
    seed: int


# --- the job ------------------------------------------------------------------------------------------------------


def transaction(seed: int, id: int) -> Transaction:
    """The transaction of that number: equal for equal seeds, whoever makes it and whenever."""
    rng = random.Random(seed * 1_000_003 + id)
    return Transaction(id, rng.randrange(CUSTOMERS), KINDS[rng.randrange(4)], rng.randrange(1, 500))


def split(source: Any, skip: int = 0) -> Iterator[Transaction]:
    """The initiator."""
    origin = msgspec.convert(source, Source)
    return (transaction(origin.seed, id) for id in range(skip, origin.transactions))


def price(one: Transaction) -> Charge:
    """The processor."""
    return Charge(one.customer, cents_of(one.kind, one.units))


def cents_of(kind: str, units: int) -> int:
    """The tariff, and a tenth off for all beyond the hundredth unit, rounded down."""
    rate = TARIFFS[kind]
    return rate * min(units, 100) + rate * max(0, units - 100) * 9 // 10


def combine(charges: list[Charge]) -> list[Charge]:
    """One sum for each customer of a chunk."""
    sums: dict[int, Charge] = {}
    for each in charges:
        known = sums.get(each.customer, Charge(each.customer, 0, 0))
        sums[each.customer] = Charge(each.customer, known.cents + each.cents, known.count + each.count)
    return list(sums.values())


def add(total: dict[int, Charge] | None, charges: list[Charge]) -> dict[int, Charge]:
    """The controller."""
    return {each.customer: each for each in combine([*(total or {}).values(), *charges])}


def report(total: dict[int, Charge] | None) -> bytes:
    charges = sorted((total or {}).values(), key=lambda each: each.customer)
    content = {
        "cents": sum(each.cents for each in charges),
        "transactions": sum(each.count for each in charges),
        "customers": charges,
    }
    return msgspec.json.encode(content)


def pipeline(storage: Storage, *, chunk_items: int = 500, work_seconds: float = 0.0) -> Pipeline:
    """`work_seconds` is how long pricing one transaction takes besides."""

    def priced(one: Transaction) -> Charge:
        if work_seconds:
            time.sleep(work_seconds)
        return price(one)

    return storage.pipeline(
        "billing",
        split,
        priced,
        add,
        item=Transaction,
        result=Charge,
        combine=combine,
        reporter=report,
        chunk_items=chunk_items,
    )


# --- the processes ------------------------------------------------------------------------------------------------


@dataclass
class Options:
    """What a process of the fleet is told."""

    connection_string: str
    prefix: str
    chunk_items: int
    work_seconds: float
    visibility_seconds: float


def work(role: str, options: Options, requests: Any) -> None:
    """One process: initiator, processor or controller, until SIGTERM or the end of its parent."""
    logging.getLogger("coordinator").setLevel(logging.ERROR)
    asyncio.run(_work(role, options, requests))


async def _work(role: str, options: Options, requests: Any) -> None:
    config = StorageConfig(prefix=options.prefix)
    async with Storage.from_connection_string(options.connection_string, config=config) as storage:
        storage.identity = f"{role}-{os.getpid()}"
        billing = pipeline(storage, chunk_items=options.chunk_items, work_seconds=options.work_seconds)
        visibility = options.visibility_seconds
        match role:
            case "initiator":
                listener: Any = billing.initiators(visibility_seconds=visibility)
            case "processor":
                listener = billing.processors(visibility_seconds=visibility, tasks=range(1, 4))
            case _:
                listener = billing.controllers(visibility_seconds=visibility)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        listening = asyncio.create_task(listener.run())
        parent = mp.parent_process()
        while not stop.is_set() and not listening.done() and parent is not None and parent.is_alive():
            try:
                await asyncio.wait_for(stop.wait(), 1.0)
            except TimeoutError:
                continue
        await listener.stop(2.0)
        await listening
        with requests.get_lock():
            requests.value += storage.meter.total


@dataclass
class Fleet:
    """The processes, each replaced when it dies."""

    options: Options
    roles: list[str]
    rng: random.Random
    kills: dict[str, int] = field(default_factory=dict)
    requests: Any = field(default_factory=lambda: START.Value("q", 0))
    processes: list[Any] = field(default_factory=list)

    def start(self) -> None:
        START.set_forkserver_preload(["coordinator.pipelines.azure", "coordinator.queues.azure"])
        self.processes = [self._start(role) for role in self.roles]

    def _start(self, role: str) -> Any:
        process = START.Process(target=work, args=(role, self.options, self.requests), daemon=True)
        process.start()
        return process

    def replace_dead(self) -> None:
        for place, process in enumerate(self.processes):
            if not process.is_alive():
                process.join()
                self.processes[place] = self._start(self.roles[place])

    def kill(self, role: str = "") -> None:
        """End one of that role (or any) as `kill -9` does."""
        places = [place for place, other in enumerate(self.roles) if role in ("", other)]
        place = self.rng.choice(places)
        self.processes[place].kill()
        self.kills[self.roles[place]] = self.kills.get(self.roles[place], 0) + 1

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


# --- the run ------------------------------------------------------------------------------------------------------


def expected(source: Source) -> int:
    """The sum by plain arithmetic, in this process alone."""
    total = 0
    for id in range(source.transactions):
        one = transaction(source.seed, id)
        total += cents_of(one.kind, one.units)
    return total


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    source = Source(arguments.transactions, arguments.seed)
    rng = random.Random(arguments.seed)
    with ExitStack() as stack:
        connection_string = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
        if not connection_string:
            connection_string = stack.enter_context(Azurite()).connection_string
        proxy = None
        theirs = connection_string
        if arguments.chaos:
            proxy = stack.enter_context(FaultProxy(connection_string))
            proxy.at_random(0.02, seed=arguments.seed)
            theirs = proxy.connection_string
        options = Options(
            connection_string=theirs,
            prefix=f"b{time.time_ns():x}-",
            chunk_items=arguments.chunk_items,
            work_seconds=arguments.work_ms / 1000,
            visibility_seconds=2.0 if arguments.chaos else 30.0,
        )
        fleet = Fleet(options, ["initiator", "controller", *["processor"] * arguments.workers], rng)
        config = StorageConfig(prefix=options.prefix)
        async with Storage.from_connection_string(connection_string, config=config) as storage:
            billing = pipeline(storage, chunk_items=options.chunk_items)
            fleet.start()
            stack.callback(fleet.stop)
            started = time.monotonic()
            await billing.start(BATCH, source, sla_seconds=arguments.sla, expected_items=source.transactions)
            status = await _watch(billing, fleet, arguments, rng)
            seconds = time.monotonic() - started
            fleet.stop()
            container = storage.aio.blobs.get_container_client(config.container("reports"))
            names = [blob.name async for blob in container.list_blobs()]
            content = json.loads(await BlobReports(storage).read(status.report))
            own = storage.meter.total
    return {
        "expected_cents": expected(source),
        "actual_cents": content["cents"],
        "counted": content["transactions"],
        "reports": len(names),
        "kills": sum(fleet.kills.values()),
        "seconds": round(seconds, 2),
        "requests": proxy.requests if proxy else fleet.requests.value + own,
        "killed": fleet.kills,
        "faults": len(proxy.applied) if proxy else 0,
        "sla": status.sla_risk,
        "failed": status.items_failed,
    }


async def _watch(billing: Pipeline, fleet: Fleet, arguments: argparse.Namespace, rng: random.Random) -> Any:
    """Until the batch is complete: replace who died, and with chaos see to it that somebody does."""
    shares = {"initiator": 0.15, "controller": 0.3, "processor": 0.5} if arguments.chaos else {}
    next_kill = time.monotonic() + rng.uniform(0.5, 1.5) * arguments.kill_every
    while (status := await billing.status(BATCH)).state == "running":
        fleet.replace_dead()
        for role, share in list(shares.items()):
            done = status.items_sent if role == "initiator" else status.items_counted
            if done >= share * arguments.transactions:
                fleet.kill(role)
                del shares[role]
        if arguments.chaos and time.monotonic() > next_kill:
            fleet.kill()
            next_kill = time.monotonic() + rng.uniform(0.5, 1.5) * arguments.kill_every
        await asyncio.sleep(0.05)
    return status


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Price, sum and report a batch of transactions.")
    parser.add_argument("--transactions", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--chaos", action="store_true", help="kill processes, and break 2 %% of all requests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chunk-items", type=int, default=500)
    parser.add_argument("--work-ms", type=float, default=0.0, help="how long one transaction takes besides")
    parser.add_argument("--kill-every", type=float, default=3.0, help="seconds, on average")
    parser.add_argument(
        "--sla", type=float, default=300.0, help="seconds in which the batch should be complete"
    )
    return parser.parse_args(words)


if __name__ == "__main__":
    try:
        print(json.dumps(asyncio.run(run(parse()))))
    except StorageError as error:
        sys.exit(str(error))
