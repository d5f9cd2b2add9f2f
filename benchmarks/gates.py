"""How fast an opened gate is passed by all who wait, beside bare fan-outs; and what waiting costs.

    python benchmarks/gates.py [--workers 10,100,1000] [--presses 5] [--quick] [--json] [--only gate,broadcast,peers,armed,polling,cost]

The hub is the dashboard in a process of its own. Each worker has a `Storage`, a socket and a gate of its own, as a process
has, spread over two processes; so are the clients of every peer. A release counts from the call of `open` (`press`) and
from the moment storage confirmed it (`written`) to each pass. "last" is the last worker of a press; p99 is over all
workers of all presses. Requests are counted between the press and the last pass, in the second after it, and in the minute
in which each worker compares the push with storage. Everything shares this machine's cores: read ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import redis.asyncio as redis
from websockets.asyncio.client import connect

from benchmarks.armed import armed, show_armed
from benchmarks.peers.gate_clients import GateClient
from coordinator.config import StorageConfig
from coordinator.gates.gate import Gate
from coordinator.gates.releases import PollingRelease
from coordinator.realtime.bus import LocalBus
from coordinator.storage import Storage
from coordinator.testing.azurite import Azurite
from coordinator.testing.clock import ManualClock
from coordinator.testing.gates import MemoryGateStore
from tests.support.dashboard import TOKEN, Dashboard
from tests.support.redis import running_redis

PROCESSES = 2
ALLOW = f"""
from dashboard.core import tokens
from dashboard.core.permissions import Allowance
tokens.create("tests", token={TOKEN!r}, allowance=Allowance(connections=20_000, instances=50_000))
"""
SECTIONS = ("gate", "broadcast", "peers", "armed", "polling", "cost")


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def summary(rounds: list[list[float]]) -> dict[str, float]:
    """In milliseconds, over presses of many workers each."""
    every = [1000 * value for values in rounds for value in values]
    return {
        "p50_ms": round(quantile(every, 0.5), 1),
        "p99_ms": round(quantile(every, 0.99), 1),
        "worst_ms": round(quantile([1000 * max(values) for values in rounds], 0.5), 1),
    }


# --- the clients ------------------------------------------------------------------------------------------------------


class Clients:
    """The waiting side of a measurement: the same number of processes, whatever they wait for."""

    def __init__(self, processes: list[asyncio.subprocess.Process]) -> None:
        self.processes = processes

    async def wait(self, *, counted: bool = False) -> None:
        """Everybody waits for the next press; `counted`: and asks storage nothing any more."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(b"count\n" if counted else b"wait\n")
        await self.hear("waiting")

    async def rest(self) -> list[dict[str, Any]]:
        """What the last press cost in the minute after it."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(b"rest\n")
        return await self.hear("rested")

    async def hear(self, event: str) -> list[dict[str, Any]]:
        told = []
        for process in self.processes:
            assert process.stdout is not None
            line = json.loads(await process.stdout.readline() or "{}")
            if line.get("event") != event:
                raise RuntimeError(f"a process of clients said {line!r:.100} instead of {event}")
            told.append(line)
        return told


@asynccontextmanager
async def clients(kind: str, url: str, number: int, **environ: str) -> AsyncIterator[Clients]:
    program = Path(__file__).parent / "peers" / "gate_clients.py"
    count = min(PROCESSES, number)
    shares = [number // count + (index < number % count) for index in range(count)]
    running = Clients(
        [
            await asyncio.create_subprocess_exec(
                sys.executable,
                str(program),
                *(kind, url, str(share), str(sum(shares[:index]))),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | environ,
                limit=2**24,
            )
            for index, share in enumerate(shares)
        ]
    )
    try:
        await running.hear("ready")
        yield running
    finally:
        for process in running.processes:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()


async def presses_of(
    waiting: Clients,
    presses: int,
    press: Callable[[], Awaitable[int]],
    again: Callable[[], Awaitable[None]] | None = None,
) -> dict[str, Any]:
    """Press again and again; `press` returns the epoch that everybody is to pass, `again` makes ready for the next."""
    pressed_rounds, written_rounds, exactly_once, requests = [], [], True, 0
    for number in range(presses + 1):
        await waiting.wait(counted=number == presses)
        await asyncio.sleep(0.3)
        pressed = time.monotonic()
        epoch = await press()
        written = time.monotonic()
        told = await waiting.hear("passed")
        passes = [each for line in told for each in line["passes"]]
        if again is not None and number < presses:
            await again()
            await asyncio.sleep(0.7)
        if number == 0:
            continue  # the first opens connections and fills caches
        requests = sum(line["requests"] for line in told)  # of the last press
        exactly_once &= {each[0] for each in passes} == {epoch}
        pressed_rounds.append([at - pressed for _, at in passes])
        written_rounds.append([max(0.0, at - written) for _, at in passes])
    return {
        "press": summary(pressed_rounds),
        "written": summary(written_rounds),
        "each_once_per_epoch": exactly_once,
        "requests_until_passed": requests,
    }


# --- what they wait for -----------------------------------------------------------------------------------------------


async def gate_over_hub(dashboard: Dashboard, azurite: Azurite, number: int, presses: int) -> dict[str, Any]:
    environ = {
        "BENCH_STORAGE": azurite.connection_string,
        "BENCH_PREFIX": dashboard.prefix,
        "BENCH_TOKEN": TOKEN,
    }
    os.environ |= environ
    async with clients("gate", dashboard.hub_url, number, **environ) as waiting:
        operator = GateClient(dashboard.hub_url, TOKEN, "operator")
        gate = operator.gate
        await operator.connect()

        async def press() -> int:
            return (await gate.open(by="bench")).epoch

        async def leashed() -> None:
            await gate.close(by="bench")

        found = await presses_of(waiting, presses, press, leashed)
        later = await waiting.rest()
        for what in ("first_second", "minute"):
            found[f"requests_in_{what}"] = sum(each[what] for each in later)
        operator.connection.cancel()
        await asyncio.gather(operator.connection, return_exceptions=True)
        return found


@asynccontextmanager
async def peer_server(kind: str) -> AsyncIterator[int]:
    program = Path(__file__).parent / "peers" / "gates.py"
    process = subprocess.Popen([sys.executable, program, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdin is not None
    try:
        yield int(await asyncio.to_thread(process.stdout.readline))
    finally:
        process.stdin.close()
        await asyncio.to_thread(process.wait)
        process.stdout.close()


async def fan_out_peer(kind: str, number: int, presses: int) -> dict[str, Any]:
    """A press is a message on a socket of its own; the server sends to all others."""
    async with peer_server(kind) as port:
        url = f"ws://127.0.0.1:{port}/"
        async with (
            clients("socket", url, number) as waiting,
            connect(url + "press", compression=None) as socket,
        ):

            async def press() -> int:
                await socket.send("go")
                return 0

            return await presses_of(waiting, presses, press)


async def redis_peer(number: int, presses: int) -> dict[str, Any]:
    with running_redis() as url:
        async with clients("redis", url, number) as waiting, redis.Redis.from_url(url) as publisher:

            async def press() -> int:
                await publisher.publish("gate", "go")
                return 0

            return await presses_of(waiting, presses, press)


async def polling_peer(azurite: Azurite, number: int) -> dict[str, Any]:
    """S2 as the source has it: every worker looks at a flag every 2.5 s, for itself."""
    async with Storage.from_connection_string(
        azurite.connection_string, config=StorageConfig(prefix=f"b{secrets.token_hex(4)}-")
    ) as storage:
        flag = storage.flag("go-ahead")

        async def passed(number: int) -> float:
            await asyncio.sleep(2.5 * number / total)
            await PollingRelease(storage.flag("go-ahead")).wait()
            return time.perf_counter()

        total = number
        waits = [asyncio.create_task(passed(index)) for index in range(number)]
        await asyncio.sleep(4.0)
        pressed = time.perf_counter()
        await flag.set_flag(True)
        return {"press": summary([[at - pressed for at in await asyncio.gather(*waits)]])}


# --- what waiting costs -----------------------------------------------------------------------------------------------


class Up(LocalBus):
    is_connected = True  # type: ignore[assignment]


async def cost() -> dict[str, int]:
    """Storage requests of one waiting worker in an hour, counted over a simulated hour."""
    found = {}
    for name, bus in (("with_push", Up()), ("without_push", LocalBus())):
        clock = ManualClock()
        store = MemoryGateStore(clock=clock)
        gate = Gate(store, identity="w", bus=lambda bus=bus: bus, clock=clock)  # type: ignore[misc]
        wait = asyncio.create_task(gate.wait())
        await clock.advance(3600)
        found[name] = store.reads
        wait.cancel()
        await asyncio.gather(wait, return_exceptions=True)
    found["polling_2_5_s"] = 1440
    return found


# --- telling ----------------------------------------------------------------------------------------------------------


async def run(options: argparse.Namespace) -> dict[str, Any]:
    wanted = options.only.split(",") if options.only else list(SECTIONS)
    result: dict[str, Any] = {"benchmark": "gates", "quick": options.quick, "workers": {}}
    azurite = Azurite().start()
    try:
        with tempfile.TemporaryDirectory(prefix="kennel-bench-") as folder:
            dashboard = Dashboard(Path(folder), azurite.connection_string, f"b{secrets.token_hex(4)}-")
            if "gate" in wanted:
                dashboard.prepare().manage(code=ALLOW)
                dashboard.start()
            for number in options.workers if {"gate", "broadcast", "peers"} & set(wanted) else ():
                row: dict[str, Any] = {}
                if "gate" in wanted:
                    row["gate"] = await gate_over_hub(dashboard, azurite, number, options.presses)
                if "broadcast" in wanted or "peers" in wanted:
                    row["broadcast"] = await fan_out_peer("broadcast", number, options.presses)
                if "peers" in wanted:
                    row["channels"] = await fan_out_peer("channels", number, options.presses)
                    row["redis"] = await redis_peer(number, options.presses)
                if {"gate", "broadcast"} <= set(row):
                    for since in ("press", "written"):
                        row[f"{since}_p99_by_broadcast"] = round(
                            row["gate"][since]["p99_ms"] / row["broadcast"]["press"]["p99_ms"], 2
                        )
                result["workers"][str(number)] = row
                show(number, row)
            dashboard.stop()
        if "armed" in wanted:
            result["armed"] = await armed(azurite, *((10, 2) if options.quick else (50, 10)))
            show_armed(result["armed"])
        if "polling" in wanted:
            result["polling"] = await polling_peer(azurite, 20)
            line("polling, 2.5 s (20 workers)", result["polling"]["press"])
        if "cost" in wanted:
            result["requests_an_hour"] = await cost()
            print("requests an hour, waiting:", result["requests_an_hour"])
    finally:
        azurite.stop()
    return result


def line(name: str, found: dict[str, float]) -> None:
    print(
        f"  {name:34} p50 {found['p50_ms']:8.1f} ms   p99 {found['p99_ms']:8.1f}   last {found['worst_ms']:8.1f}"
    )


def show(number: int, row: dict[str, Any]) -> None:
    print(f"{number} workers, press to pass")
    if "gate" in row:
        line("gate, from the press", row["gate"]["press"])
        line("gate, from written in storage", row["gate"]["written"])
    for peer, name in (
        ("broadcast", "bare websockets.broadcast"),
        ("redis", "Redis pub/sub"),
        ("channels", "Channels group_send"),
    ):
        if peer in row:
            line(name, row[peer]["press"])
    if "press_p99_by_broadcast" in row:
        print(
            f"  gate by broadcast, p99: {row['press_p99_by_broadcast']} from the press, "
            f"{row['written_p99_by_broadcast']} from written"
        )
    if "gate" in row:
        print(
            f"  requests of all workers: {row['gate']['requests_until_passed']} between press and last pass, "
            f"{row['gate']['requests_in_first_second']} in the second after, {row['gate']['requests_in_minute']} in the minute"
        )


def main(argv: list[str] | None = None, show_json: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", default="")
    parser.add_argument("--presses", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    options.workers = [
        int(part) for part in (options.workers or ("10,300" if options.quick else "10,100,1000")).split(",")
    ]
    options.presses = options.presses or (2 if options.quick else 5)
    result = asyncio.run(run(options))
    if options.json:
        show_json(json.dumps(result))


if __name__ == "__main__":
    main()
