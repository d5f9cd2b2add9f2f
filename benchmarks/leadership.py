"""How long nobody leads after a leader is killed, stopped, cut off or asked to go, and what leading and waiting cost.

    python benchmarks/leadership.py [--elections 20] [--quick] [--only-requests] [--json]

Two processes compete for many elections each; then something happens to the one that leads them all, and it is measured
when the other's task begins. Leases last 20 s, with a hub 15 s. Peers: a Redis lock (redis-py, 15 s, renewed each third, as its manual
shows), a PostgreSQL advisory lock, and the renew loop of the source (lease 15 s, its ratio of renewals and tries, no
deadline). Time 0 is the blow; a lease that was just renewed then lasts its whole time, one that was due 3.75 s (5 s of 15).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import re
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordinator.errors import StorageUnreachable
from coordinator.leadership.election import Election
from coordinator.leadership.term import LeaseConfig, Term
from coordinator.realtime.bus import LocalBus
from coordinator.testing.azurite import Azurite
from coordinator.testing.clock import ManualClock
from coordinator.testing.faults import Fault, FaultProxy
from coordinator.testing.leadership import MemoryLeaseStore
from tests.support.fleet import Fleet, fleet
from tests.support.postgres import running_postgres
from tests.support.redis import running_redis
from tests.support.relay import relay
from tests.support.small_hub import SmallHub

# A busy machine takes long; the plays measure from what happened, not from when it was seen.
PATIENCE = 180.0
# From one renewal to the next, so that the blow meets leaders at every moment between.
SPREAD_SECONDS = 16.25
LOOK_SECONDS = 17.0
ROLES = ("lead", "source", "redis", "postgres")
SIMULATED_DEATHS = 300
# Eight renewals of Kennel's leader and checks of either standby, spread evenly.
COUNTED, COUNT_SECONDS, COUNT_SPREAD_SECONDS = 8, 130.0, 16.25
CUT = Fault("cut off", committed=False, answer="close")


def summary(seconds: list[float]) -> dict[str, Any]:
    if not seconds:
        raise ValueError("the first leader lost every election by itself before anything was done to it")
    ordered = sorted(seconds)
    at = lambda q: ordered[min(len(ordered) - 1, int(q * len(ordered)))]  # noqa: E731
    return {
        "runs": len(ordered),
        "p50_s": round(at(0.5), 3),
        "p99_s": round(at(0.99), 3),
        "worst_s": round(ordered[-1], 3),
    }


def with_port(address: str, port: int) -> str:
    """A connection string with that port for blobs, or a URL with that port."""
    found, number = re.subn(r"(BlobEndpoint=http://|@|redis://)([\w.]+):\d+", rf"\g<1>\g<2>:{port}", address)
    assert number == 1, address
    return found


def port_of(address: str) -> int:
    found = re.search(r"(?:BlobEndpoint=http://|@|redis://)[\w.]+:(\d+)", address)
    assert found is not None, address
    return int(found[1])


class Setup:
    def __init__(
        self, options: argparse.Namespace, azurite: Azurite, folder: Path, servers: dict[str, str]
    ) -> None:
        self.options, self.azurite, self.folder, self.servers = options, azurite, folder, servers
        self.prefix = f"b{secrets.token_hex(4)}-"

    async def pair(
        self, stack: AsyncExitStack, what: str, role: str = "lead", **more: Any
    ) -> tuple[Fleet, Fleet]:
        names = ",".join(f"{what}-{number}" for number in range(self.options.elections))

        async def start(node: str, connection: str) -> Fleet:
            return await stack.enter_async_context(
                fleet(
                    connection,
                    self.prefix,
                    role,
                    names=names,
                    node=node,
                    ledger=self.folder / f"{what}.sqlite3",
                    spread=SPREAD_SECONDS,
                    server=self.servers.get(role, ""),
                    **more,
                )
            )

        proxied = more.pop("proxied", "")
        first = await start(f"{what}-first", proxied or self.azurite.connection_string)
        await self.leads_all(first, 0.0)
        second = await start(f"{what}-second", self.azurite.connection_string)
        await second.until(lambda: second.events("campaigning"), "the second stands by", PATIENCE)
        await asyncio.sleep(SPREAD_SECONDS + LOOK_SECONDS)
        return first, second

    async def leads_all(
        self, nodes: Fleet, since: float, but: frozenset[str] = frozenset()
    ) -> dict[str, float]:
        """When each election, but those, was first led by these nodes after a moment; waits for all of them."""
        number = self.options.elections - len(but)

        def begun() -> dict[str, float]:
            lines = (
                line for line in nodes.events("begin") if line["at"] >= since and line["name"] not in but
            )
            return {line["name"]: line["at"] for line in reversed(list(lines))}

        await nodes.until(lambda: len(begun()) >= number, f"{number} elections are led", PATIENCE)
        return begun()

    def strayed(self, second: Fleet) -> frozenset[str]:
        """Elections that the first lost by itself, on a busy machine, before anything was done to it: not counted."""
        return frozenset(line["name"] for line in second.events("begin"))

    async def count(self, role: str) -> dict[str, int]:
        """Requests an hour of a leader and of a standby, counted between each and its server.

        Of `COUNTED` elections for `COUNT_SECONDS`, after all have begun to wait: requests / elections × 3600 / seconds.
        """
        async with AsyncExitStack() as stack:
            address = self.servers.get(role) or self.azurite.connection_string
            relays = []
            for node in ("first", "second"):
                through = await stack.enter_async_context(relay(port_of(address)))
                relays.append(through)
                counted = with_port(address, through.port)
                nodes = await stack.enter_async_context(
                    fleet(
                        self.azurite.connection_string if role in self.servers else counted,
                        self.prefix,
                        role,
                        names=",".join(f"count-{role}-{number}" for number in range(COUNTED)),
                        node=f"{role}-{node}",
                        ledger=self.folder / f"count-{role}.sqlite3",
                        spread=COUNT_SPREAD_SECONDS,
                        write_seconds=30,
                        server=counted if role in self.servers else "",
                    )
                )
                if node == "first":
                    await nodes.until(
                        lambda nodes=nodes: len(nodes.events("begin")) == COUNTED,  # type: ignore[misc]
                        "the first leads all",
                        PATIENCE,
                    )
            await nodes.until(lambda: nodes.events("campaigning"), "the second stands by", PATIENCE)
            await asyncio.sleep(COUNT_SPREAD_SECONDS + LOOK_SECONDS)
            before = [each.requests for each in relays]
            await asyncio.sleep(COUNT_SECONDS)
            counts = [each.requests - was for each, was in zip(relays, before, strict=True)]
            if nodes.events("begin"):
                raise AssertionError(f"{role}: a standby led while requests were counted")
            leader, standby = (round(number / COUNTED * 3600 / COUNT_SECONDS) for number in counts)
            return {"leader": leader, "standby": standby}

    async def blow(self, what: str, number: int, role: str = "lead", **more: Any) -> dict[str, Any]:
        async with AsyncExitStack() as stack:
            first, second = await self.pair(stack, what, role, **more)
            but, struck = self.strayed(second), time.time()
            first.signal(number)
            try:
                begun = await self.leads_all(second, struck, but)
            finally:
                if number == signal.SIGSTOP:
                    first.signal(signal.SIGCONT)
            return summary([at - struck for at in begun.values()])

    async def partition(self) -> dict[str, Any]:
        with FaultProxy(self.azurite.connection_string) as proxy:
            async with AsyncExitStack() as stack:
                first, second = await self.pair(stack, "partition", proxied=proxy.connection_string)
                but, struck = self.strayed(second), time.time()
                proxy.always(CUT)
                begun = await self.leads_all(second, struck, but)
                stopped = {line["name"]: line["at"] for line in first.events("end")}
                both = sum(stopped.get(name, float("inf")) > at for name, at in begun.items())
                return summary([at - struck for at in begun.values()]) | {"two_acted": both}

    async def ask_to_step_down(self, first: Fleet) -> None:
        """Again after a while: what no standby looked at in time, the first leads once more."""
        while True:
            first.signal(signal.SIGUSR1)
            await asyncio.sleep(45)

    async def clean(self, what: str, hub: str = "") -> dict[str, Any]:
        """From the end of the first's work to the beginning of the second's, when the first is asked to step down."""
        async with AsyncExitStack() as stack:
            url = (await stack.enter_async_context(SmallHub())).url if hub else ""
            first, second = await self.pair(stack, what, hub=url)
            but, struck = self.strayed(second), time.time()
            asking = asyncio.create_task(self.ask_to_step_down(first))
            begun = await self.leads_all(second, struck, but)
            asking.cancel()

            def over() -> dict[str, float]:
                return {line["name"]: line["at"] for line in first.events("end") if line["at"] >= struck}

            await first.until(lambda: begun.keys() <= over().keys(), "the first has ended all", PATIENCE)
            ended = over()
            gaps = [at - ended[name] for name, at in begun.items()]
            return summary(gaps) | {"two_acted": sum(gap < 0 for gap in gaps)}


async def simulated_hour(*, push: bool = False, config: LeaseConfig | None = None) -> dict[str, int]:
    """The requests of one leader and one standby, counted over a simulated hour."""
    clock = ManualClock()
    store = MemoryLeaseStore(clock=clock)
    bus = Push() if push else LocalBus()

    async def lead(term: object) -> None:
        await asyncio.Event().wait()

    def start(name: str) -> asyncio.Task[Any]:
        election = Election(store, identity=name, bus=lambda: bus, clock=clock, config=config)
        return asyncio.create_task(election.run(lead))

    leader = start("leader")
    await clock.advance(2)
    standby = start("standby")
    await clock.advance(20)
    store.asked.clear()
    await clock.advance(3600)
    asked = list(store.asked)
    for run in (standby, leader):
        run.cancel()
    ending = asyncio.gather(leader, standby, return_exceptions=True)
    while not ending.done():
        await clock.advance(30)
    renewals = asked.count("renew")
    return {"leader": renewals, "standby": len(asked) - renewals}


class Mortal:
    """The lease of a leader that crashes: from then on nothing of it reaches the store."""

    def __init__(self, store: MemoryLeaseStore) -> None:
        self.name, self.is_dead = store.name, False
        self._store = store

    def __getattr__(self, operation: str) -> Any:
        if self.is_dead:
            raise StorageUnreachable("crashed")
        return getattr(self._store, operation)


async def simulated_deaths(
    config: LeaseConfig | None = None, *, standbys: int = 1, push: bool = False
) -> dict[str, Any]:
    """How long nobody leads after leaders that crash at random moments."""
    rng, times = random.Random(1), []
    for _ in range(SIMULATED_DEATHS):
        clock, begun = ManualClock(), asyncio.Event()
        store, bus = MemoryLeaseStore(clock=clock), Push() if push else LocalBus()
        mortal = Mortal(store)

        async def lead(term: Term, begun: asyncio.Event = begun) -> None:
            if term.epoch > 1:
                begun.set()
            await asyncio.Event().wait()

        def start(
            identity: str, store: Any, clock: ManualClock = clock, bus: LocalBus = bus, lead: Any = lead
        ) -> asyncio.Task[Any]:
            election = Election(store, identity=identity, bus=lambda: bus, clock=clock, config=config)
            return asyncio.create_task(election.run(lead))

        leader = start("leader", mortal)
        await clock.settle()
        waiting = [start(f"standby-{number}", store) for number in range(standbys)]
        await clock.advance(rng.uniform(20.0, 120.0))
        mortal.is_dead = True
        bus.deliver = lambda hint: None  # type: ignore[method-assign]
        leader.cancel()
        died = clock.monotonic()
        while not begun.is_set():
            await clock.advance(0.05)
        times.append(clock.monotonic() - died)
        for run in waiting:
            run.cancel()
        await clock.advance(60)
    return distribution(times)


def deaths_of_the_source() -> dict[str, Any]:
    """The same of the source's loop: it renews at three quarters of the lease, and tries each 16.25 s, at any phase."""
    rng, times = random.Random(1), []
    for _ in range(100 * SIMULATED_DEATHS):
        free, first_try = 15.0 - rng.uniform(0.0, 11.25), rng.uniform(0.0, 16.25)
        times.append(first_try + 16.25 * max(0, math.ceil((free - first_try) / 16.25)))
    return distribution(times)


def distribution(times: list[float]) -> dict[str, Any]:
    ordered = sorted(times)
    return {
        "mean_s": round(sum(ordered) / len(ordered), 1),
        "p50_s": round(ordered[len(ordered) // 2], 1),
        "p90_s": round(ordered[int(0.9 * len(ordered))], 1),
        "worst_s": round(ordered[-1], 1),
    }


async def deaths() -> dict[str, dict[str, Any]]:
    return {
        "defaults": await simulated_deaths(),
        "defaults, 4 standbys": await simulated_deaths(standbys=4),
        "defaults, with hub": await simulated_deaths(push=True),
        "lease_seconds=15": await simulated_deaths(LeaseConfig(15)),
        "the source's loop": deaths_of_the_source(),
    }


class Push(LocalBus):
    @property
    def is_connected(self) -> bool:
        return True


async def requests_an_hour(setup: Setup) -> dict[str, dict[str, Any]]:
    """Kennel's over a simulated hour, and everybody's as counted between client and server for two minutes."""
    on_the_wire = dict(
        zip(ROLES, await asyncio.gather(*(attempted(setup.count(role)) for role in ROLES)), strict=True)
    )
    return {
        "kennel, simulated": await simulated_hour(),
        "kennel, simulated, with hub": await simulated_hour(push=True),
        "kennel, simulated, lease_seconds=15": await simulated_hour(config=LeaseConfig(15)),
        **{f"{role}, counted": found for role, found in on_the_wire.items()},
    }


async def attempted(play: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """What a play found, or why it found nothing: one that fails does not end the others."""
    try:
        return await play
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def told(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"failed: {row['failed']}"
    more = f"   two acted: {row['two_acted']}" if "two_acted" in row else ""
    times = f"p50 {row['p50_s']:7.3f} s   p99 {row['p99_s']:7.3f}   worst {row['worst_s']:7.3f}"
    return f"{row['runs']:4} runs   {times}{more}"


async def run(options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"benchmark": "leadership", "quick": options.quick}
    with (
        tempfile.TemporaryDirectory(prefix="kennel-bench-") as folder,
        Azurite() as azurite,
        running_redis() as redis_url,
        running_postgres() as postgres_url,
    ):
        setup = Setup(options, azurite, Path(folder), {"redis": redis_url, "postgres": postgres_url})
        plays: dict[str, Coroutine[Any, Any, dict[str, Any]]] = {
            "kill_9": setup.blow("kill", signal.SIGKILL),
            "sigstop": setup.blow("stop", signal.SIGSTOP),
            "partition": setup.partition(),
            "clean_with_hub": setup.clean("handover", hub="yes"),
            "clean_without_hub": setup.clean("clean"),
            "source_kill_9": setup.blow("source", signal.SIGKILL, "source"),
            "redis_kill_9": setup.blow("redis", signal.SIGKILL, "redis"),
            "postgres_kill_9": setup.blow("postgres", signal.SIGKILL, "postgres"),
        }
        result["requests_an_hour"] = await requests_an_hour(setup)
        for what, row in result["requests_an_hour"].items():
            found = f"leader {row['leader']:5}   standby {row['standby']:6}" if "leader" in row else told(row)
            print(f"  requests an hour   {what:38} {found}")
        result["simulated_deaths"] = await deaths()
        for what, row in result["simulated_deaths"].items():
            print(f"  nobody leads, simulated   {what:22} {row}")
        if options.only_requests:
            for play in plays.values():
                play.close()
            return result
        # All at once: they mostly wait. The hand-over is about milliseconds, and has the machine for itself.
        alone = {} if options.quick else {"clean_with_hub": plays.pop("clean_with_hub")}
        found = dict(zip(plays, await asyncio.gather(*map(attempted, plays.values())), strict=True))
        for name, play in alone.items():
            found[name] = await attempted(play)
        for name in sorted(found):
            print(f"  {name:20} {told(found[name])}")
        result["nobody_leads"] = found
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elections", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--only-requests", action="store_true", help="count requests, simulate deaths, and end"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.elections = options.elections or (8 if options.quick else 20)
    result = asyncio.run(run(options))
    if options.json:
        print(json.dumps(result))
    if any("failed" in row for row in result.get("nobody_leads", {}).values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
