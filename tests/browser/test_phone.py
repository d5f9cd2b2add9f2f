"""On a phone: one bar above the page, nothing that jumps while it loads, and a name on every link."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import GATE, People
from tests.conftest import PageFactory
from tests.support.stack import LiveStack

PHONE = {"viewport": {"width": 412, "height": 823}}
SHIFTS = """
window.shifts = 0;
new PerformanceObserver((list) => { for (const each of list.getEntries()) if (!each.hadRecentInput) window.shifts += each.value; })
  .observe({ type: "layout-shift", buffered: true });
"""
NAMELESS = """() => [...document.querySelectorAll("a")]
  .filter((a) => !(a.textContent.trim() || a.getAttribute("aria-label") || a.title)).map((a) => a.outerHTML)"""
HEIGHTS = "() => [...document.querySelectorAll('[id^=region-]')].map((region) => region.offsetHeight).join()"
PAGES = ["/", "/gates/", "/queues/", "/workers/", "/leaders/", "/sequences/", "/cost/", "/audit/"]


async def test_the_navigation_is_one_bar_and_unleash_on_the_first_screen(
    person: People, held_gate: str
) -> None:
    page = await person("operator", **PHONE)
    bar = await page.locator(".rail").bounding_box()
    assert bar is not None and bar["height"] <= 60
    button = await page.locator(f"#unleash-{GATE}").bounding_box()
    assert button is not None and button["y"] + button["height"] <= 823
    await expect(page.get_by_role("navigation", name="Pages")).to_be_hidden()
    await page.get_by_role("button", name="Menu").click()
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Queues").click()
    await page.wait_for_url("**/queues/")
    await page.get_by_role("button", name="Menu").press("Enter")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("navigation", name="Pages")).to_be_hidden()


async def settle(page: Page) -> None:
    """Wait until the fleet is at rest for three seconds: what tests before this one did changes the page's content, too."""
    heights, same = "", 0
    while same < 6:
        await page.wait_for_timeout(500)
        now = await page.evaluate(HEIGHTS)
        heights, same = now, same + 1 if now == heights else 0


@pytest.mark.parametrize("path", PAGES)
async def test_nothing_jumps_while_a_page_loads_and_every_link_has_a_name(
    person: People, stack: LiveStack, path: str
) -> None:
    page = await person("operator", path, **PHONE)
    await settle(page)
    await page.add_init_script(SHIFTS)
    shifts: list[float] = []
    # The fleet lives, and a figure may change its line in that second. What jumps because a page loads does so each time.
    while len(shifts) < 3 and (not shifts or min(shifts) > 0.05):
        await page.goto(stack.url + path)
        if await page.locator("[data-live]").count():
            await expect(page.locator("[data-live]")).to_have_attribute("data-state", "on")
        for graph in await page.locator("[data-graph]").all():
            await expect(graph.locator(".uplot")).to_be_visible()
        shifts.append(await page.evaluate("window.shifts"))
    assert min(shifts) <= 0.05, shifts
    assert await page.evaluate(NAMELESS) == []


async def test_a_queue_is_one_line_and_a_worker_a_few(person: People) -> None:
    page = await person("operator", "/queues/", **PHONE)
    row = await page.locator("#queue-orders-in").bounding_box()
    assert row is not None and row["height"] <= 48
    await page.goto(page.url.replace("/queues/", "/workers/"))
    worker = await page.locator("[id^=instance-]").first.bounding_box()
    assert worker is not None and worker["height"] <= 260


async def test_text_is_sent_compressed(new_page: PageFactory, stack: LiveStack) -> None:
    page = await new_page()
    answer = await page.goto(f"{stack.url}/accounts/login/")
    assert answer is not None
    assert answer.headers["content-encoding"] == "gzip"
