"""How long each page takes on the server, and how much it sends, on a large fleet with a long past.

    python benchmarks/pages.py [--workers 1000] [--scale large] [--rounds 20] [--quick] [--json]

The data is that of `manage.py seed_demo_data`; workers are bare sockets. Times are of whole requests over the loopback,
one after the other, cookies and all; bytes are as transferred, compressed or not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordinator.protocol import GateStatus, ListenerStatus, SequenceStatus, WorkerState
from coordinator.testing.azurite import Azurite
from tests.support.dashboard import BareWorker, Dashboard, Person, until

PAGES = (
    "/",
    "/gates/",
    "/queues/",
    "/queues/?sort=depth",
    "/workers/",
    "/leaders/",
    "/sequences/",
    "/audit/",
    "/audit/?q=olga",
    "/audit/?q=failed+refunds",
    "/audit/?before=100000",
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
    result: dict[str, Any] = {"workers": options.workers, "scale": options.scale, "pages": {}}
    with Person(dashboard, "vera") as vera:
        await until(lambda: len(vera.get("/api/v1/fleet").json()["workers"]) == options.workers, seconds=60)
        await asyncio.sleep(3)
        for path in PAGES:
            times, size = await asyncio.to_thread(look, vera, path, options.rounds)
            times.sort()
            result["pages"][path] = {
                "p50_ms": round(times[len(times) // 2], 1),
                "p95_ms": round(times[min(len(times) - 1, int(len(times) * 0.95))], 1),
                "kilobytes": round(size / 1000, 1),
            }
    await asyncio.gather(*(worker.__aexit__(None, None, None) for worker in workers))
    return result


def look(person: Person, path: str, rounds: int) -> tuple[list[float], int]:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        answer = person.http.get(person.dashboard.url + path, timeout=30, stream=True)
        size = len(answer.raw.read(decode_content=False))
        times.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, (path, answer.status_code)
    return times, size


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--scale", choices=("small", "large"), default="large")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="200 workers, small data, 5 rounds")
    parser.add_argument("--database-url", default="", help="default: SQLite in a temporary folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.workers, options.scale, options.rounds = min(options.workers, 200), "small", 5
    extra = {"DATABASE_URL": options.database_url} if options.database_url else {}
    with Azurite() as azurite, tempfile.TemporaryDirectory() as folder:
        prefix = f"b{secrets.token_hex(4)}-"
        dashboard = Dashboard(Path(folder), azurite.connection_string, prefix, extra).prepare()
        print(dashboard.manage("seed_demo_data", "--scale", options.scale, seconds=900), end="")
        try:
            result = asyncio.run(measure(dashboard.start(), options))
        finally:
            dashboard.stop()
    print(f"{'page':60} {'p50 ms':>8} {'p95 ms':>8} {'kB':>8}")
    for path, row in result["pages"].items():
        print(f"{path:60} {row['p50_ms']:8} {row['p95_ms']:8} {row['kilobytes']:8}")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
