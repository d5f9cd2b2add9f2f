"""A press on one of two dashboard processes over Redis, until all workers of both have it; beside it Channels' `group_send`.

    python benchmarks/processes.py [--workers 1000] [--presses 5] [--quick] [--json]

*press* is the whole way: the signed-in operator's POST, the audit, the write to storage, the fan-out of both processes.
*fan-out* is that alone: a frame of one worker that both processes pass on to all others, over the same sockets, which also carry
heartbeats and receipts. *group_send* is what Channels offers for it: two servers whose every consumer is in one group of its
Redis layer (the pub/sub one, which ours uses as well), and a frame that is sent to the group. The sockets' other ends are in
this process, in each case.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
from websockets.asyncio.client import ClientConnection, connect

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordinator.bus import Hint
from coordinator.protocol import Announce
from coordinator.testing.azurite import Azurite
from tests.support.crowd import Waiting, crowd, quantile_ms
from tests.support.dashboard import Dashboard, Person, until
from tests.support.redis import running_redis

PROCESSES = 2
AT_ONCE = 50
SHARES = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))


async def ours(dashboards: list[Dashboard], count: int, presses: int) -> tuple[list[float], list[float]]:
    """How long a press takes, and the fan-out alone."""
    taken: list[float] = []
    fanned: list[float] = []
    with Person(dashboards[0], "olga") as olga:
        async with crowd(dashboards, count) as workers:
            for _ in range(presses):
                await until(lambda: _figures(olga)[0] == count, seconds=60)
                await asyncio.sleep(1.0)
                pressed = time.time()
                answer = await asyncio.to_thread(_press, olga, "unleash")
                assert answer.status_code == 200, answer.status_code
                await until(lambda: all(worker.arrived_at for worker in workers), seconds=30)
                taken += [worker.arrived_at - pressed for worker in workers]
                await until(lambda: _figures(olga)[1] == count, seconds=30, what="receipts are missing")
                await asyncio.to_thread(_press, olga, "leash")
                for worker in workers:
                    worker.waits()
            for number in range(presses):
                await asyncio.sleep(1.0)
                topic, began = f"queue:announced-{number}", time.time()
                await workers[0].send(Announce(Hint(topic)))
                await until(lambda topic=topic: all(topic in w.told_at for w in workers[1:]), seconds=30)  # type: ignore[misc]
                fanned += [worker.told_at[topic] - began for worker in workers[1:]]
    return taken, fanned


def _press(person: Person, verb: str) -> requests.Response:
    fields = {"csrfmiddlewaretoken": person.http.cookies["csrftoken"], "reason": "measured"}
    return person.http.post(f"{person.dashboard.url}/gates/{Waiting.gate}/{verb}", data=fields, timeout=30)


def _figures(person: Person) -> tuple[int, int]:
    """How many wait at the gate, and how many have passed it."""
    gates = person.get("/api/v1/fleet").json()["gates"]
    gate = next((each for each in gates if each["name"] == Waiting.gate), None)
    if gate is None:
        return 0, 0
    return len(gate["waiting"]), (gate["release"] or {"passed": 0})["passed"]


async def theirs(ports: list[int], count: int, presses: int) -> list[float]:
    urls = [f"ws://127.0.0.1:{ports[number % len(ports)]}/" for number in range(count)]
    sockets: list[ClientConnection] = []
    for start in range(0, count, AT_ONCE):
        sockets += await asyncio.gather(
            *(connect(url, compression=None, ping_interval=None) for url in urls[start : start + AT_ONCE])
        )
    taken: list[float] = []

    async def one(socket: ClientConnection) -> float:
        await socket.recv()
        return time.time()

    async with connect(f"ws://127.0.0.1:{ports[0]}/press", compression=None, ping_interval=None) as press:
        for _ in range(presses):
            arrivals = asyncio.gather(*(one(socket) for socket in sockets))
            await asyncio.sleep(1.0)
            pressed = time.time()
            await press.send("open")
            taken += [at - pressed for at in await asyncio.wait_for(arrivals, 60)]
    await asyncio.gather(*(socket.close() for socket in sockets))
    return taken


@contextlib.contextmanager
def _channels(redis_url: str) -> Iterator[int]:
    program = Path(__file__).parent / "peers" / "gates.py"
    with subprocess.Popen(
        [sys.executable, program, "channels", redis_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # at its end it complains of every consumer
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.stdin.close()
            server.wait(20)


def measure(count: int, presses: int) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        azurite = stack.enter_context(Azurite())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis_url = stack.enter_context(running_redis())
        extra = {"REDIS_URL": redis_url, "KENNEL_PROCESSES": str(PROCESSES)}
        prefix = f"b{secrets.token_hex(4)}-"
        with Dashboard(folder, azurite.connection_string, prefix, extra) as first:
            second = first.sibling().start()
            try:
                press, fanned = asyncio.run(ours([first, second], count, presses))
            finally:
                second.stop()
        ports = [stack.enter_context(_channels(redis_url)) for _ in range(PROCESSES)]
        channels = asyncio.run(theirs(ports, count, presses))
    return {
        "workers": count,
        "processes": PROCESSES,
        "press_ms": {share: quantile_ms(press, q) for share, q in SHARES},
        "fan_out_ms": {share: quantile_ms(fanned, q) for share, q in SHARES},
        "group_send_ms": {share: quantile_ms(channels, q) for share, q in SHARES},
        "times_faster": {
            share: round(quantile_ms(channels, q) / quantile_ms(fanned, q), 1) for share, q in SHARES
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--presses", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="200 workers, two presses")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.workers, options.presses = min(options.workers, 200), 2
    result = measure(options.workers, options.presses)
    for name, value in result.items():
        print(f"{name:20} {value}")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
