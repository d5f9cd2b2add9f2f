"""Clients for `benchmarks/sockets.py`: workers of which there is nothing but the socket, many in one process.

As those of `raw_clients.py`, they note when a frame came and decode nothing. They report at the interval that the hub sets, name
only what changed, follow one gate and one queue, and connect again, elsewhere, when their socket ends. Orders on standard
input, answers by lines of JSON:

    expect WORD     note when each socket gets its first frame with that word; `armed`; `came` when all have
    lost            `lost`: how many sockets ended since the last time, and how long each was away
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import resource
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.peers.raw_clients import AT_ONCE, CLOSE, EPOCH, PING, PONG, TEXT, Raw, say

GATE, QUEUE = "start-order-processing", "queue:announced"
AT_TOPIC = f'"topic":"gate:{GATE}"'.encode()
PACE = re.compile(rb'"heartbeat_seconds":([0-9.]+)')
AT_GATE = f'"gates":[{{"name":"{GATE}","state":"closed","waiting":true,"epoch":%d}}]'
STATE = f'{{{AT_GATE},"requests":{{"blob.GetBlob":2}}'
CHANGES = '{"type":"state","state":{"cpu_seconds":%.2f},"same":["gates","requests","memory_bytes"]}'
MOVED = f'{{"type":"state","state":{{"cpu_seconds":%.2f,{AT_GATE}}},"same":["requests","memory_bytes"]}}'
FIRST_PAUSE, MOST_PAUSE, SPREAD_REPORTS = 0.2, 3.0, 0.4  # as `coordinator.realtime.hub_client` has them


class Light(Raw):
    """One of them; `crowd` is the `Workers` of this process."""

    pace = 0.0
    epoch = said = 0

    def connection_lost(self, error: Exception | None) -> None:
        for waits in (self.is_open, self.welcomed):
            if not waits.done():
                waits.set_exception(ConnectionError("the connection ended"))
                waits.exception()
        if not self.crowd.is_over and self.crowd.sockets.get(self.number) is self:
            self.crowd.lost(self.number)

    def _take(self, kind: int, payload: bytes, now: float) -> None:
        if kind == PING:
            self._send(PONG, payload)
        elif kind == CLOSE:
            self.transport.close()
        elif kind == TEXT:
            if (found := PACE.search(payload)) is not None:
                self._beat_each(float(found[1]))
                if not self.welcomed.done():
                    self.welcomed.set_result(None)
            if AT_TOPIC in payload and (moved := EPOCH.search(payload)) is not None:
                self.epoch = int(moved[1])
            if not self.came and self.crowd.word and self.crowd.word in payload:
                self.came = now
                self.crowd.one_more()

    def _beat_each(self, seconds: float) -> None:
        first, self.pace = not self.pace, seconds
        if first:
            self._beat_later(random.uniform(0, seconds))

    def _beat_later(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._beat)

    def _beat(self) -> None:
        if not self.transport.is_closing():
            used = time.process_time()
            self.say(CHANGES % used if self.epoch == self.said else MOVED % (used, self.epoch))
            self.said = self.epoch
            self._beat_later(self.pace)


class Workers:
    """The sockets of this process."""

    def __init__(self, token: str, prefix: str, urls: list[str]) -> None:
        self.token, self.prefix, self.urls = token, prefix, urls
        self.sockets: dict[int, Light] = {}
        self.word, self.left, self.is_over = b"", 0, False
        self.away: list[float] = []
        self.returning: set[asyncio.Task[None]] = set()

    async def connect(self, number: int, attempt: int = 0) -> None:
        loop = asyncio.get_running_loop()
        url = urlsplit(self.urls[(number + attempt) % len(self.urls)])
        async with asyncio.timeout(30):
            _, light = await loop.create_connection(
                lambda: Light(self, url.geturl(), number),  # type: ignore[arg-type]
                url.hostname,
                url.port,
            )
            try:
                await light.is_open
                if self.token:
                    light.say(self._hello(number))
                    await light.welcomed
            except BaseException:
                light.transport.abort()
                raise
        self.sockets[number] = light

    def _hello(self, number: int) -> str:
        return (
            f'{{"type":"hello","version":2,"oldest":1,"worker":"worker-{number:05}","instance":"bench-{number}",'
            f'"host":"host-{number % 100}","pid":1,"started_at":{time.time()},"software":"bench","secret":"s",'
            f'"prefix":"{self.prefix}","follows":["gate:{GATE}","{QUEUE}"],"state":{STATE % 0},"memory_bytes":50000000}}}}'
        )

    def lost(self, number: int) -> None:
        task = asyncio.create_task(self._return(number, time.monotonic()))
        self.returning.add(task)
        task.add_done_callback(self.returning.discard)

    async def _return(self, number: int, since: float) -> None:
        attempt = 0
        await asyncio.sleep(random.uniform(0, SPREAD_REPORTS * max(0.0, self.sockets[number].pace - 1)))
        while not self.is_over:
            await asyncio.sleep(random.uniform(0, min(MOST_PAUSE, FIRST_PAUSE * 2**attempt)))
            attempt += 1
            try:
                await self.connect(number, attempt)
            except (OSError, TimeoutError):
                continue
            self.away.append(time.monotonic() - since)
            return

    def expect(self, word: str) -> None:
        self.left = len(self.sockets)
        for light in self.sockets.values():
            light.came = 0.0
        self.word = word.encode()

    def one_more(self) -> None:
        self.left -= 1
        if not self.left:
            self.word = b""
            say(event="came", at=[light.came for light in self.sockets.values()])


async def main(urls: list[str], count: int, first: int) -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    workers = Workers(os.environ.get("BENCH_TOKEN", ""), os.environ.get("BENCH_PREFIX", ""), urls)
    for start in range(first, first + count, AT_ONCE):
        part = range(start, min(start + AT_ONCE, first + count))
        await asyncio.gather(*(workers.connect(number) for number in part))
    say(event="ready")
    while order := (await orders.readline()).decode().split():
        match order:
            case ["expect", word]:
                workers.expect(word)
                say(event="armed")
            case ["lost"]:
                away, workers.away = workers.away, []
                say(event="lost", away=away, returning=len(workers.returning))
    workers.is_over = True
    for light in workers.sockets.values():
        light.transport.abort()


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main(sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3])))
