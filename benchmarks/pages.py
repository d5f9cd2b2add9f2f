"""How long each page takes on the server, and how much it sends, on a large fleet with a long past.

    python benchmarks/pages.py [--database sqlite|postgresql] [--workers 1000] [--scale large] [--rounds 100] [--quick] [--json]

The data is that of `manage.py seed_demo_data`; workers are bare sockets with a heartbeat each two seconds. Times are of whole
requests of an operator (Access: of an admin) over the loopback, one after the other, cookies and all, made by a process of its own; bytes are as
transferred, compressed or not.
*cpu* is what the dashboard's process used for a request, above what it uses anyway: unlike the times, it does not depend on who
else uses the machine. At the end the same for 50 browsers that look at the Overview, for each of them and second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import requests

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordinator.realtime.protocol import GateStatus, ListenerStatus, SequenceStatus, WorkerState
from coordinator.testing.azurite import Azurite
from tests.support.dashboard import BareWorker, Dashboard, Person, until
from tests.support.postgres import running_postgres

VIEWERS = 50
CPU_SECONDS = 8.0

PAGES = (
    "/",
    "/gates/",
    "/queues/",
    "/queues/?sort=depth",
    "/queues/orders-000/",
    "/queues/orders-000/messages",
    "/workers/",
    "/workers/?q=orders-05&presence=ok",
    "/leaders/",
    "/sequences/",
    "/sequences/?sequence=orders&number=1204318",
    "/sequences/?sequence=orders&owner=orders-7",
    "/sequences/?sequence=orders&before=500000000",
    "/audit/",
    "/audit/?q=olga",
    "/audit/?q=failed+refunds",
    "/audit/?q=nobody",
    "/audit/?before=100000",
    "/batches/",
    "/scaling/",
    "/cost/",
    "/search/?q=order",
    "/search/?q=s-0",
    "/throughput/",
    "/throughput/?span=day",
    "/throughput/?span=week",
    "/throughput/?span=month",
    "/alerts/",
    "/access/",
    "/help/",
    "/tv",
    "/history/?series=depth:orders-000&seconds=3600",
    "/history/?series=depth:orders-000&seconds=86400",
    "/history/?series=depth:orders-000&seconds=2592000",
    "/api/v1/fleet",
    "/metrics",
)


def state_of(number: int) -> WorkerState:
    queue = f"{('orders', 'invoices', 'refunds')[number % 3]}-{number % 3:03}"
    return WorkerState(
        gates=(GateStatus("start-order-processing", "closed", waiting=True),),
        listeners=(ListenerStatus(queue, 3, 5, 3, in_hand=2, done=number, state="running"),),
        sequences=(SequenceStatus("orders", 1, 1000, 500, per_second=3.0, runway_seconds=60.0),),
        requests={"queue.GetMessages": number, "queue.DeleteMessage": number},
        memory_bytes=80 * 2**20,
    )


async def measure(dashboard: Dashboard, options: argparse.Namespace) -> dict[str, Any]:
    workers = [BareWorker(dashboard, f"orders-{number:04}") for number in range(options.workers)]
    for number, worker in enumerate(workers):
        worker.state = state_of(number)
    for start in range(0, len(workers), 50):
        await asyncio.gather(*(worker.__aenter__() for worker in workers[start : start + 50]))
    for worker in workers:
        worker.beat(2.0)
        await asyncio.sleep(0.001)
    result: dict[str, Any] = {
        "database": options.database, "workers": options.workers, "scale": options.scale, "pages": {},
    }  # fmt: skip
    assert dashboard.process is not None
    process = psutil.Process(dashboard.process.pid)
    loop = asyncio.get_running_loop()
    spawned = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    with Person(dashboard, "olga") as olga, Person(dashboard, "adam") as adam, spawned as client:
        await until(lambda: len(olga.get("/api/v1/fleet").json()["workers"]) == options.workers, seconds=60)
        # Somebody looks all the time, so that the sampler keeps its quick pace.
        async with watching(olga, "help", 1):
            await asyncio.sleep(5)
            usual = await share_of_cpu(process)
            for path in PAGES:
                cpu, began = cpu_seconds(process), time.perf_counter()
                person = adam if path == "/access/" else olga
                cookies = person.http.cookies.get_dict()
                times, size = await loop.run_in_executor(
                    client, look, dashboard.url + path, cookies, options.rounds
                )
                used = cpu_seconds(process) - cpu - usual * (time.perf_counter() - began)
                times.sort()
                result["pages"][path] = {
                    "p50_ms": round(times[len(times) // 2], 1),
                    "p95_ms": round(times[min(len(times) - 1, int(len(times) * 0.95))], 1),
                    "cpu_ms": round(max(0.0, used) / options.rounds * 1000, 1),
                    "kilobytes": round(size / 1000, 1),
                }
            await asyncio.sleep(5)
            usual = await share_of_cpu(process)
            async with watching(olga, "overview", VIEWERS):
                await asyncio.sleep(2)
                more = await share_of_cpu(process) - usual
            result["cpu_ms_per_viewer_and_second"] = round(more * 1000 / VIEWERS, 2)
    await asyncio.gather(*(worker.__aexit__(None, None, None) for worker in workers))
    return result


def cpu_seconds(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system)


async def share_of_cpu(process: psutil.Process) -> float:
    before, began = cpu_seconds(process), time.perf_counter()
    await asyncio.sleep(CPU_SECONDS)
    return (cpu_seconds(process) - before) / (time.perf_counter() - began)


@contextlib.asynccontextmanager
async def watching(person: Person, page: str, count: int) -> AsyncIterator[None]:
    """So many browsers with that page open."""

    async def read(socket: Any) -> None:
        async for _ in socket:
            pass

    sockets = [await person.socket(page) for _ in range(count)]
    readers = [asyncio.create_task(read(socket)) for socket in sockets]
    try:
        yield
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await asyncio.gather(*(socket.close() for socket in sockets))


def look(url: str, cookies: dict[str, str], rounds: int) -> tuple[list[float], int]:
    times = []
    with requests.Session() as http:
        http.cookies.update(cookies)
        for _ in range(rounds):
            began = time.perf_counter()
            answer = http.get(url, timeout=30, stream=True)
            size = len(answer.raw.read(decode_content=False))
            times.append((time.perf_counter() - began) * 1000)
            assert answer.status_code == 200, (url, answer.status_code)
    return times, size


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--scale", choices=("small", "large"), default="large")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="200 workers, small data, 5 rounds")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.workers, options.scale, options.rounds = min(options.workers, 200), "small", 5
    server = running_postgres() if options.database == "postgresql" else contextlib.nullcontext("")
    with Azurite() as azurite, server as url, tempfile.TemporaryDirectory() as folder:
        extra = {"DATABASE_URL": url} if url else {}
        prefix = f"b{secrets.token_hex(4)}-"
        dashboard = Dashboard(Path(folder), azurite.connection_string, prefix, extra).prepare()
        print(dashboard.manage("seed_demo_data", "--scale", options.scale, seconds=900), end="")
        try:
            result = asyncio.run(measure(dashboard.start(), options))
        finally:
            dashboard.stop()
    print(f"{'page':60} {'p50 ms':>8} {'p95 ms':>8} {'cpu ms':>8} {'kB':>8}")
    for path, row in result["pages"].items():
        print(f"{path:60} {row['p50_ms']:8} {row['p95_ms']:8} {row['cpu_ms']:8} {row['kilobytes']:8}")
    print(f"cpu ms for each of {VIEWERS} viewers and second: {result['cpu_ms_per_viewer_and_second']}")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
