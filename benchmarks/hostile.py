"""What one socket at the limit of its rate costs the others: presses of *Unleash*, and the live updates of a browser.

    python benchmarks/hostile.py [--presses 100] [--flood] [--blobs 300] [--quick] [--json]

One dashboard, Azurite, 50 good workers and one browser's socket share this machine. The hostile worker sends 48 frames a second,
as many as its token allows: states of 200 gates each, receipts and announcements of about 40 KB together. Presses are paced, four
a second, so that they say what an operator meets, not how fast one can click. A press is timed twice: from the act until a worker that
waits has heard of the opening, and whole, with the page that has the form and the page that answers. Quiet and hostile presses take turns in
blocks, so that the rest of the machine disturbs both alike. Ratios are what counts: p99 at most 1.5 times the quiet one is the aim.

With `--flood`, four sockets of another process send generated frames as fast as they can, most of them beyond the bounds, and
come back whenever they are closed; before them, so many blobs and rows of garbage are put into each container and table. Three kinds of
presses take turns: quiet at a second dashboard whose prefix is clean, then with the garbage alone, and with garbage and flood (aim: 2).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import secrets
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import websockets

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordinator.config import StorageConfig
from coordinator.storage import Storage
from coordinator.testing.azurite import Azurite
from tests.support.crowd import quantile_ms
from tests.support.dashboard import BareWorker, Dashboard, Person, until
from tests.support.hostile import GATE, flood, litter, post_odd_messages

WORKERS = 50
BLOCK = 10
FRAMES_PER_SECOND = 48
PACE_SECONDS = 0.25

_STATE = {
    "type": "state",
    "state": {"gates": [{"name": f"g-{n}-{'x' * 100}", "state": "closed", "waiting": True} for n in range(200)]},
}  # fmt: skip


def frames(number: int) -> str:
    """A valid frame at its bounds, another each time."""
    kind = number % 3
    if kind == 0:
        return json.dumps(_STATE)
    if kind == 1:
        told = {"type": "receipt", "gate": GATE, "epoch": 10**15, "source": "push"}
        return json.dumps(told | {"delay_seconds": 0.1, "passed_at": time.time()})
    return json.dumps({"type": "announce", "hint": {"topic": f"queue:q-{number % 60}", "size": number}})


class Loud:
    """Sends as fast as it may while `on` is set; when it ends, it takes its claims back."""

    def __init__(self, worker: BareWorker) -> None:
        self.worker, self.on, self.sent = worker, asyncio.Event(), 0

    async def run(self) -> None:
        while True:
            await self.on.wait()
            await self.worker.send(frames(self.sent))
            self.sent += 1
            await asyncio.sleep(1 / FRAMES_PER_SECOND)
            if not self.on.is_set():
                await asyncio.sleep(0.5)
                await self.worker.send(json.dumps({"type": "state", "state": {"gates": []}}))


def flood_while(port: int, prefix: str, on: Any, over: Any, sent: Any) -> None:
    """Send frames while `on` is set, until `over` is. It steps back for others: attackers have machines of their own."""
    os.nice(10)
    dashboard = Dashboard(Path(), "", prefix, port=port)
    rng = random.Random(7)

    async def crew(name: str) -> None:
        while not over.is_set():
            if on.is_set():
                await flood(dashboard, rng, 80, name)
                sent.value += 80
            else:
                await asyncio.sleep(0.05)

    async def run() -> None:
        await asyncio.gather(*(crew(f"hostile-{n}") for n in range(4)))

    asyncio.run(run())


class Press(NamedTuple):
    """Seconds until a waiting worker heard of the opening, and for the whole of it: the page, the act, the page that answers."""

    passed: float
    whole: float


def pressed(person: Person, worker: BareWorker) -> Press:
    """Leash and unleash once."""
    person.post(f"/gates/{GATE}/leash", {"reason": "again"})
    began = time.perf_counter()
    form = person.form("/gates/")
    acted = time.perf_counter()
    answer = person.send(f"/gates/{GATE}/unleash", form)
    ended = time.perf_counter()
    assert answer.status_code == 200, answer.text[:200]
    heard = worker.opened_at(GATE, acted)
    assert heard is not None, "the worker had not heard of the opening when the page answered"
    return Press(heard - acted, ended - began)


def told(presses: list[Press]) -> dict[str, Any]:
    row: dict[str, Any] = {"presses": len(presses)}
    for kind, some in (
        ("passed", [each.passed for each in presses]),
        ("whole", [each.whole for each in presses]),
    ):
        row |= {f"{kind}_p50_ms": quantile_ms(some, 0.5), f"{kind}_p99_ms": quantile_ms(some, 0.99)}
    return row


def ratio(row: dict[str, Any], quiet: dict[str, Any], figure: str) -> float:
    return round(float(row[figure]) / float(quiet[figure]), 2)


def line(name: str, row: dict[str, Any], quiet: dict[str, Any]) -> str:
    return (
        f"{name:8} until a worker heard p50 {row['passed_p50_ms']:6.1f}, p99 {row['passed_p99_ms']:6.1f} ms "
        f"({ratio(row, quiet, 'passed_p99_ms')}); with both pages p50 {row['whole_p50_ms']:6.1f}, "
        f"p99 {row['whole_p99_ms']:6.1f} ms ({ratio(row, quiet, 'whole_p99_ms')}); {row['presses']} presses"
    )


async def measure_flood(dashboard: Dashboard, clean: Dashboard, presses: int, blobs: int) -> dict[str, Any]:
    took: dict[str, list[Press]] = {"quiet": [], "garbage": [], "flood": []}
    spawn, rng = multiprocessing.get_context("spawn"), random.Random(7)
    on, over, sent = spawn.Event(), spawn.Event(), spawn.Value("i", 0)
    process = spawn.Process(target=flood_while, args=(dashboard.port, dashboard.prefix, on, over, sent))
    config = StorageConfig(prefix=dashboard.prefix)
    async with AsyncExitStack() as stack:
        storage = await stack.enter_async_context(
            Storage.from_connection_string(dashboard.connection_string, config=config)
        )
        people = {each.prefix: stack.enter_context(Person(each, "olga")) for each in (dashboard, clean)}
        good = [await stack.enter_async_context(BareWorker(each, "good")) for each in (dashboard, clean)]
        for worker in good:
            await worker.wait_at(GATE)
            worker.beat(1.0)

        def press(name: str) -> Press:
            olga = people[clean.prefix if name == "quiet" else dashboard.prefix]
            return pressed(olga, good[name == "quiet"])

        await litter(storage, rng, blobs)
        await post_odd_messages(storage, rng, blobs)
        for name in ("quiet", "flood") * BLOCK:
            await asyncio.to_thread(press, name)
        process.start()
        while len(took["flood"]) < presses:
            for name in took:
                on.set() if name == "flood" else on.clear()
                await asyncio.sleep(1.5)
                for _ in range(min(BLOCK, presses)):
                    took[name].append(await asyncio.to_thread(press, name))
                    await asyncio.sleep(PACE_SECONDS / 2)
        over.set()
        await asyncio.to_thread(process.join, 30)
        assert [worker.closed for worker in good] == [None, None]
    rows = {name: told(some) for name, some in took.items()}
    return {"frames": sent.value, **rows, "load": round(os.getloadavg()[0], 1)}


async def measure(dashboard: Dashboard, presses: int) -> dict[str, Any]:
    took: dict[str, list[Press]] = {"quiet": [], "hostile": []}
    updates, seconds = {"quiet": 0, "hostile": 0}, {"quiet": 0.0, "hostile": 0.0}
    seen = 0
    async with AsyncExitStack() as stack:
        olga = stack.enter_context(Person(dashboard, "olga"))
        for n in range(WORKERS):
            worker = await stack.enter_async_context(BareWorker(dashboard, f"good-{n}"))
            worker.beat(1.0)
        await worker.wait_at(GATE)
        waiting = worker
        loud = Loud(await stack.enter_async_context(BareWorker(dashboard, "loud")))
        await until(lambda: loud.worker.heard)
        browser = await stack.enter_async_context(olga.socket("gates"))

        async def look() -> None:
            nonlocal seen
            with suppress(websockets.ConnectionClosed):
                async for _ in browser:
                    seen += 1

        def press() -> Press:
            return pressed(olga, waiting)

        tasks = [asyncio.create_task(look()), asyncio.create_task(loud.run())]
        for _ in range(BLOCK):
            await asyncio.to_thread(press)
        while len(took["hostile"]) < presses:
            for name in took:
                loud.on.set() if name == "hostile" else loud.on.clear()
                await asyncio.sleep(1.5)
                before, began = seen, time.perf_counter()
                for _ in range(min(BLOCK, presses)):
                    took[name].append(await asyncio.to_thread(press))
                    await asyncio.sleep(PACE_SECONDS)
                updates[name] += seen - before
                seconds[name] += time.perf_counter() - began
        assert loud.worker.closed is None, loud.worker.closed
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "frames": loud.sent,
        **{
            name: told(some) | {"updates_per_second": round(updates[name] / seconds[name], 2)}
            for name, some in took.items()
        },
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presses", type=int, default=100, help="of each kind")
    parser.add_argument("--flood", action="store_true", help="by another process, and garbage in storage")
    parser.add_argument("--blobs", type=int, default=300, help="of garbage, in each container")
    parser.add_argument("--quick", action="store_true", help="10 presses of each kind")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Azurite() as azurite:
        prefix = f"b{secrets.token_hex(4)}-"
        with Dashboard(Path(folder), azurite.connection_string, prefix) as dashboard:
            presses = 10 if options.quick else options.presses
            if options.flood:
                other = Path(folder) / "clean"
                other.mkdir()
                with Dashboard(other, azurite.connection_string, f"{prefix}clean-") as clean:
                    found = asyncio.run(measure_flood(dashboard, clean, presses, options.blobs))
            else:
                found = asyncio.run(measure(dashboard, presses))
    if options.json:
        print(json.dumps(found))
        return
    for name in ("quiet", "garbage", "flood", "hostile"):
        if name in found:
            print(line(name, found[name], found["quiet"]))
    aim = 2 if options.flood else 1.5
    print(
        f"in brackets: times the quiet p99 (aim: {aim}); {found['frames']} hostile frames, load {found['load']}"
    )
    if options.flood:
        print(f"{options.blobs} blobs and rows of garbage in each container and table")
    else:
        print(
            f"live updates: {found['quiet']['updates_per_second']} and {found['hostile']['updates_per_second']} a second"
        )


if __name__ == "__main__":
    main()
