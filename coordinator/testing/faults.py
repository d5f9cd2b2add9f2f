"""What a network and a service break, on order: a proxy in front of the storage emulator, and the same for stores in memory.

    with FaultProxy(azurite.connection_string) as proxy:
        storage = Storage.from_connection_string(proxy.connection_string)
        proxy.once(DROP_ANSWER, service="blob", method="PUT", path="/orders")   # the write commits, its answer is lost
        proxy.at_random(0.05, seed=7)                                           # and 5 % of all else goes wrong somehow
        …
        print(proxy.applied)                                                    # what was done to which request

Requests are forwarded byte for byte (also the Host header: signatures stay valid); only answers are meddled with. The
proxy runs on a thread of its own and serves any number of processes. For tests and benchmarks, not for the wild.

Every request of an operation in turn meets a fault with `for_each_request`:

    for turn in proxy.for_each_request(DROP_ANSWER, answer_delayed(0.2)):
        gate = …                                     # prepare: no fault yet
        with turn:                                   # the first request in here, in the next turn the second, …
            await gate.open(by="ann", reason="sale")
        …                                            # check what was promised; `turn.applied` is the request, or None

`FaultyStore` puts the same orders before any store of `coordinator.testing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import StorageBusy, StorageError, StorageUnreachable

SERVICES = ("blob", "queue", "table")


@dataclass(frozen=True)
class Fault:
    """One way to go wrong.

    delay_seconds: how long the request is on its way; the service acts late, also for a client that has given up.
    committed: whether the service gets the request (and carries it out).
    answer_delay_seconds: how long the answer is on its way; the service has acted by then.
    answer: what the client gets: "pass" the service's answer, "close" the connection without one, "reset" it,
        "truncate" the service's answer in its body, "hang" (the connection stays open and silent), or "error":
        `status` with the service's error `code` and, unless None, a Retry-After of `retry_after_seconds`.
    """

    name: str
    delay_seconds: float = 0.0
    committed: bool = True
    answer: str = "pass"
    status: int = 503
    code: str = "ServerBusy"
    answer_delay_seconds: float = 0.0
    retry_after_seconds: int | None = None


def delayed(seconds: float) -> Fault:
    """Nothing breaks, only the request takes longer: the service acts late."""
    return Fault(f"delayed {seconds:g} s", delay_seconds=seconds)


def answer_delayed(seconds: float) -> Fault:
    """Nothing breaks, only the answer takes longer: the service has acted, and the client hears of it late."""
    return Fault(f"answer delayed {seconds:g} s", answer_delay_seconds=seconds)


def throttled(retry_after_seconds: int = 1, *, status: int = 503) -> Fault:
    """Refused for the rate of requests: 503 ServerBusy or 429 TooManyRequests with a Retry-After; not carried out."""
    code = "TooManyRequests" if status == 429 else "ServerBusy"
    name = f"{status}, retry after {retry_after_seconds} s"
    return Fault(name, 0.0, False, "error", status=status, code=code, retry_after_seconds=retry_after_seconds)


DROP_ANSWER = Fault("drop answer", answer="close")
RESET_AFTER = Fault("reset after commit", answer="reset")
RESET_BEFORE = Fault("reset before commit", committed=False, answer="reset")
BUSY = Fault("503, not carried out", committed=False, answer="error")
BUSY_COMMITTED = Fault("503, carried out", answer="error")
FAILED = Fault("500, not carried out", committed=False, answer="error", status=500, code="InternalError")
FAILED_COMMITTED = Fault("500, carried out", answer="error", status=500, code="InternalError")
TRUNCATED = Fault("truncated answer", answer="truncate")
THROTTLED = throttled()
TOO_MANY = throttled(status=429)
HANGS_BEFORE = Fault("hangs, not carried out", committed=False, answer="hang")
HANGS_AFTER = Fault("hangs, carried out", answer="hang")
SLOW = Fault("slow", delay_seconds=0.3)
SLOW_ANSWER = Fault("slow answer", answer_delay_seconds=0.3)

# What `at_random` chooses from unless it is given others. Hanging is not among it: it costs a whole time-out each.
ALL_FAULTS = (
    DROP_ANSWER, RESET_AFTER, RESET_BEFORE, BUSY, BUSY_COMMITTED, FAILED, FAILED_COMMITTED, TRUNCATED, THROTTLED, TOO_MANY,
    SLOW, SLOW_ANSWER,
)  # fmt: skip

_NOTHING = Fault("none")


@dataclass(frozen=True)
class Applied:
    """A request that met a fault; `number` counts all requests from 1."""

    number: int
    service: str
    method: str
    path: str
    fault: Fault


@dataclass(eq=False)
class _Rule:
    fault: Fault
    service: str
    method: str
    path: str
    skip: int
    times: int
    applied: Applied | None = None

    def fits(self, service: str, method: str, path: str) -> bool:
        return self.service in ("", service) and self.method in ("", method) and self.path in path


class Turn:
    """One run of an operation in `for_each_request`: within `with turn:` request `number` meets `fault`.

    `applied` is that request once it was sent, and None if the operation had fewer requests.
    """

    def __init__(self, orders: FaultOrders, rule: _Rule) -> None:
        self.fault = rule.fault
        self.number = rule.skip + 1
        self.is_used = False
        self._orders = orders
        self._rule = rule

    @property
    def applied(self) -> Applied | None:
        return self._rule.applied

    def __enter__(self) -> Self:
        self.is_used = True
        self._orders._add(self._rule)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._orders._remove(self._rule)

    def __repr__(self) -> str:
        return f"Turn({self.fault.name!r} for request {self.number}: {self.applied})"


class FaultOrders:
    """Which request meets which fault: the common part of `FaultProxy` and `FaultyStore`.

    Rules made by `once`, `times` and `for_each_request` come before chance (`at_random`), which comes before `always`.
    Each rule is used up in order of its making. Thread-safe. `applied` lists the requests that met a fault, `requests`
    counts all.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        self._always = _NOTHING
        self._rate, self._rng, self._choice = 0.0, random.Random(), tuple[Fault, ...](ALL_FAULTS)
        self.applied: list[Applied] = []
        self.requests = 0
        self.seed: int | None = None

    def once(
        self, fault: Fault, *, service: str = "", method: str = "", path: str = "", skip: int = 0
    ) -> None:
        """The next fitting request (after `skip` of them) meets the fault. `path` is any part of path and query."""
        self.times(1, fault, service=service, method=method, path=path, skip=skip)

    def times(
        self, times: int, fault: Fault, *, service: str = "", method: str = "", path: str = "", skip: int = 0
    ) -> None:
        """The next `times` fitting requests meet the fault."""
        self._add(_Rule(fault, service, method, path, skip, times))

    def for_each_request(
        self, *faults: Fault, service: str = "", method: str = "", path: str = ""
    ) -> Iterator[Turn]:
        """Turns for an operation that is run again and again: in each, another of its (fitting) requests meets the fault.

        Ends with the turn in which the operation had no further request, so that the last turn of each fault is one
        without trouble. An operation may need other requests after a fault; those pass.
        """
        for fault in faults:
            for skip in itertools.count():
                turn = Turn(self, _Rule(fault, service, method, path, skip, 1))
                yield turn
                if not turn.is_used:
                    raise RuntimeError(
                        "run the operation inside `with turn:`, or for_each_request never ends"
                    )
                if turn.applied is None:
                    break

    def at_random(self, rate: float, *, seed: int, faults: Sequence[Fault] = ALL_FAULTS) -> None:
        """Each request meets one of the faults with probability `rate`; the seed is printed by a test that fails."""
        with self._lock:
            self._rate, self._rng, self._choice, self.seed = rate, random.Random(seed), tuple(faults), seed

    def always(self, fault: Fault) -> None:
        """Every request that meets nothing else meets this: a slow network, say."""
        with self._lock:
            self._always = fault

    def heal(self) -> None:
        """From now on nothing goes wrong. Requests that hang already go on hanging."""
        with self._lock:
            self._rules.clear()
            self._rate, self._always = 0.0, _NOTHING

    def _add(self, rule: _Rule) -> None:
        with self._lock:
            self._rules.append(rule)

    def _remove(self, rule: _Rule) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._rules.remove(rule)

    def _decide(self, service: str, method: str, path: str) -> Fault:
        with self._lock:
            self.requests += 1
            rule, fault = self._chosen(service, method, path)
            if fault is not self._always:
                self.applied.append(Applied(self.requests, service, method, path, fault))
                if rule is not None:
                    rule.applied = self.applied[-1]
            return fault

    def _chosen(self, service: str, method: str, path: str) -> tuple[_Rule | None, Fault]:
        for rule in self._rules:
            if rule.times and rule.fits(service, method, path):
                if rule.skip:
                    rule.skip -= 1
                    continue
                rule.times -= 1
                return rule, rule.fault
        if self._rate and self._rng.random() < self._rate:
            return None, self._rng.choice(self._choice)
        return None, self._always


class FaultyStore(FaultOrders):
    """Any store of `coordinator.testing` (or of yours), whose calls meet faults as requests meet those of `FaultProxy`.

        transport = FaultyStore(MemoryQueueTransport("orders-in", clock=clock), clock=clock)
        transport.once(DROP_ANSWER, method="delete")        # the message is gone, and nobody hears of it

    Has all that the store has; `method` is the name of the store's method and `path` any part of the store's name. The
    caller gets what the storage adapters raise: `StorageBusy`, or `StorageUnreachable` with `maybe_done`. A call that
    hangs ends so after `hang_seconds`. Delays use the clock given, or by `time.sleep` in a store that blocks.
    """

    def __init__(self, store: Any, *, clock: Clock = SYSTEM_CLOCK, hang_seconds: float = 5.0) -> None:
        super().__init__()
        self._store = store
        self._clock = clock
        self._hang_seconds = hang_seconds

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not inspect.ismethod(found) or name.startswith("_"):
            return found
        return self._asked(name, found) if inspect.iscoroutinefunction(found) else self._blocking(name, found)

    def _asked(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*given: Any, **named: Any) -> Any:
            fault = self._decide("", name, str(getattr(self._store, "name", "")))
            if fault.delay_seconds:
                await self._clock.sleep(fault.delay_seconds)
            answer = await method(*given, **named) if fault.committed else None
            if pause := self._pause(fault):
                await self._clock.sleep(pause)
            return self._answer(name, fault, answer)

        return call

    def _blocking(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            fault = self._decide("", name, str(getattr(self._store, "name", "")))
            if fault.delay_seconds:
                time.sleep(fault.delay_seconds)
            answer = method(*given, **named) if fault.committed else None
            if pause := self._pause(fault):
                time.sleep(pause)
            return self._answer(name, fault, answer)

        return call

    def _pause(self, fault: Fault) -> float:
        return fault.answer_delay_seconds + (self._hang_seconds if fault.answer == "hang" else 0.0)

    def _answer(self, name: str, fault: Fault, answer: Any) -> Any:
        if fault.answer == "pass":
            return answer
        raise _raised(
            f"{name}: {fault.name} (as the test asked)", str(getattr(self._store, "name", "")), fault
        )


def _raised(message: str, resource: str, fault: Fault) -> StorageError:
    if fault.answer != "error":
        return StorageUnreachable(message, resource=resource, maybe_done=True)
    return StorageBusy(
        message,
        resource=resource,
        status=fault.status,
        code=fault.code,
        maybe_done=fault.status >= 500,
        retry_after_seconds=float(fault.retry_after_seconds or 0),
    )


class FaultProxy(FaultOrders):
    """Listens on three free ports of 127.0.0.1, one for each service of the account behind `connection_string`.

    Without rules it passes everything on.
    """

    def __init__(self, connection_string: str) -> None:
        super().__init__()
        self._upstream_string = connection_string
        self._targets = {service: _endpoint(connection_string, service) for service in SERVICES}
        self._ports: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="kennel-fault-proxy", daemon=True)
        self._ready = threading.Event()

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
        if fault.answer_delay_seconds:
            await asyncio.sleep(fault.answer_delay_seconds)
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
            case "hang":
                await reader.read()  # until the client gives up
            case "reset":
                _reset(writer)
        return False


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
    waits = "" if fault.retry_after_seconds is None else f"retry-after: {fault.retry_after_seconds}\r\n"
    return (
        f"HTTP/1.1 {fault.status} {fault.code}\r\nx-ms-error-code: {fault.code}\r\ncontent-type: application/xml\r\n"
        f"{waits}content-length: {len(body)}\r\n\r\n{body}"
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
