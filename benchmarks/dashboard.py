"""How fast a press reaches all workers, and what the hub costs while nothing happens.

    python benchmarks/dashboard.py [--workers 1000] [--viewers 1] [--processes 1] [--presses 5] [--quick] [--json]

Workers are bare sockets that answer a hint with a receipt at once; the press is a POST by a signed-in operator.
Storage is Azurite; with several processes, workers are spread evenly over them; all share this machine's cores, the workers' client among them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordinator.testing.azurite import Azurite
from tests.support.crowd import Waiting, all_wait_again, crowd
from tests.support.dashboard import Dashboard, Person, until
from tests.support.redis import running_redis

GATE = Waiting.gate
IDLE_SECONDS = 10.0


async def measure(dashboards: list[Dashboard], options: argparse.Namespace) -> dict[str, Any]:
    dashboard, count = dashboards[0], len(dashboards)
    assert dashboard.process is not None
    process = psutil.Process(dashboard.process.pid)
    passes: list[float] = []
    presses: list[float] = []
    first: list[float] = []
    spread: list[float] = []
    async with crowd(dashboards, options.workers) as workers:
        with Person(dashboard, "olga") as olga:
            sockets = [await olga.socket("overview") for _ in range(options.viewers)]
            readers = [asyncio.create_task(_drain(socket)) for socket in sockets]
            await until(lambda: len(_waiting(olga)) == options.workers, seconds=60)
            before, began = process.cpu_times(), time.perf_counter()
            await asyncio.sleep(IDLE_SECONDS)
            after, seconds = process.cpu_times(), time.perf_counter() - began
            cpu = (after.user + after.system - before.user - before.system) / seconds
            for _ in range(options.presses):
                pressed = time.time()
                answer = await asyncio.to_thread(
                    olga.post, f"/gates/{GATE}/unleash", page="/accounts/logout/"
                )
                presses.append((time.time() - pressed) * 1000)
                assert answer.status_code == 200, answer.status_code
                await until(lambda: all(worker.arrived_at for worker in workers), seconds=30)
                spread.append(
                    (max(w.arrived_at for w in workers) - min(w.arrived_at for w in workers)) * 1000
                )
                first.append((min(w.arrived_at for w in workers) - pressed) * 1000)
                passes += [(worker.arrived_at - pressed) * 1000 for worker in workers]
                counted = time.perf_counter()
                await until(lambda: _passed(olga) == options.workers, seconds=30)
                counted = (time.perf_counter() - counted) * 1000
                await asyncio.to_thread(
                    olga.post, f"/gates/{GATE}/leash", {"reason": "again"}, page="/accounts/logout/"
                )
                await all_wait_again(workers)
                await until(lambda: len(_waiting(olga)) == options.workers, seconds=30)
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            await asyncio.gather(*(socket.close() for socket in sockets))
    passes.sort()
    return {
        "workers": options.workers,
        "processes": count,
        "viewers": options.viewers,
        "press_to_pass_ms": {"p50": _at(passes, 0.5), "p99": _at(passes, 0.99), "max": round(passes[-1], 1)},
        "post_ms": {"p50": _at(sorted(presses), 0.5), "max": round(max(presses), 1)},
        "press_to_first_ms": round(max(first), 1),
        "first_to_last_ms": round(max(spread), 1),
        "idle_cpu_percent": round(cpu * 100, 1),
        "memory_mib": round(process.memory_info().rss / 2**20, 1),
    }


def _waiting(person: Person) -> list[str]:
    gates = person.get("/api/v1/fleet").json()["gates"]
    return next((gate["waiting"] for gate in gates if gate["name"] == GATE), [])


def _passed(person: Person) -> int:
    gates = person.get("/api/v1/fleet").json()["gates"]
    release = next((gate["release"] for gate in gates if gate["name"] == GATE), None)
    return release["passed"] if release else 0


async def _drain(socket: Any) -> None:
    async for _ in socket:
        pass


def _at(ordered: list[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--viewers", type=int, default=1)
    parser.add_argument("--presses", type=int, default=5)
    parser.add_argument("--processes", type=int, default=1, help="dashboard processes, over Redis")
    parser.add_argument("--quick", action="store_true", help="200 workers, two presses")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.workers, options.presses = min(options.workers, 200), 2
    with Azurite() as azurite, tempfile.TemporaryDirectory() as folder:
        prefix = f"b{secrets.token_hex(4)}-"
        with contextlib.ExitStack() as stack:
            extra = {}
            if options.processes > 1:
                extra = {
                    "REDIS_URL": stack.enter_context(running_redis()),
                    "KENNEL_PROCESSES": str(options.processes),
                }
            first = stack.enter_context(Dashboard(Path(folder), azurite.connection_string, prefix, extra))
            dashboards = [first]
            for _ in range(1, options.processes):
                dashboards.append(first.sibling().start())
                stack.callback(dashboards[-1].stop)
            result = asyncio.run(measure(dashboards, options))
    for name, value in result.items():
        print(f"{name:20} {value}")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
