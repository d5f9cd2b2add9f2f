"""Clients for `benchmarks/gates.py`, many in one process: real gates on real sockets, or the bare client of a peer.

Is told by lines on its standard input, and answers by lines of JSON: it says `ready` when all are connected; on `wait`
all wait for the next press (`waiting`), and tell when they passed. Times are of the monotonic clock, which the
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
from coordinator.gates.azure import BlobGateStore
from coordinator.gates.gate import Answer, Gate
from coordinator.gates.state import GateState
from coordinator.realtime import protocol
from coordinator.realtime.bus import RESYNC, LocalBus, Notification
from coordinator.realtime.hub_client import HubConnection

GATE = "bench-gate"
AT_ONCE = 25


class Client:
    """One who waits."""

    async def connect(self) -> None: ...

    async def passed(self) -> tuple[float, int]:
        """Wait for the next press; returns when it passed, and which epoch."""
        raise NotImplementedError

    async def account(self, at: float) -> tuple[float, float, float]:
        """When it counts as passed, when it would have in a process of its own, and when the news had come."""
        return at, at, at


class Site(LocalBus):
    """What the workers of one process have in common: the gate before which they wait, and its reads of storage."""

    is_connected = True  # type: ignore[assignment]

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self.storage = storage
        self._store = BlobGateStore(storage, GATE)
        self.name = GATE
        self.reads: list[tuple[float, float]] = []
        self.gate = Gate(self, identity=f"site-{os.getpid()}", bus=lambda: self)

    async def read(self, etag: str) -> Answer:
        sent = time.monotonic()
        answer = await self._store.read(etag)
        self.reads.append((sent, time.monotonic()))
        return answer

    async def write(self, state: GateState, etag: str) -> str:
        return await self._store.write(state, etag)

    async def read_after(self, heard: float) -> float:
        """When the first request that was sent after that moment was answered."""
        while not self.reads or self.reads[-1][0] < heard:
            await asyncio.sleep(0.05)
        return next(answered for sent, answered in self.reads if sent >= heard)


class GateClient(Client):
    """One worker: a socket of its own, at the gate of its process.

    It has passed when its wait has returned *and* its own socket has brought the hint. In a process of its own it would
    have passed when a request is answered that was sent after that: told as well.
    """

    def __init__(self, site: Site, url: str, token: str, name: str) -> None:
        self.site, self.name, self.instance = site, name, uuid.uuid4().hex
        self.hub = HubConnection(url, token, hello=self.hello, on_command=lambda command: None)
        self.heard = 0.0
        self.hub.subscribe(f"gate:{GATE}", self.hear)

    def hear(self, hint: Notification) -> None:
        if hint.topic != RESYNC:
            self.heard = self.heard or time.monotonic()
            self.site.deliver(hint)

    def hello(self) -> protocol.Hello:
        state = protocol.WorkerState(gates=(self.site.gate.status(),))
        prefix = self.site.storage.config.prefix
        return protocol.Hello(
            protocol.VERSION, self.name, self.instance, "bench", 1, time.time(), "bench", prefix, state
        )

    async def connect(self) -> None:
        self.connection = asyncio.create_task(self.hub.run())
        while not self.hub.is_connected:
            await asyncio.sleep(0.02)

    async def passed(self) -> tuple[float, int]:
        self.heard = 0.0
        self.release = await self.site.gate.wait()
        return time.monotonic(), self.release.epoch

    async def account(self, at: float) -> tuple[float, float, float]:
        release = self.release
        self.hub.receipt(
            protocol.Receipt(GATE, release.epoch, release.source, release.delay_seconds, time.time())
        )
        while not self.heard:
            await asyncio.sleep(0.05)
        at = max(at, self.heard)
        return at, max(at, await self.site.read_after(self.heard)), self.heard


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
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    storage: Storage | None = None
    clients: Sequence[Client]
    if kind == "gate":
        storage = Storage.from_connection_string(
            os.environ["BENCH_STORAGE"], config=StorageConfig(prefix=os.environ["BENCH_PREFIX"])
        )
        token = os.environ["BENCH_TOKEN"]
        site = Site(storage)
        watching = site.gate.watch()
        await watching.__aenter__()
        clients = [GateClient(site, url, token, f"w-{start + index:04}") for index in range(number)]
    else:
        make = RedisClient if kind == "redis" else SocketClient
        clients = [make(url) for _ in range(number)]
    for index in range(0, number, AT_ONCE):
        await asyncio.gather(*(client.connect() for client in clients[index : index + AT_ONCE]))
    gc.collect()
    gc.freeze()
    say(event="ready")
    while (await orders.readline()) == b"wait\n":
        gc.collect()
        waits = [asyncio.create_task(client.passed()) for client in clients]
        await asyncio.sleep(0.5)
        before = storage.meter.total if storage else 0
        say(event="waiting")
        passed = await asyncio.gather(*waits)
        news = [await client.account(at) for client, (at, _) in zip(clients, passed, strict=True)]
        requests = storage.meter.total - before if storage else 0
        passes = [(epoch, *times) for (_, epoch), times in zip(passed, news, strict=True)]
        say(event="passed", passes=passes, requests=requests)
    os._exit(0)


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
