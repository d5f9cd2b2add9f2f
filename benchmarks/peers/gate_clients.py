"""Clients for `benchmarks/gates.py`, many in one process: real gates on real sockets, or the bare client of a peer.

Is told by lines on its standard input, and answers by lines of JSON: it says `ready` when all are connected; on `wait`
all wait for the next press (`waiting`), and tell when they passed; `count` is the same once all pushes before are verified. Times are of the monotonic clock, which the
processes of one machine share.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from websockets.asyncio.client import ClientConnection, connect

from coordinator import Storage
from coordinator.config import StorageConfig
from coordinator.gates.state import GateConfig
from coordinator.realtime import protocol
from coordinator.realtime.hub_client import HubConnection

GATE = "bench-gate"
AT_ONCE = 25


class Client:
    """One who waits."""

    requests = 0
    is_settled = is_verified = True

    async def connect(self) -> None: ...

    async def passed(self) -> tuple[float, int]:
        """Wait for the next press; returns when it passed, and which epoch."""
        raise NotImplementedError

    def account(self) -> None:
        """All have passed."""


class GateClient(Client):
    """One worker, with all that a process of its own would have: a socket, a storage with connections, a gate."""

    def __init__(self, url: str, token: str, name: str) -> None:
        self.storage = Storage.from_connection_string(
            os.environ["BENCH_STORAGE"], config=StorageConfig(prefix=os.environ["BENCH_PREFIX"])
        )
        self.name, self.instance = name, uuid.uuid4().hex
        self.hub = HubConnection(url, token, hello=self.hello, on_command=lambda command: None)
        self.storage.bus = self.hub
        # Without polls what is counted is what the release causes.
        self.gate = self.storage.gate(GATE, config=GateConfig(push_poll_seconds=3600))

    @property
    def requests(self) -> int:  # type: ignore[override]
        return self.storage.meter.total

    @property
    def is_settled(self) -> bool:  # type: ignore[override]
        """It has looked, and found the gate closed."""
        gate = self.gate
        return gate.waiting > 0 and gate._cache.confirmed > self.asked and not gate.is_open()

    @property
    def is_verified(self) -> bool:  # type: ignore[override]
        """It has compared all pushes with storage."""
        return not self.gate._cache.unverified

    def hello(self) -> protocol.Hello:
        state = protocol.WorkerState(gates=(self.gate.status(),))
        prefix = self.storage.config.prefix
        return protocol.Hello(
            protocol.VERSION, self.name, self.instance, "bench", 1, time.time(), "bench", prefix, state
        )

    async def connect(self) -> None:
        self.connection = asyncio.create_task(self.hub.run())
        while not self.hub.is_connected:
            await asyncio.sleep(0.02)

    async def passed(self) -> tuple[float, int]:
        self.asked = self.gate._cache.sends
        self.release = await self.gate.wait()
        return time.monotonic(), self.release.epoch

    def account(self) -> None:
        release = self.release
        self.hub.receipt(
            protocol.Receipt(GATE, release.epoch, release.source, release.delay_seconds, time.time())
        )


class SocketClient(Client):
    """A bare websocket."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def connect(self) -> None:
        self.socket: ClientConnection = await connect(self.url, compression=None)

    async def passed(self) -> tuple[float, int]:
        await self.socket.recv()
        return time.monotonic(), 0


class RedisClient(Client):
    """A bare subscriber."""

    def __init__(self, url: str) -> None:
        import redis.asyncio as redis

        self.subscriber: Any = redis.Redis.from_url(url, single_connection_client=True).pubsub()

    async def connect(self) -> None:
        await self.subscriber.subscribe("gate")
        await self.subscriber.get_message(timeout=5)

    async def passed(self) -> tuple[float, int]:
        while not await self.subscriber.get_message(ignore_subscribe_messages=True, timeout=30):
            pass
        return time.monotonic(), 0


async def main(kind: str, url: str, number: int, start: int) -> None:
    last, before = 0.0, 0
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    clients: Sequence[Client]
    if kind == "gate":
        token = os.environ["BENCH_TOKEN"]
        clients = [GateClient(url, token, f"w-{start + index:04}") for index in range(number)]
    else:
        make = RedisClient if kind == "redis" else SocketClient
        clients = [make(url) for _ in range(number)]
    for index in range(0, number, AT_ONCE):
        await asyncio.gather(*(client.connect() for client in clients[index : index + AT_ONCE]))
    say(event="ready")
    while (order := await orders.readline()) in (b"wait\n", b"count\n", b"rest\n"):
        if order == b"rest\n":
            # What the release cost later: each worker compares the push with storage.
            await asyncio.sleep(max(0.0, last + 1.0 - time.monotonic()))
            second = sum(client.requests for client in clients)
            await asyncio.sleep(max(0.0, last + 61.0 - time.monotonic()))
            verified = sum(client.requests for client in clients)
            say(event="rested", first_second=second - before, minute=verified - before)
            continue
        waits = [asyncio.create_task(client.passed()) for client in clients]
        while not all(client.is_settled and (order == b"wait\n" or client.is_verified) for client in clients):
            await asyncio.sleep(0.2)
        await asyncio.sleep(0.5)
        # Five hundred workers' memory is not looked through while they pass: a process of a fleet has one worker's.
        gc.collect()
        gc.freeze()
        settled = sum(client.requests for client in clients)
        before = settled
        say(event="waiting")
        passed = await asyncio.gather(*waits)
        last = max(at for at, _ in passed)
        requests = sum(client.requests for client in clients) - before
        for client in clients:
            client.account()
        say(event="passed", passes=[(epoch, at) for at, epoch in passed], requests=requests)
    os._exit(0)


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
