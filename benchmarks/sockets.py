"""What ten thousand sockets cost two hub processes over Redis, and what happens when one of them is killed.

    python benchmarks/sockets.py [--workers 10000] [--hubs 2] [--presses 5] [--idle 20] [--only all|kill|rest] [--quick] [--json]

Workers are light clients in processes of their own (`peers/light_workers.py`): real sockets and frames, no storage behind them.
*memory* is the growth of a hub process for each of its sockets, *cpu* what it uses of a core while nothing happens but
reports. *fan-out* is a frame of one worker that all hubs pass on to all; *broadcast* the same to as many sockets of as many bare
servers, pressed together. *press* is the whole way of an operator's POST. *pages* are requests meanwhile. At the end one hub is
killed with half of all sockets. Everything shares this machine's cores: read ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from websockets.asyncio.client import connect

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gates import ALLOW
from benchmarks.peers.light_workers import GATE, QUEUE
from benchmarks.processes import PATIENCE_SECONDS, Clients, clients
from coordinator.realtime.bus import Notification
from coordinator.realtime.protocol import Announce
from coordinator.testing.azurite import Azurite
from tests.support.crowd import quantile_ms
from tests.support.dashboard import TOKEN, BareWorker, Dashboard, Person
from tests.support.redis import running_redis

PEERS = Path(__file__).parent / "peers"
CLIENT_PROCESSES = 3
PAGES = ("/", "/gates/", "/workers/", "/queues/")


light = partial(clients, program="light_workers.py", processes=CLIENT_PROCESSES)


def _told(seconds: list[float]) -> dict[str, float]:
    return {
        name: quantile_ms(seconds, q)
        for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
    }


def _pages(person: Person, seconds: float) -> list[float]:
    taken, until_ = [], time.monotonic() + seconds
    while time.monotonic() < until_:
        for page in PAGES:
            began = time.monotonic()
            assert person.get(page).status_code == 200, page
            taken.append(time.monotonic() - began)
            time.sleep(0.1)
    return taken


def _press(person: Person, verb: str) -> None:
    fields = {"csrfmiddlewaretoken": person.http.cookies["csrftoken"], "reason": "measured"}
    answer = person.http.post(f"{person.dashboard.url}/gates/{GATE}/{verb}", data=fields, timeout=60)
    assert answer.status_code == 200, (verb, answer.status_code)


def _hub(dashboard: Dashboard) -> psutil.Process:
    assert dashboard.process is not None
    return psutil.Process(dashboard.process.pid)


async def ours(hubs: list[Dashboard], options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    urls = [hub.hub_url for hub in hubs]
    environ = {"BENCH_TOKEN": TOKEN, "BENCH_PREFIX": hubs[0].prefix}
    with Person(hubs[0], "olga") as olga:
        _pages(olga, 2.0)  # what is imported and cached at the first request is no socket's memory
        before = [_hub(hub).memory_info().rss for hub in hubs]
        began = time.monotonic()
        async with light(urls, options.workers, **environ) as crowd:
            found["connected_s"] = round(time.monotonic() - began, 1)
            await asyncio.sleep(15.0)  # the pace is known to all
            if options.only == "kill":
                return found | {"kill": await killed(hubs, crowd, olga, options.workers)}
            each = options.workers / len(hubs)
            grown = [_hub(hub).memory_info().rss - size for hub, size in zip(hubs, before, strict=True)]
            found["memory_kb_a_socket"] = [round(size / each / 1024, 1) for size in grown]
            used = [sum(_hub(hub).cpu_times()[:2]) for hub in hubs]
            await asyncio.sleep(options.idle)
            cpu = [sum(_hub(hub).cpu_times()[:2]) - was for hub, was in zip(hubs, used, strict=True)]
            found["cpu_of_a_core"] = [round(seconds / options.idle, 2) for seconds in cpu]
            found["pages_ms"] = _told(await asyncio.to_thread(_pages, olga, options.idle))
            pressed, fanned = [], []
            for _ in range(options.presses):
                await crowd.order(f"expect gate:{GATE}", "armed")
                at = time.monotonic()
                await asyncio.to_thread(_press, olga, "unleash")
                pressed += [each - at for each in await crowd.came()]
                await crowd.order(f"expect gate:{GATE}", "armed")
                await asyncio.to_thread(_press, olga, "leash")
                await crowd.came()
                await asyncio.sleep(3.0)
            async with BareWorker(hubs[0], "announcer") as announcer:
                for _ in range(options.presses):
                    await crowd.order(f"expect {QUEUE}", "armed")
                    at = time.monotonic()
                    await announcer.send(Announce(Notification(QUEUE)))
                    fanned += [each - at for each in await crowd.came()]
                    await asyncio.sleep(3.0)
            found["press_ms"], found["fan_out_ms"] = _told(pressed), _told(fanned)
            if len(hubs) > 1 and options.only == "all":
                found["kill"] = await killed(hubs, crowd, olga, options.workers)
    return found


async def killed(hubs: list[Dashboard], crowd: Clients, olga: Person, count: int) -> dict[str, Any]:
    """One hub ends; a release is pressed at the other while its workers return."""
    pages = asyncio.create_task(asyncio.to_thread(_pages, olga, 15.0))
    await asyncio.sleep(1.0)
    hubs[1].stop(kill=True)
    away: list[float] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(away) < count // len(hubs) and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        away += [seconds for told in await crowd.order("lost", "lost") for seconds in told["away"]]
    await crowd.order(f"expect gate:{GATE}", "armed")
    at = time.monotonic()
    await asyncio.to_thread(_press, olga, "unleash")
    passed = [each - at for each in await crowd.came()]
    return {
        "came_back": len(away),
        "away_s": {name: round(ms / 1000, 2) for name, ms in _told(away).items()},
        "pages_ms": _told(await pages),
        "released_after": len(passed),
        "press_after_ms": _told(passed),
    }


@contextlib.contextmanager
def bare_server() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, PEERS / "gates.py", "broadcast"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.stdin.close()
            server.wait(30)


async def theirs(ports: list[int], options: argparse.Namespace) -> list[float]:
    taken: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        crowd = await stack.enter_async_context(
            light([f"ws://127.0.0.1:{port}/" for port in ports], options.workers)
        )
        presses = [
            await stack.enter_async_context(connect(f"ws://127.0.0.1:{port}/press", compression=None))
            for port in ports
        ]
        for _ in range(options.presses):
            await crowd.order(f"expect {QUEUE}", "armed")
            at = time.monotonic()
            await asyncio.gather(*(press.send(f'{{"hint":{{"topic":"{QUEUE}"}}}}') for press in presses))
            taken += [each - at for each in await crowd.came()]
            await asyncio.sleep(1.0)
    return taken


def measure(options: argparse.Namespace) -> dict[str, Any]:
    bare: list[float] = []
    with contextlib.ExitStack() as stack:
        if options.only != "kill":
            ports = [stack.enter_context(bare_server()) for _ in range(options.hubs)]
            bare = asyncio.run(theirs(ports, options))
    with contextlib.ExitStack() as stack:
        azurite = stack.enter_context(Azurite())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        extra = {"REDIS_URL": stack.enter_context(running_redis()), "KENNEL_PROCESSES": str(options.hubs)}
        first = Dashboard(folder, azurite.connection_string, f"b{secrets.token_hex(4)}-", extra).prepare()
        first.manage(code=ALLOW)
        hubs = [first.start(), *(first.sibling().start() for _ in range(options.hubs - 1))]
        try:
            found = asyncio.run(ours(hubs, options))
        finally:
            for hub in hubs:
                hub.stop()
    found = {"workers": options.workers, "hubs": options.hubs} | found
    if not bare:
        return found
    found["broadcast_ms"] = _told(bare)
    for name in ("fan_out", "press"):
        found[f"{name}_p99_by_broadcast"] = round(
            found[f"{name}_ms"]["p99"] / found["broadcast_ms"]["p99"], 2
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--hubs", type=int, default=2)
    parser.add_argument("--only", choices=["all", "kill", "rest"], default="all", help="rest: kill no hub")
    parser.add_argument("--presses", type=int, default=5)
    parser.add_argument("--idle", type=float, default=20.0)
    parser.add_argument("--quick", action="store_true", help="300 workers, two presses, 3 s of rest")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.workers, options.presses, options.idle = min(options.workers, 300), 2, 3.0
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    result = measure(options)
    for name, value in result.items():
        print(f"{name:28} {value}")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
