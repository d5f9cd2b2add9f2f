"""What a page may cost its reader."""

from __future__ import annotations

import gzip

import requests
from playwright.async_api import Page

from tests.browser.conftest import GATE, People
from tests.support.stack import LiveStack

SCRIPTS_KB = 120
PAGE_KB = 200
SHIFT = 0.05
FIRST_PAINT_MS = 1000

OBSERVE = """() => {
    window.shift = 0; window.longest = 0;
    new PerformanceObserver((list) => { for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value; })
        .observe({type: "layout-shift", buffered: true});
    new PerformanceObserver((list) => { for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration); })
        .observe({type: "longtask", buffered: true});
}"""


async def loaded(page: Page, pattern: str) -> list[str]:
    names: list[str] = await page.evaluate(
        "performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    return [name for name in names if name.split("?")[0].endswith(pattern)]


async def test_scripts_stay_small(person: People) -> None:
    page = await person("viewer")
    scripts = await loaded(page, ".js")
    assert len(scripts) >= 8, "the overview loads its scripts"
    size = sum(len(gzip.compress(requests.get(name, timeout=10).content)) for name in scripts)
    assert size < SCRIPTS_KB * 1024, f"{size} bytes compressed: {scripts}"


async def test_pages_stay_small_without_their_assets(stack: LiveStack) -> None:
    visitor = stack.sign_in("admin")
    for path in ("/", "/gates/", "/queues/", "/workers/", "/leaders/", "/sequences/", "/cost/", "/audit/"):
        assert len(visitor.get(path).content) < PAGE_KB * 1024, path


async def test_the_overview_paints_soon_and_does_not_jump(person: People, stack: LiveStack) -> None:
    page = await person("viewer")
    await page.goto(stack.url)  # a second visit: its assets are cached, as they are for whoever works here
    await page.evaluate(OBSERVE)
    await page.wait_for_timeout(4000)
    paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < FIRST_PAINT_MS
    assert await page.evaluate("window.shift") < SHIFT


async def test_a_release_keeps_the_page_responsive(person: People, held_gate: str) -> None:
    page = await person("operator")
    await page.evaluate(OBSERVE)
    await page.locator(f"#unleash-{GATE}").click()
    await page.locator(f"#gate-{GATE} [data-released]").wait_for()
    await page.wait_for_timeout(2000)
    assert await page.evaluate("window.longest") < 200
