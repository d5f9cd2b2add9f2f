"""Takes the pictures of the pages: the product started by itself, each page x three widths x two themes, as people see it.

python scripts/screenshots.py [--out FOLDER]      `make screenshots` does this

The picture of the README, docs/images/overview.png, is taken on the way. Says which pages overflow their width, and fails then.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.browser import LAUNCH_ARGS, REMEDY, find_chromium  # noqa: E402

WIDTHS = (1440, 768, 360)
THEMES = ("dark", "light")
HEIGHT = 900
PAGES = {
    "overview": "/",
    "gates": "/gates/",
    "queues": "/queues/",
    "queue": "/queues/orders-in/",
    "queue-clear": "/queues/orders-in/clear",
    "workers": "/workers/",
    "leaders": "/leaders/",
    "sequences": "/sequences/",
    "batches": "/batches/",
    "scaling": "/scaling/",
    "cost": "/cost/",
    "audit": "/audit/",
    "help": "/help/",
    "search": "/search/?q=o",
    "tv": "/tv",
    "not-found": "/nowhere/",
}
GATE = "start-order-processing"
RUNNING_SECONDS = 20.0


@contextmanager
def demo(*, orders: int) -> Iterator[dict[str, Any]]:
    """The whole product; what it tells about itself."""
    command = [sys.executable, "manage.py", "demo", "--json", "--workers", "4", "--orders", str(orders)]
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


def sign_in(page: Page, told: dict[str, Any], role: str) -> None:
    user = next(user for user in told["users"] if user["role"] == role)
    page.goto(f"{told['url']}/accounts/login/")
    page.get_by_label("Name").fill(user["name"])
    page.get_by_label("Password").fill(user["password"])
    page.get_by_role("button", name="Sign in").click()


def settle(page: Page) -> None:
    """Until the page is live and has drawn its graphs."""
    if page.locator("[data-live]").count():
        page.locator("[data-live][data-state=on]").wait_for()
    page.wait_for_timeout(600)


def take(page: Page, name: str, out: Path) -> list[str]:
    """One page at each width; names those that are wider than the window."""
    too_wide = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": HEIGHT})
        page.wait_for_timeout(250)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            too_wide.append(f"{name} at {width} px")
        page.screenshot(path=out / f"{name}-{width}.png", full_page=True)
    return too_wide


def pictures(browser: Browser, told: dict[str, Any], out: Path) -> list[str]:
    too_wide: list[str] = []
    contexts = {theme: browser.new_context(color_scheme=theme) for theme in THEMES}  # type: ignore[arg-type]
    pages = {theme: context.new_page() for theme, context in contexts.items()}
    for theme, page in pages.items():
        page.goto(f"{told['url']}/accounts/login/")
        too_wide += take(page, f"sign-in-{theme}", out)
        sign_in(page, told, "admin")
        page.locator(".gate .state", has_text="Holding").wait_for(timeout=30_000)
        settle(page)
        too_wide += take(page, f"overview-held-{theme}", out)
    page = pages["dark"]
    page.set_viewport_size({"width": 1440, "height": HEIGHT})
    page.locator(f"#unleash-{GATE}").click()
    page.locator("[data-released]", has_text="4 of 4").first.wait_for()
    page.wait_for_timeout(RUNNING_SECONDS * 1000)
    (ROOT / "docs" / "images").mkdir(parents=True, exist_ok=True)
    page.screenshot(path=ROOT / "docs" / "images" / "overview.png")
    for theme, page in pages.items():
        for name, path in PAGES.items():
            page.goto(told["url"] + path)
            settle(page)
            too_wide += take(page, f"{name}-{theme}", out)
    viewer = browser.new_context(color_scheme="dark").new_page()
    sign_in(viewer, told, "viewer")
    settle(viewer)
    too_wide += take(viewer, "overview-viewer-dark", out)
    return too_wide


def main() -> int:
    parser = argparse.ArgumentParser(description="Take the pictures of the pages.")
    parser.add_argument("--out", type=Path, default=ROOT / ".kennel" / "screenshots", help="folder for them")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    chromium = find_chromium()
    if chromium is None:
        print(f"There is no Chromium; {REMEDY}.", file=sys.stderr)
        return 1
    with demo(orders=20_000) as told, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=LAUNCH_ARGS)
        try:
            too_wide = pictures(browser, told, out)
        finally:
            browser.close()
    for place in too_wide:
        print(f"Too wide: {place}", file=sys.stderr)
    print(f"{len(list(out.glob('*.png')))} pictures are in {out}")
    return 1 if too_wide else 0


if __name__ == "__main__":
    sys.exit(main())
