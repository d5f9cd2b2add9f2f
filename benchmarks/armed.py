"""How far apart processes pass a gate that was opened at a set time, when their hub is cut off just before it.

    python benchmarks/gates.py --only armed [--quick] [--json]

Each process holds nothing but the time and its own clock. The spread is from the first to pass to the last.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from coordinator.config import StorageConfig
from coordinator.realtime.bus import Notification
from coordinator.storage import Storage
from coordinator.testing.azurite import Azurite
from tests.support.fleet import fleet
from tests.support.small_hub import SmallHub

AHEAD_SECONDS = 6.0
CUT_SECONDS = 0.1
PATIENCE = 120.0


async def armed(azurite: Azurite, processes: int, openings: int) -> dict[str, Any]:
    """Open again and again; every figure in milliseconds."""
    spreads, firsts, sources, prefix = [], [], set(), f"b{secrets.token_hex(4)}-"
    config = StorageConfig(prefix=prefix)
    async with (
        Storage.from_connection_string(azurite.connection_string, config=config) as storage,
        SmallHub() as hub,
        fleet(azurite.connection_string, prefix, "gate", count=processes, hub=hub.url) as nodes,
    ):
        gate = storage.gate("start")

        async def all_are(event: str, count: int, **like: Any) -> None:
            await nodes.until(lambda: len(nodes.events(event, **like)) >= count, f"all are {event}", PATIENCE)

        await all_are("waiting", processes)
        number = 0
        while len(spreads) < openings:
            number += 1
            await nodes.until(lambda: hub.connected == processes, "all are connected", PATIENCE)
            moment = time.time() + AHEAD_SECONDS
            epoch = (await gate.open(by="bench", at=moment)).epoch
            hub.tell(Notification("gate:start", epoch=epoch))
            await asyncio.sleep(moment - CUT_SECONDS - time.time())
            all_knew = len(nodes.events("armed", epoch=epoch)) == processes
            await hub.cut()
            await all_are("passed", processes, epoch=epoch)
            lines = nodes.events("passed", epoch=epoch)
            late = [1000 * (line["passed"] - moment) for line in lines]
            if all_knew:  # else the machine was too busy for all to hear of the time before it came
                spreads.append(round(max(late) - min(late), 1))
                firsts.append(round(min(late), 1))
                sources |= {line["source"] for line in lines}
            await gate.close(by="bench")
            await all_are("leashed", processes * number)
            await hub.start()
    return {
        "processes": processes,
        "not_counted": number - openings,
        "spread_ms": spreads,
        "worst_spread_ms": max(spreads),
        "first_after_the_moment_ms": min(firsts),
        "sources": sorted(sources),
    }


def show_armed(found: dict[str, Any]) -> None:
    print(f"armed, {found['processes']} processes, hub cut {CUT_SECONDS:g} s before")
    print(f"  first to last, each opening: {', '.join(map(str, found['spread_ms']))} ms")
    print(
        f"  worst {found['worst_spread_ms']} ms; the first {found['first_after_the_moment_ms']} ms after the moment; "
        f"by {', '.join(found['sources'])}; {found['not_counted']} openings not counted"
    )
