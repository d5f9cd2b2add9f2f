"""Thirty-two writers of one row: what each way of updating loses, and what it costs.

    python benchmarks/tables.py [--writers 32] [--rounds 5] [--quick] [--json]

Each writer has a connection of its own and adds one to the same number. `optimistic_update` is compared with the same
loop without waiting between tries, and with reading and writing without a condition.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordinator import Put, Storage, optimistic_update
from coordinator.backoff import Backoff
from coordinator.tables.table import Table
from coordinator.testing.azurite import Azurite

KEY = ("bench", "row")
AT_ONCE = Backoff(base_seconds=1e-6, cap_seconds=1e-6, deadline_seconds=120)


async def optimistic(table: Table) -> int:
    update = await optimistic_update(table, KEY, lambda row: {**row, "n": row["n"] + 1})
    return update.conflicts


async def impatient(table: Table) -> int:
    update = await optimistic_update(table, KEY, lambda row: {**row, "n": row["n"] + 1}, backoff=AT_ONCE)
    return update.conflicts


async def naive(table: Table) -> int:
    row = await table.read(KEY)
    await table.write(Put(KEY, {**row.values, "n": row["n"] + 1}))
    return 0


async def measure(
    name: str, write: Callable[[Table], Awaitable[int]], writers: int, rounds: int
) -> dict[str, Any]:
    applied, conflicts, seconds = 0, 0, []
    with Azurite() as azurite:
        storages = [Storage.from_connection_string(azurite.connection_string) for _ in range(writers)]
        tables = [storage.table("bench") for storage in storages]
        for _ in range(rounds):
            await tables[0].write(Put(KEY, {"n": 0}))
            await asyncio.gather(*(table.read(KEY) for table in tables))  # connect
            started = time.perf_counter()
            conflicts += sum(await asyncio.gather(*(write(table) for table in tables)))
            seconds.append(time.perf_counter() - started)
            applied += (await tables[0].read(KEY))["n"]
        for storage in storages:
            await storage.aclose()
    return {
        "way": name,
        "asked": writers * rounds,
        "applied": applied,
        "lost": writers * rounds - applied,
        "conflicts_per_success": round(conflicts / max(1, applied), 2) if name != "naive" else None,
        "seconds": round(statistics.median(seconds), 2),
    }


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--writers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="three rounds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = 3 if options.quick else options.rounds
    results = [
        await measure(name, write, options.writers, rounds)
        for name, write in (
            ("optimistic_update", optimistic),
            ("without waiting", impatient),
            ("naive", naive),
        )
    ]
    if options.json:
        print(json.dumps(results))
        return
    for each in results:
        print(
            f"{each['way']:18} {each['applied']:4} of {each['asked']} applied, conflicts per success: "
            f"{each['conflicts_per_success']}, {each['seconds']} s for {options.writers} at once"
        )


if __name__ == "__main__":
    asyncio.run(main())
