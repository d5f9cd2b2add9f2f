"""A press on one of two dashboard processes over Redis, until all workers of both have it; beside it Channels' `group_send`.

    python benchmarks/processes.py [--workers 1000] [--presses 5] [--quick] [--json]

*press* is the whole way: the signed-in operator's POST, the audit, the write to storage, the fan-out of both processes.
*fan-out* is that alone: a frame of one worker that both processes pass on to all others, over the same sockets, which also carry
heartbeats. *group_send* is what Channels offers for it: two servers whose every consumer is in one group of its Redis layer, and
a frame that is sent to the group; once over `RedisChannelLayer`, which its documentation names first, and once over
`RedisPubSubChannelLayer`, the newer, which ours uses between its processes.

All clients are the same, in two processes of their own, and only note when a frame came: see `peers/raw_clients.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import requests
from websockets.asyncio.client import connect

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordinator.realtime.bus import Notification
from coordinator.realtime.protocol import Announce
from coordinator.testing.azurite import Azurite
from tests.support.crowd import quantile_ms
from tests.support.dashboard import TOKEN, BareWorker, Dashboard, Person, until
from tests.support.redis import running_redis

PEERS = Path(__file__).parent / "peers"
PROCESSES = 2
CLIENT_PROCESSES = 2
SETTLE_SECONDS = 1.0
PATIENCE_SECONDS = 120.0
SHARES = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
LAYERS = {"core": "RedisChannelLayer", "pubsub": "RedisPubSubChannelLayer"}
GATE = "start-order-processing"
WAITING = json.dumps({"gates": [{"name": GATE, "state": "closed", "waiting": True}]}, separators=(",", ":"))
PASSED = json.dumps({"gates": [{"name": GATE, "state": "open"}]}, separators=(",", ":"))


class Clients:
    """The processes that hold the sockets."""

    def __init__(self, processes: list[asyncio.subprocess.Process]) -> None:
        self.processes = processes

    async def order(self, line: str, answer: str) -> list[dict[str, Any]]:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{line}\n".encode())
        return await self.hear(answer)

    async def hear(self, event: str) -> list[dict[str, Any]]:
        """What all of them answer. A socket that was lost is an error: nobody would notice it in the figures."""

        async def one(process: asyncio.subprocess.Process) -> dict[str, Any]:
            assert process.stdout is not None
            line = await process.stdout.readline()
            told: dict[str, Any] = json.loads(line) if line else {"event": "end", "why": "it ended"}
            if told["event"] != event:
                raise RuntimeError(f"the clients were to say {event!r} and said {told!r:.200}")
            return told

        async with asyncio.timeout(PATIENCE_SECONDS):
            return await asyncio.gather(*(one(process) for process in self.processes))

    async def came(self) -> list[float]:
        return [at for told in await self.hear("came") for at in told["at"]]


@contextlib.asynccontextmanager
async def clients(
    urls: list[str],
    count: int,
    *,
    program: str = "raw_clients.py",
    processes: int = CLIENT_PROCESSES,
    **environ: str,
) -> AsyncIterator[Clients]:
    """That many sockets of a program of `peers`, spread evenly over the addresses and over the processes."""
    share = -(-count // processes)
    running = Clients(
        [
            await asyncio.create_subprocess_exec(
                *(sys.executable, str(PEERS / program), ",".join(urls)),
                *(str(min(share, count - first)), str(first)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | environ,
                limit=2**24,
            )
            for first in range(0, count, share)
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


async def ours(dashboards: list[Dashboard], count: int, presses: int) -> tuple[list[float], list[float]]:
    """How long a press takes, and the fan-out alone."""
    taken: list[float] = []
    fanned: list[float] = []
    urls = [dashboard.hub_url for dashboard in dashboards]
    environ = {"BENCH_TOKEN": TOKEN, "BENCH_PREFIX": dashboards[0].prefix}
    with Person(dashboards[0], "olga") as olga:
        async with (
            clients(urls, count, **environ) as crowd,
            BareWorker(dashboards[0], "announcer") as announcer,
        ):
            for _ in range(presses):
                await crowd.order(f"state {WAITING}", "told")
                await _until_figures(olga, 0, count)
                await crowd.order(f"expect gate:{GATE} receipt", "armed")
                await asyncio.sleep(SETTLE_SECONDS)
                pressed = time.monotonic()
                await asyncio.to_thread(_press, olga, "unleash")
                taken += [at - pressed for at in await crowd.came()]
                await crowd.order(f"state {PASSED}", "told")
                await _until_figures(olga, 1, count)
                # Whoever waited again before it has heard of the leash would take that for its release.
                await crowd.order(f"expect gate:{GATE}", "armed")
                await asyncio.to_thread(_press, olga, "leash")
                await crowd.came()
            for number in range(presses):
                word = f"queue:announced-{number}"
                await crowd.order(f"expect {word}", "armed")
                await asyncio.sleep(SETTLE_SECONDS)
                began = time.monotonic()
                await announcer.send(Announce(Notification(word)))
                fanned += [at - began for at in await crowd.came()]
    return taken, fanned


def _press(person: Person, verb: str) -> None:
    fields = {"csrfmiddlewaretoken": person.http.cookies["csrftoken"], "reason": "measured"}
    answer: requests.Response = person.http.post(
        f"{person.dashboard.url}/gates/{GATE}/{verb}", data=fields, timeout=30
    )
    assert answer.status_code == 200, (verb, answer.status_code)


async def _until_figures(person: Person, which: int, count: int) -> None:
    """Until that many wait at the gate (0), or have passed it (1)."""
    try:
        await until(lambda: _figures(person)[which] == count, seconds=60)
    except AssertionError:
        said = f"{('waiting', 'passed')[which]}: {_figures(person)[which]} of {count} after a minute"
        raise AssertionError(said) from None


def _figures(person: Person) -> tuple[int, int]:
    gates = person.get("/api/v1/fleet").json()["gates"]
    gate = next((each for each in gates if each["name"] == GATE), None)
    if gate is None:
        return 0, 0
    return len(gate["waiting"]), (gate["release"] or {"passed": 0})["passed"]


async def theirs(ports: list[int], count: int, presses: int) -> list[float]:
    taken: list[float] = []
    async with (
        clients([f"ws://127.0.0.1:{port}/" for port in ports], count) as crowd,
        connect(f"ws://127.0.0.1:{ports[0]}/press", compression=None, ping_interval=None) as press,
    ):
        for number in range(presses):
            word = f"queue:announced-{number}"
            await crowd.order(f"expect {word}", "armed")
            await asyncio.sleep(SETTLE_SECONDS)
            pressed = time.monotonic()
            await press.send(f'{{"type":"hint","hint":{{"topic":"{word}"}}}}')
            taken += [at - pressed for at in await crowd.came()]
    return taken


@contextlib.contextmanager
def _channels(redis_url: str, layer: str) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, PEERS / "gates.py", "channels", redis_url, layer],
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
    sent: dict[str, list[float]] = {}
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
        for layer in LAYERS:
            with contextlib.ExitStack() as servers:
                ports = [servers.enter_context(_channels(redis_url, layer)) for _ in range(PROCESSES)]
                sent[layer] = asyncio.run(theirs(ports, count, presses))
    result: dict[str, Any] = {
        "workers": count,
        "processes": PROCESSES,
        "press_ms": _told(press),
        "fan_out_ms": _told(fanned),
    }
    for layer, name in LAYERS.items():
        result[f"group_send_ms, {name}"] = _told(sent[layer])
    for layer, name in LAYERS.items():
        result[f"fan_out times faster than {name}"] = {
            share: round(quantile_ms(sent[layer], q) / quantile_ms(fanned, q), 1) for share, q in SHARES
        }
    return result


def _told(seconds: list[float]) -> dict[str, float]:
    return {share: quantile_ms(seconds, q) for share, q in SHARES}


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
        print(f"{name:50} {value}")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
