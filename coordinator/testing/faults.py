"""A proxy in front of the storage emulator that breaks what a network and a service break.

    with FaultProxy(azurite.connection_string) as proxy:
        storage = Storage.from_connection_string(proxy.connection_string)
        proxy.once(DROP_ANSWER, service="blob", method="PUT", path="/orders")   # the write commits, its answer is lost
        proxy.at_random(0.05, seed=7)                                           # and 5 % of all else goes wrong somehow
        …
        print(proxy.applied)                                                    # what was done to which request

Requests are forwarded byte for byte (also the Host header: signatures stay valid); only answers are meddled with. It
runs on a thread of its own and serves any number of processes. For tests and benchmarks, not for the wild.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

SERVICES = ("blob", "queue", "table")


@dataclass(frozen=True)
class Fault:
    """One way to go wrong.

    delay_seconds: wait first.  committed: whether the service gets the request (and carries it out).
    answer: what the client gets: "pass" the service's answer, "close" the connection without one, "reset" it,
        "truncate" the service's answer in its body, or "error": `status` with the service's error `code`.
    """

    name: str
    delay_seconds: float = 0.0
    committed: bool = True
    answer: str = "pass"
    status: int = 503
    code: str = "ServerBusy"


DROP_ANSWER = Fault("drop answer", answer="close")
RESET_AFTER = Fault("reset after commit", answer="reset")
RESET_BEFORE = Fault("reset before commit", committed=False, answer="reset")
BUSY = Fault("503, not carried out", committed=False, answer="error")
BUSY_COMMITTED = Fault("503, carried out", answer="error")
FAILED = Fault("500, not carried out", committed=False, answer="error", status=500, code="InternalError")
FAILED_COMMITTED = Fault("500, carried out", answer="error", status=500, code="InternalError")
TRUNCATED = Fault("truncated answer", answer="truncate")
SLOW = Fault("slow", delay_seconds=0.3)

ALL_FAULTS = (
    DROP_ANSWER, RESET_AFTER, RESET_BEFORE, BUSY, BUSY_COMMITTED, FAILED, FAILED_COMMITTED, TRUNCATED, SLOW,
)  # fmt: skip


def delayed(seconds: float) -> Fault:
    """Nothing breaks, it only takes longer."""
    return Fault(f"delayed {seconds:g} s", delay_seconds=seconds)


@dataclass(frozen=True)
class Applied:
    """A request that met a fault; `number` counts all requests of the proxy from 1."""

    number: int
    service: str
    method: str
    path: str
    fault: Fault


@dataclass
class _Rule:
    fault: Fault
    service: str
    method: str
    path: str
    skip: int
    times: int

    def fits(self, service: str, method: str, path: str) -> bool:
        return self.service in ("", service) and self.method in ("", method) and self.path in path


class FaultProxy:
    """Listens on three free ports of 127.0.0.1, one for each service of the account behind `connection_string`.

    Without rules it passes everything on. Rules made by `once` and `times` come before chance (`at_random`), which comes
    before `always`. Each rule is used up in order of its making. Thread-safe.
    """

    def __init__(self, connection_string: str) -> None:
        self._upstream_string = connection_string
        self._targets = {service: _endpoint(connection_string, service) for service in SERVICES}
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        self._always = Fault("none")
        self._rate, self._rng, self._choice = 0.0, random.Random(), tuple[Fault, ...](ALL_FAULTS)
        self.applied: list[Applied] = []
        self.requests = 0
        self.seed: int | None = None
        self._ports: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="kennel-fault-proxy", daemon=True)
        self._ready = threading.Event()

    # --- what goes wrong ----------------------------------------------------------------------------------------

    def once(
        self, fault: Fault, *, service: str = "", method: str = "", path: str = "", skip: int = 0
    ) -> None:
        """The next fitting request (after `skip` of them) meets the fault. `path` is any part of path and query."""
        self.times(1, fault, service=service, method=method, path=path, skip=skip)

    def times(
        self, times: int, fault: Fault, *, service: str = "", method: str = "", path: str = "", skip: int = 0
    ) -> None:
        """The next `times` fitting requests meet the fault."""
        with self._lock:
            self._rules.append(_Rule(fault, service, method, path, skip, times))

    def at_random(self, rate: float, *, seed: int, faults: Sequence[Fault] = ALL_FAULTS) -> None:
        """Each request meets one of the faults with probability `rate`; the seed is printed by a test that fails."""
        with self._lock:
            self._rate, self._rng, self._choice, self.seed = rate, random.Random(seed), tuple(faults), seed

    def always(self, fault: Fault) -> None:
        """Every request that meets nothing else meets this: a slow network, say."""
        with self._lock:
            self._always = fault

    def heal(self) -> None:
        """From now on nothing goes wrong."""
        with self._lock:
            self._rules.clear()
            self._rate, self._always = 0.0, Fault("none")

    # --- running ------------------------------------------------------------------------------------------------

    @property
    def connection_string(self) -> str:
        """As the one given, with this proxy's ports."""
        text = self._upstream_string
        for service, port in self._ports.items():
            text = re.sub(rf"(?i)({service}Endpoint=http://)[^/;]+", rf"\g<1>127.0.0.1:{port}", text)
        return text

    def start(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def stop(self) -> None:
        """Close every connection and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._hang_up())
        self._loop.close()

    async def _listen(self) -> None:
        for service in SERVICES:
            server = await asyncio.start_server(self._handler(service), "127.0.0.1", 0)
            self._ports[service] = server.sockets[0].getsockname()[1]
            self._servers.append(server)

    async def _hang_up(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _handler(self, service: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._serve(service, reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        return accept

    async def _serve(self, service: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        try:
            answers, upstream = await asyncio.open_connection(*self._targets[service])
            while await self._one(service, reader, writer, answers, upstream):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            pass
        finally:
            for each in (writer, upstream):
                if each is not None:
                    each.close()

    async def _one(
        self,
        service: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        """One request and its answer; False if the connection is over."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        body = await _body(reader, head, has_body=True)
        fault = self._decide(service, method, path)
        if fault.delay_seconds:
            await asyncio.sleep(fault.delay_seconds)
        answer_head = answer_body = b""
        if fault.committed:
            upstream.write(head + body)
            answer_head = await answers.readuntil(b"\r\n\r\n")
            status = int(answer_head.split(b" ", 2)[1])
            answer_body = await _body(
                answers, answer_head, has_body=method != "HEAD" and status not in (204, 304)
            )
        match fault.answer:
            case "pass":
                writer.write(answer_head + answer_body)
                await writer.drain()
                return b"connection: close" not in answer_head.lower()
            case "error":
                writer.write(_error(fault))
                await writer.drain()
                return True
            case "truncate":
                # Without a body to cut, the head is cut: a status, and then nothing.
                half = len(answer_body) // 2
                cut = (
                    answer_head + answer_body[:half]
                    if answer_body
                    else answer_head.split(b"\r\n")[0] + b"\r\n"
                )
                writer.write(cut)
                await writer.drain()
            case "reset":
                _reset(writer)
        return False

    def _decide(self, service: str, method: str, path: str) -> Fault:
        with self._lock:
            self.requests += 1
            fault = self._chosen(service, method, path)
            if fault is not self._always:
                self.applied.append(Applied(self.requests, service, method, path, fault))
            return fault

    def _chosen(self, service: str, method: str, path: str) -> Fault:
        for rule in self._rules:
            if rule.times and rule.fits(service, method, path):
                if rule.skip:
                    rule.skip -= 1
                    continue
                rule.times -= 1
                return rule.fault
        if self._rate and self._rng.random() < self._rate:
            return self._rng.choice(self._choice)
        return self._always


async def _body(reader: asyncio.StreamReader, head: bytes, *, has_body: bool) -> bytes:
    """The body that belongs to a head, as it is on the wire."""
    if not has_body:
        return b""
    lowered = head.lower()
    if b"\r\ntransfer-encoding: chunked" in lowered:
        parts = []
        while True:
            size_line = await reader.readline()
            size = int(size_line.split(b";")[0], 16)
            parts += [size_line, await reader.readexactly(size + 2)]
            if size == 0:
                return b"".join(parts)
    found = re.search(rb"\r\ncontent-length:\s*(\d+)", lowered)
    return await reader.readexactly(int(found[1])) if found else b""


def _error(fault: Fault) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>injected: {fault.name}</Message></Error>"
    return (
        f"HTTP/1.1 {fault.status} {fault.code}\r\nx-ms-error-code: {fault.code}\r\ncontent-type: application/xml\r\n"
        f"content-length: {len(body)}\r\n\r\n{body}"
    ).encode()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other side gets a reset instead of an orderly end."""
    raw = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _endpoint(connection_string: str, service: str) -> tuple[str, int]:
    found = re.search(rf"(?i){service}Endpoint=http://([^:/;]+):(\d+)", connection_string)
    if not found:
        raise ValueError(f"the connection string names no http {service} endpoint with a port")
    return found[1], int(found[2])
