"""Processes of a fleet for tests: forked from one that has imported everything, told what to do by arguments, telling
what happens as lines of JSON.

    python -m tests.support.nodes gate --count 50 --gate start --hub ws://…       (connection string in the environment)
    python -m tests.support.nodes lead --names a,b,c --ledger rows.sqlite3

Each line has `event`, `node`, `pid` and `at` (seconds since 1970). The parent writes the lines of all; it ends its
children when its standard input closes. SIGUSR1 makes a leading node step down from everything, one after the other, SIGUSR2 makes it block
its event loop for the seconds of `--stall`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from coordinator import Storage
from coordinator.config import StorageConfig
from coordinator.errors import LeadershipLost
from coordinator.leadership.fencing import FENCE_TABLE, fence_sql
from coordinator.leadership.term import Term
from coordinator.realtime import protocol
from coordinator.realtime.hub_client import HubConnection


def tell(event: str, node: str, **more: Any) -> None:
    # One write below the pipe's atomic size: lines of many processes never mix.
    line = json.dumps({"event": event, "node": node, "pid": os.getpid(), "at": time.time(), **more}) + "\n"
    os.write(1, line.encode())


def make_storage(node: str) -> Storage:
    storage = Storage.from_connection_string(
        os.environ["NODES_CONNECTION_STRING"], config=StorageConfig(prefix=os.environ["NODES_PREFIX"])
    )
    storage.identity = node
    return storage


@contextlib.asynccontextmanager
async def hub(storage: Storage, url: str, state: Callable[[], protocol.WorkerState]) -> Any:
    if not url:
        yield None
        return
    instance, started = uuid.uuid4().hex, time.time()

    def hello() -> protocol.Hello:
        return protocol.Hello(
            version=protocol.VERSION,
            worker=storage.identity,
            instance=instance,
            host="test",
            pid=os.getpid(),
            started_at=started,
            software="test",
            prefix=storage.config.prefix,
            state=state(),
        )

    token = os.environ.get("NODES_TOKEN", "token")
    connection = HubConnection(url, token, hello=hello, on_command=lambda command: None)
    storage.bus = connection
    running = asyncio.create_task(connection.run())
    try:
        while not connection.is_connected:
            await asyncio.sleep(0.01)
        yield connection
    finally:
        running.cancel()
        await asyncio.wait([running])


async def pass_gate(options: argparse.Namespace, node: str) -> None:
    storage = make_storage(node)
    gate = storage.gate(options.gate)

    async def follow() -> None:
        told = 0
        while True:
            await gate.changed()
            if gate.state is not None and gate.state.epoch != told and gate.status().state == "armed":
                told = gate.state.epoch
                tell("armed", node, epoch=told)

    def state() -> protocol.WorkerState:
        return protocol.WorkerState(gates=(gate.status(),))

    async with storage, hub(storage, options.hub, state), asyncio.TaskGroup() as aside:
        aside.create_task(follow(), name="armed")
        tell("waiting", node)
        while True:
            async with gate.watch():
                release = await gate.wait()
                at = time.time()
                await asyncio.sleep(0.3)  # so that telling does not take the processor from those who pass
                tell(
                    "passed",
                    node,
                    passed=at,
                    epoch=release.epoch,
                    source=release.source,
                    requests=storage.meter.total,
                )
                await gate.wait_leashed()
                tell("leashed", node)


async def lead(options: argparse.Namespace, node: str) -> None:
    storage = make_storage(node)
    ledger = sqlite3.connect(options.ledger, timeout=30, isolation_level=None)
    ledger.execute("PRAGMA journal_mode=WAL")
    ledger.execute(FENCE_TABLE)
    ledger.execute(
        "CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY, name TEXT, epoch INTEGER, node TEXT)"
    )

    ledger.execute("PRAGMA busy_timeout=5")

    async def work(term: Term) -> None:
        tell("begin", node, name=term.name, epoch=term.epoch)
        try:
            while True:
                # Not even a look at the term: the fence alone must refuse what is late.
                try:
                    ledger.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    # A node that was stopped within its transaction holds the file; only its own term could be late.
                    await asyncio.sleep(0.1)
                    continue
                try:
                    fence_sql(ledger.cursor(), _Unchecked(term))  # type: ignore[arg-type]
                    ledger.execute(
                        "INSERT INTO rows (name, epoch, node) VALUES (?, ?, ?)", (term.name, term.epoch, node)
                    )
                    ledger.execute("COMMIT")
                except LeadershipLost:
                    ledger.execute("ROLLBACK")
                    tell("refused", node, name=term.name, epoch=term.epoch)
                    raise
                await asyncio.sleep(options.write_seconds)
        finally:
            tell("end", node, name=term.name, epoch=term.epoch, held=term.held)

    def stalled(term: Term) -> None:
        tell("stalled", node, name=term.name, epoch=term.epoch, held=term.held)

    elections = [
        storage.election(name, identity=node, on_stall=stalled, lease_seconds=options.lease_seconds)
        for name in options.names.split(",")
    ]
    loop = asyncio.get_running_loop()

    async def step_down() -> None:
        for election in elections:
            election.step_down()
            await asyncio.sleep(options.between)

    going: list[asyncio.Task[None]] = []
    loop.add_signal_handler(signal.SIGUSR1, lambda: going.append(asyncio.create_task(step_down())))
    loop.add_signal_handler(signal.SIGUSR2, lambda: time.sleep(options.stall))
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)

    async def campaign(number: int, election: Any) -> None:
        await asyncio.sleep(options.spread * number / len(elections))
        await election.run(work)

    def state() -> protocol.WorkerState:
        now, told = time.time(), tuple(election.status() for election in elections)
        for status in told if options.tell_leases else ():
            tell("lease", node, name=status.name, role=status.role, asked=now, left=status.remaining_seconds)
        return protocol.WorkerState(elections=told)

    async with storage, hub(storage, options.hub, state) as connection:
        for election in elections if connection else ():
            election.on_status = connection.refresh_soon
        runs = [asyncio.create_task(campaign(number, election)) for number, election in enumerate(elections)]
        tell("campaigning", node)
        await asyncio.wait([*runs, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
        for run in (*runs, *going):
            run.cancel()
        results = await asyncio.gather(*runs, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                tell("failed", node, error=repr(result))
    tell("stopped", node, requests=storage.meter.by_operation())


async def compete(options: argparse.Namespace, node: str) -> None:
    """The same competition with the locks of others, for benchmarks."""
    how = {"source": source_loop, "redis": redis_lock, "postgres": postgres_lock}[options.what]
    names = options.names.split(",")

    async def one(number: int, name: str) -> None:
        await asyncio.sleep(options.spread * number / len(names))
        await how(name, node, options.server)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    runs = [asyncio.create_task(one(number, name)) for number, name in enumerate(names)]
    tell("campaigning", node)
    await stop.wait()
    for run in runs:
        run.cancel()
    await asyncio.gather(*runs, return_exceptions=True)


async def source_loop(name: str, node: str, server: str) -> None:
    """The sample of the pattern: lease, renew at three quarters, others try every lease and a bit."""
    from azure.core.exceptions import HttpResponseError
    from azure.storage.blob.aio import BlobLeaseClient

    async with make_storage(node) as storage:
        container = storage.config.container("leases")
        with contextlib.suppress(HttpResponseError):
            await storage.aio.blobs.create_container(container)
        blob = storage.aio.blobs.get_blob_client(container, f"source-{name}")
        with contextlib.suppress(HttpResponseError):
            await blob.upload_blob(b"")
        while True:
            lease = BlobLeaseClient(blob)
            try:
                await lease.acquire(lease_duration=15)
            except HttpResponseError:
                await asyncio.sleep(16.25)
                continue
            tell("begin", node, name=name, epoch=0)
            while True:
                await asyncio.sleep(11.25)
                await lease.renew()


async def redis_lock(name: str, node: str, server: str) -> None:
    import redis.asyncio as redis

    client = redis.Redis.from_url(server)
    lock = client.lock(name, timeout=15)
    await lock.acquire()
    tell("begin", node, name=name, epoch=0)
    while True:
        await asyncio.sleep(5)
        await lock.reacquire()


async def postgres_lock(name: str, node: str, server: str) -> None:
    import psycopg

    async with await psycopg.AsyncConnection.connect(server, autocommit=True) as connection:
        await connection.execute("SELECT pg_advisory_lock(hashtext(%s))", (name,))
        tell("begin", node, name=name, epoch=0)
        await asyncio.Event().wait()


class _Unchecked:
    """A term that does not look at its clock."""

    def __init__(self, term: Term) -> None:
        self.name, self.epoch = term.name, term.epoch

    def check(self) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["gate", "lead", "source", "redis", "postgres"])
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--node", default="node")
    parser.add_argument("--gate", default="start")
    parser.add_argument("--hub", default="")
    parser.add_argument("--server", default="", help="the URL of Redis or PostgreSQL")
    parser.add_argument("--names", default="")
    parser.add_argument("--ledger", default="")
    parser.add_argument("--spread", type=float, default=0.0)
    parser.add_argument("--stall", type=float, default=17.0)
    parser.add_argument("--between", type=float, default=0.3, help="seconds from one step-down to the next")
    parser.add_argument("--tell-leases", type=int, default=0, help="tell what is told of leases to the hub")
    parser.add_argument("--write-seconds", type=float, default=1.0)
    parser.add_argument("--lease-seconds", type=int, help="if not the default")
    options = parser.parse_args()
    role = {"gate": pass_gate, "lead": lead}.get(options.what, compete)
    children = []
    for number in range(options.count):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            asyncio.run(role(options, f"{options.node}-{number}"))
            os._exit(0)
        children.append(child)
    sys.stdin.read()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
    deadline = time.monotonic() + 10
    for child in children:
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.01)


if __name__ == "__main__":
    main()
