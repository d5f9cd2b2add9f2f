"""From the press of *Unleash* in a real browser to the last worker's receipt on its page.

    python benchmarks/unleash.py [--workers 1000] [--presses 5] [--quick] [--json]

Chromium, the dashboard, Azurite and the workers' ends of the sockets share this machine. *passing* is from the press to the
moment that a worker's receipt names; *first* is the first of them: all before it is the request, the audit and the write,
all after it the push. *shown* is until the page says "n of n released"; *longest task* is the longest time for which the
page could not answer its reader during the release, by a PerformanceObserver; below 50 ms there is none to report.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.async_api import async_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordinator.testing.azurite import Azurite
from tests.support.browser import LAUNCH_ARGS, find_chromium
from tests.support.crowd import all_wait_again, crowd, quantile_ms
from tests.support.dashboard import Dashboard, Person
from tests.support.unleash import GATE, all_wait, unleash, visit


async def measure(dashboard: Dashboard, count: int, presses: int) -> dict[str, Any]:
    passing: list[float] = []
    first: list[float] = []
    shown: list[float] = []
    longest: list[float] = []
    with Person(dashboard, "olga") as olga:
        async with async_playwright() as playwright, crowd([dashboard], count) as workers:
            browser = await playwright.chromium.launch(executable_path=find_chromium(), args=LAUNCH_ARGS)
            page = await visit(await browser.new_page(), olga)
            for _ in range(presses):
                await all_wait(page, count)
                await asyncio.sleep(1.0)
                seen = await unleash(page, count)
                took = [worker.arrived_at - seen.pressed_at for worker in workers]
                passing += took
                first.append(min(took))
                shown.append(seen.shown_at - seen.pressed_at)
                longest.append(seen.longest_task_ms)
                await asyncio.to_thread(
                    olga.post, f"/gates/{GATE}/leash", {"reason": "again"}, page="/accounts/logout/"
                )
                await all_wait_again(workers)
            await browser.close()
    return {
        "workers": count,
        "presses": presses,
        "passing_ms": {
            share: quantile_ms(passing, q) for share, q in (("p50", 0.5), ("p99", 0.99), ("max", 1))
        },
        "first_ms": {"p50": quantile_ms(first, 0.5), "max": quantile_ms(first, 1)},
        "shown_ms": {"p50": quantile_ms(shown, 0.5), "max": quantile_ms(shown, 1)},
        "longest_task_ms": round(max(longest), 1),
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
    with Azurite() as azurite, tempfile.TemporaryDirectory() as folder:
        with Dashboard(Path(folder), azurite.connection_string, f"b{secrets.token_hex(4)}-") as dashboard:
            result = asyncio.run(measure(dashboard, options.workers, options.presses))
    for name, value in result.items():
        print(f"{name:20} {value}")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
