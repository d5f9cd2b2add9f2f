"""Clients for `benchmarks/processes.py`, many in one process: websockets that do nothing but say when a frame came.

Frames are not decoded: the moment is taken once for each piece of data that the socket gives, before anything is looked at, so
what is measured is the servers. A *worker* says hello, sends heartbeats and, a moment after it was released, its receipt,
as Kennel's do; a *bare* one sends nothing. Told by lines on standard input, answers by lines of JSON; times are of the monotonic
clock, which the processes of one machine share.

    expect WORD [receipt]   note when each socket gets its first text frame with that word; `armed`, and `came` when all have
    state BODY              heartbeats have this state from now on, and one is sent now; `told`
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
import time
from typing import Any
from urllib.parse import urlsplit

AT_ONCE = 25
HEARTBEAT_SECONDS = 2.0
RECEIPTS_AFTER = (0.1, 0.3)
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
EPOCH = re.compile(rb'"epoch":(\d+)')


class Raw(asyncio.Protocol):
    """One socket: the handshake of RFC 6455, then frames, whose payloads are only searched."""

    def __init__(self, crowd: Crowd, url: str, number: int) -> None:
        self.crowd, self.url, self.number = crowd, urlsplit(url), number
        self.buffer = b""
        self.is_open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.came = 0.0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        lines = [
            f"GET {self.url.path} HTTP/1.1",
            f"Host: {self.url.netloc}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
        ]
        if self.crowd.token:
            lines += [f"Authorization: Bearer {self.crowd.token}", "Sec-WebSocket-Protocol: kennel.v1"]
        transport.write("\r\n".join([*lines, "", ""]).encode())

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self.buffer += data
        if not self.is_open.done():
            head, end, rest = self.buffer.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self.is_open.set_exception(ConnectionError(head.decode(errors="replace")[:200]))
                return
            self.buffer = rest
            self.is_open.set_result(None)
        while (frame := self._next()) is not None:
            self._take(frame[0], frame[1], now)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.crowd.is_over:
            say(event="lost", number=self.number, why=self.crowd.reason or str(error))

    def _next(self) -> tuple[int, bytes] | None:
        data = self.buffer
        if len(data) < 2:
            return None
        size, start = data[1] & 0x7F, 2
        if size >= 126:
            start = 4 if size == 126 else 10
            if len(data) < start:
                return None
            size = int.from_bytes(data[2:start], "big")
        if len(data) < start + size:
            return None
        self.buffer = data[start + size :]
        return data[0] & 0x0F, data[start : start + size]

    def _take(self, kind: int, payload: bytes, now: float) -> None:
        if kind == PING:
            self._send(PONG, payload)
        elif kind == CLOSE:
            self.crowd.reason = payload[2:].decode(errors="replace")
        elif kind == TEXT:
            if not self.welcomed.done():
                self.welcomed.set_result(None)
            if not self.came and self.crowd.word and self.crowd.word in payload:
                self.came = now
                self.crowd.one_more(self, payload)

    def say(self, text: str) -> None:
        self._send(TEXT, text.encode())

    def _send(self, kind: int, payload: bytes) -> None:
        # A mask of zeros is a mask: the payload goes as it is.
        size = len(payload)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
        self.transport.write(bytes([0x80 | kind]) + length + b"\0\0\0\0" + payload)


class Crowd:
    """The sockets of this process, and what they wait for."""

    def __init__(self, token: str, prefix: str) -> None:
        self.token, self.prefix = token, prefix
        self.sockets: list[Raw] = []
        self.word, self.is_over, self.receipts, self.left, self.reason = b"", False, False, 0, ""
        self.state = "{}"

    async def connect(self, urls: list[str], count: int, first: int) -> None:
        loop = asyncio.get_running_loop()

        async def one(number: int) -> Raw:
            url = urlsplit(urls[number % len(urls)])
            _, raw = await loop.create_connection(
                lambda: Raw(self, url.geturl(), number), url.hostname, url.port
            )
            await raw.is_open
            if self.token:
                raw.say(self._hello(number))
                await raw.welcomed
            return raw

        for start in range(first, first + count, AT_ONCE):
            part = range(start, min(start + AT_ONCE, first + count))
            self.sockets += await asyncio.gather(*(one(number) for number in part))

    def _hello(self, number: int) -> str:
        return (
            f'{{"type":"hello","version":1,"worker":"worker-{number:04}","instance":"{os.getpid()}-{number}","host":"bench",'
            f'"pid":1,"started_at":{time.time()},"software":"bench","prefix":"{self.prefix}","state":{self.state}}}'
        )

    def expect(self, word: str, *, receipts: bool) -> None:
        self.left, self.receipts = len(self.sockets), receipts
        for socket in self.sockets:
            socket.came = 0.0
        self.word = word.encode()

    def one_more(self, socket: Raw, payload: bytes) -> None:
        self.left -= 1
        if self.receipts:
            asyncio.get_running_loop().call_later(
                random.uniform(*RECEIPTS_AFTER), self._pass, socket, payload
            )
        if not self.left:
            self.word = b""
            say(event="came", at=[socket.came for socket in self.sockets])

    def _pass(self, socket: Raw, payload: bytes) -> None:
        gate = re.search(rb'"topic":"gate:([^"]+)"', payload)
        epoch = EPOCH.search(payload)
        assert gate and epoch
        socket.say(
            f'{{"type":"receipt","gate":"{gate[1].decode()}","epoch":{epoch[1].decode()},"source":"push",'
            f'"delay_seconds":0.0,"passed_at":{time.time()}}}'
        )

    async def beat(self) -> None:
        """A heartbeat of each every two seconds, spread over them, as those of real workers are."""
        while True:
            for socket in self.sockets:
                socket.say(f'{{"type":"state","state":{self.state}}}')
                await asyncio.sleep(HEARTBEAT_SECONDS / len(self.sockets))


async def main(urls: list[str], count: int, first: int) -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    crowd = Crowd(os.environ.get("BENCH_TOKEN", ""), os.environ.get("BENCH_PREFIX", ""))
    await crowd.connect(urls, count, first)
    beating = asyncio.create_task(crowd.beat()) if crowd.token else None
    say(event="ready")
    while order := (await orders.readline()).decode().split():
        match order:
            case ["expect", word, *more]:
                crowd.expect(word, receipts=bool(more))
                say(event="armed")
            case ["state", body]:
                crowd.state = body
                for socket in crowd.sockets:
                    socket.say(f'{{"type":"state","state":{body}}}')
                say(event="told")
    crowd.is_over = True
    if beating is not None:
        beating.cancel()
    for socket in crowd.sockets:
        socket.transport.close()


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3])))
