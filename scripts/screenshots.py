"""Takes the pictures of the pages: the product started by itself, each page x three widths x two themes, as people see it.

python scripts/screenshots.py [--out FOLDER] [--states normal,viewer,gone,empty] [--pages overview,gates]      `make screenshots` takes all

The states: `normal` (orders flow, an admin looks), `viewer` (who may only look), `gone` (storage is cut: everything is old
and says so), `empty` (nothing was ever there). The six pictures of the README and the documentation, docs/images, are taken
on the way. Says which pages overflow their width, and fails then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from coordinator import Saga, SagaContext, Storage  # noqa: E402
from coordinator.backoff import Backoff  # noqa: E402
from coordinator.queues import envelope as wire  # noqa: E402
from coordinator.queues.envelope import Envelope, Failure, PoisonRecord  # noqa: E402
from tests.support.browser import LAUNCH_ARGS, REMEDY, find_chromium  # noqa: E402
from tests.support.stack import empty_stack  # noqa: E402

WIDTHS = (1440, 768, 390)
NARROWEST = 360
THEMES = ("dark", "light")
HEIGHT = 900
PAGES = {
    "overview": "/",
    "gates": "/gates/",
    "queues": "/queues/",
    "queue": "/queues/orders-in/",
    "queue-clear": "/queues/orders-in/clear",
    "workers": "/workers/",
    "worker": "/workers/?q=orders-1",
    "leaders": "/leaders/",
    "sequences": "/sequences/",
    "batches": "/batches/",
    "batch": "/batches/?pipeline=squares&batch=night-3",
    "saga": "/batches/?saga=trip&key=trip-4711",
    "messages": "/queues/orders-in/messages",
    "poison": "/queues/orders-in/poison",
    "number": "/sequences/?sequence=orders&number=1234",
    "scaling": "/scaling/",
    "cost": "/cost/",
    "throughput": "/throughput/",
    "alerts": "/alerts/",
    "alert-rule": "/alerts/new",
    "audit": "/audit/",
    "access": "/access/",
    "help": "/help/",
    "search": "/search/?q=o",
    "saved-views": "/views/?at=/queues/%3Fsort%3Ddepth",
    "tv": "/tv",
    "not-found": "/nowhere/",
}
STATES = ("normal", "viewer", "gone", "empty")
# The best, for the README and the documentation: name of the picture -> page.
BEST = {
    "overview": "overview",
    "gates": "gates",
    "queue": "queue",
    "workers": "workers",
    "sequences": "sequences",
    "leaders": "leaders",
}
GATE = "start-order-processing"
RUNNING_SECONDS = 20.0


@contextmanager
def demo(*, orders: int) -> Iterator[dict[str, Any]]:
    """The whole product; what it tells about itself."""
    command = [
        sys.executable,
        "-m",
        "dashboard.demo",
        "--json",
        "--workers",
        "4",
        "--orders",
        str(orders),
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit("The demo did not start; its words are above.")
        yield json.loads(line)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        process.stdout.close()


def work(told: dict[str, Any]) -> None:
    """Batches of which one has failures, and a saga that is stuck, so that their pages have something to show."""
    with ThreadPoolExecutor(1) as pool:  # the thread of the browser has a loop of its own
        pool.submit(asyncio.run, _work(told["connection_string"])).result()


async def _work(connection_string: str) -> None:
    def square(number: int) -> int:
        if number % 13 == 12:
            raise ValueError(f"no price for item {number}")
        return number * number

    def add(total: int | None, results: list[int]) -> int:
        return (total or 0) + sum(results)

    async with Storage.from_connection_string(connection_string) as storage:
        squares = storage.pipeline("squares", range, square, add, item=int, result=int, chunk_items=5)
        trip: Saga[str] = storage.saga("trip", input=str)

        @trip.step(attempts=1, backoff=Backoff(base_seconds=0.01, cap_seconds=0.01))
        async def flight(context: SagaContext[str]) -> None:
            raise ValueError("no seat left")

        @flight.compensate
        async def no_flight(context: SagaContext[str]) -> None:
            raise ValueError("the airline does not answer")

        for number, items in enumerate((10, 12, 40, 400), start=1):
            await squares.start(f"night-{number}", items, sla_seconds=3600)
        await trip.start("trip-4711", "olga")
        parts = [squares.initiators(), squares.processors(), squares.controllers(), trip.listener()]
        running = [asyncio.create_task(part.run()) for part in parts]
        await _poison(storage)
        await asyncio.sleep(12)
        await asyncio.gather(*(part.stop(5.0) for part in parts))
        await asyncio.gather(*running)


async def _poison(storage: Storage) -> None:
    """Messages of four kinds that failed too often."""
    queue = storage.queue("orders-in", type=dict)
    await queue.poison.create()
    kinds = (
        ("KeyError", "'customer'"),
        ("ValueError", "order {n} has no lines"),
        ("TimeoutError", "no answer from 10.0.0.{n} in 2.5 s"),
        ("DeclinedError", "card of ann{n}@example.com declined"),
    )
    for n in range(26):
        error, reason = kinds[min(n % 7, 3)]
        at, said = time.time() - 900 + 30 * n, reason.format(n=n)
        trace = (
            f'Traceback (most recent call last):\n  File "orders.py", line 41, in process\n{error}: {said}'
        )
        failures = [
            Failure(said, error, trace, f"orders-{n % 4 + 1}", attempt, at + attempt, 0, "process")
            for attempt in range(1, 6)
        ]
        text = wire.encode(
            Envelope(kennel=1, id=f"m-{n}", at=at, by="shop", items=[wire.encode_item({"order": n})])
        )
        await queue.poison.put(PoisonRecord(queue.name, f"m-{n}", text, said, failures, at, at + 5, 5))


def sign_in(page: Page, told: dict[str, Any], role: str) -> None:
    user = next(user for user in told["users"] if user["role"] == role)
    page.goto(f"{told['url']}/accounts/login/")
    page.get_by_label("Username").fill(user["name"])
    page.get_by_label("Password").fill(user["password"])
    page.get_by_role("button", name="Sign in").click()


def settle(page: Page) -> None:
    """Until the page is live and has drawn its graphs."""
    if page.locator("[data-live]").count():
        page.locator("[data-live][data-state=on]").wait_for()
    page.wait_for_timeout(600)


def take(page: Page, name: str, out: Path) -> list[str]:
    """One page in each theme at each width; names those that are wider than the window."""
    too_wide = []
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        for width in (*WIDTHS, NARROWEST):
            page.set_viewport_size({"width": width, "height": HEIGHT})
            page.wait_for_timeout(200)
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                too_wide.append(f"{name} at {width} px")
            if width == NARROWEST:
                continue
            page.screenshot(path=out / f"{name}-{theme}-{width}.png", full_page=True)
    return too_wide


def each_page(page: Page, told: dict[str, Any], state: str, out: Path, names: list[str]) -> list[str]:
    """Every page of these in this state."""
    too_wide = []
    for name, path in PAGES.items():
        if name not in names:
            continue
        page.goto(told["url"] + path)
        if name == "worker" and page.get_by_role("link", name="timeline of").count():
            page.get_by_role("link", name="timeline of").first.click()
            page.locator("h1", has_text="orders-").wait_for()
        if state != "gone":
            settle(page)
        too_wide += take(page, f"{name}-{state}", out)
    return too_wide


def pictures(
    browser: Browser, told: dict[str, Any], states: list[str], out: Path, names: list[str]
) -> list[str]:
    """Those of the demo that has something to do."""
    page = browser.new_context(color_scheme="dark").new_page()
    page.goto(f"{told['url']}/accounts/login/")
    too_wide = take(page, "sign-in", out)
    sign_in(page, told, "admin")
    page.locator(".gate .state", has_text="Closed – workers waiting").wait_for(timeout=30_000)
    settle(page)
    too_wide += take(page, "overview-held", out)
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 1440, "height": HEIGHT})
    page.locator(f"#unleash-{GATE}").click()
    page.locator("[data-released]", has_text="4 of 4").first.wait_for()
    page.wait_for_timeout(RUNNING_SECONDS * 1000)
    if "normal" in states and len(names) == len(PAGES):
        best(page, told)
    work(told)
    if "normal" in states:
        too_wide += each_page(page, told, "normal", out, names)
    if "viewer" in states:
        viewer = browser.new_context(color_scheme="dark").new_page()
        sign_in(viewer, told, "viewer")
        too_wide += each_page(viewer, told, "viewer", out, names)
    if "gone" in states:
        page.goto(told["url"])
        os.kill(told["pids"]["azurite"], signal.SIGSTOP)
        try:
            page.locator("#region-storage", has_text="unreachable").wait_for(timeout=60_000)
            too_wide += each_page(page, told, "gone", out, names)
        finally:
            os.kill(told["pids"]["azurite"], signal.SIGCONT)
    return too_wide


def best(page: Page, told: dict[str, Any]) -> None:
    """The six of the documentation, alternating the themes, as much as fits a window."""
    folder = ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    for n, (name, shown) in enumerate(BEST.items()):
        page.emulate_media(color_scheme=THEMES[n % 2])  # type: ignore[arg-type]
        page.goto(told["url"] + PAGES[shown])
        settle(page)
        page.wait_for_timeout(2000)
        page.screenshot(path=folder / f"{name}.png")
    page.emulate_media(color_scheme="dark")


def empty(browser: Browser, out: Path, names: list[str]) -> list[str]:
    """Those of a demo in which nothing was ever there."""
    with empty_stack() as stack:
        told = {"url": stack.url, "users": list(stack.users.values())}
        page = browser.new_context(color_scheme="dark").new_page()
        sign_in(page, told, "admin")
        return each_page(page, told, "empty", out, names)


def main() -> int:
    parser = argparse.ArgumentParser(description="Take the pictures of the pages.")
    parser.add_argument("--out", type=Path, default=ROOT / ".kennel" / "screenshots", help="folder for them")
    parser.add_argument("--states", default=",".join(STATES), help=f"some of {', '.join(STATES)}")
    parser.add_argument("--pages", default=",".join(PAGES), help="some of the pages, by name")
    given = parser.parse_args()
    out: Path = given.out
    states = given.states.split(",")
    if unknown := set(states) - set(STATES):
        parser.error(f"there is no state {', '.join(sorted(unknown))}; there are {', '.join(STATES)}")
    names = given.pages.split(",")
    if unknown := set(names) - set(PAGES):
        parser.error(f"there is no page {', '.join(sorted(unknown))}; there are {', '.join(PAGES)}")
    out.mkdir(parents=True, exist_ok=True)
    chromium = find_chromium()
    if chromium is None:
        print(f"There is no Chromium; {REMEDY}.", file=sys.stderr)
        return 1
    too_wide: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=LAUNCH_ARGS)
        try:
            if states != ["empty"]:
                with demo(orders=20_000) as told:
                    too_wide += pictures(browser, told, states, out, names)
            if "empty" in states:
                too_wide += empty(browser, out, names)
        finally:
            browser.close()
    for place in too_wide:
        print(f"Too wide: {place}", file=sys.stderr)
    print(f"{len(list(out.glob('*.png')))} pictures are in {out}")
    return 1 if too_wide else 0


if __name__ == "__main__":
    sys.exit(main())
