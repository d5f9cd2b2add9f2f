"""Several people at once, wrong clocks, slow lines, and addresses that are handed on."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import GATE, WORKERS, People, signed_in
from tests.conftest import PageFactory
from tests.support.stack import LiveStack

SLOW = {"offline": False, "latency": 300, "downloadThroughput": 50_000, "uploadThroughput": 25_000}


@pytest.mark.parametrize("minutes", [-5, 5])
async def test_a_browser_whose_clock_is_wrong_by_minutes_still_tells_ages_rightly(
    new_page: PageFactory, stack: LiveStack, minutes: int
) -> None:
    page = await new_page()
    await page.clock.install(time=datetime.now(UTC) + timedelta(minutes=minutes))
    await signed_in(page, stack, "viewer", "/queues/orders-in/")
    skew = await page.evaluate("Date.now()") / 1000 - datetime.now(UTC).timestamp()
    assert abs(skew - 60 * minutes) < 60, "the clock of the browser is wrong, as it should be"
    panel = page.locator("[data-panel=queues]")
    await expect(panel.locator("[data-age]")).to_have_text(re.compile(r"updated \d s ago"), timeout=20_000)
    await expect(panel).not_to_have_attribute("data-stale", "")


async def test_two_operators_at_once_see_one_opening_and_each_others_acts(
    person: People, held_gate: str
) -> None:
    one, two = await person("operator", "/gates/"), await person("admin", "/gates/")
    epoch = re.compile(r"epoch (\d+)")

    async def read(page: Page) -> int:
        found = epoch.search(await page.locator(f"#gate-{GATE} .gate-said").inner_text())
        assert found is not None
        return int(found[1])

    before = await read(one)
    assert await read(two) == before
    await asyncio.gather(*(page.locator(f"#unleash-{GATE}").click() for page in (one, two)))
    for page in (one, two):
        await expect(page.locator(f"#gate-{GATE} [data-released]")).to_have_text(
            f"{WORKERS} of {WORKERS}", timeout=20_000
        )
        await expect(page.locator(f"#gate-{GATE} .state").first).to_have_text("Open")
    assert await read(one) == await read(two) == before + 1, "two presses at once opened it twice"
    await two.locator(f"#leash-{GATE}--summary").click()
    await two.locator(f"#reason-{GATE}").fill("enough for today")
    await two.get_by_role("button", name="Leash", exact=True).click()
    await expect(one.locator(f"#gate-{GATE} .gate-said")).to_contain_text("enough for today", timeout=20_000)


async def test_a_slow_line_delays_the_page_and_loses_nothing(person: People, held_gate: str) -> None:
    page = await person("operator", "/gates/")
    line = await page.context.new_cdp_session(page)
    await line.send("Network.enable")
    await line.send("Network.emulateNetworkConditions", SLOW)
    await page.reload()
    await expect(page.locator("[data-live]")).to_have_attribute("data-state", "on", timeout=30_000)
    await page.locator(f"#unleash-{GATE}").click()
    await expect(page.locator(f"#gate-{GATE} [data-released]")).to_have_text(
        f"{WORKERS} of {WORKERS}", timeout=30_000
    )
    await expect(page.locator("#notice")).to_contain_text(f"Unleashed {GATE}.", timeout=30_000)
    await expect(page.locator("[data-panel=gates] [data-age]")).to_contain_text("updated", timeout=20_000)


async def test_an_address_holds_filter_order_and_chosen_row_for_whoever_gets_it(
    person: People, stack: LiveStack
) -> None:
    page = await person("operator", "/workers/")
    await page.get_by_label("Filter by name, host or queue").fill("orders-2")
    await page.get_by_role("button", name="Apply").click()
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.goto(f"{stack.url}/queues/")
    await page.get_by_label("Filter by name").fill("orders")
    await page.get_by_label("Sort by").select_option("depth")
    await page.get_by_role("button", name="Apply").click()
    address = f"{page.url}#queue-orders-in"

    other = await person("viewer")
    await other.goto(address)
    await expect(other.get_by_label("Filter by name")).to_have_value("orders")
    await expect(other.get_by_label("Sort by")).to_have_value("depth")
    await expect(other.locator("tr:target")).to_have_attribute("id", "queue-orders-in")
    chosen = await other.locator("tr:target th").evaluate("(each) => getComputedStyle(each).backgroundColor")
    plain = await other.locator("body").evaluate("(each) => getComputedStyle(each).backgroundColor")
    assert chosen != plain
    await other.goto(f"{stack.url}/workers/?q=orders-2")
    await expect(other.locator("tbody tr")).to_have_count(1)
    # Live updates keep to the address.
    await other.wait_for_timeout(2500)
    await expect(other.locator("tbody tr")).to_have_count(1)


async def test_a_hidden_tab_lets_the_line_go_and_comes_back_with_the_full_state(person: People) -> None:
    page = await person("viewer", "/workers/")
    await page.evaluate("""() => {
        const given = window.setTimeout; // half a minute is long for a test
        window.setTimeout = (act, wait, ...more) => given(act, wait === 30000 ? 50 : wait, ...more);
        Object.defineProperty(document, "hidden", {get: () => window.away, configurable: true});
        window.away = true; document.dispatchEvent(new Event("visibilitychange")); }""")
    panel = page.locator("[data-panel=workers]")
    await expect(panel).to_have_attribute("data-stale", "", timeout=20_000)
    await expect(page.locator("[data-reconnect]"), "nobody looks, nothing is wrong").to_be_hidden()
    await page.evaluate(
        "() => { window.away = false; document.dispatchEvent(new Event('visibilitychange')); }"
    )
    await expect(panel).not_to_have_attribute("data-stale", "", timeout=20_000)
    await expect(page.locator("[data-live]")).to_have_attribute("data-state", "on")
