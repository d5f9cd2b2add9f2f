"""What people do on the other pages, and what they are asked before they destroy something."""

from __future__ import annotations

import re
import uuid

import pytest
from playwright.async_api import expect

from tests.browser.conftest import People
from tests.support.stack import LiveStack


async def test_a_queue_is_made_filled_cleared_and_deleted(person: People, stack: LiveStack) -> None:
    name = f"t-{uuid.uuid4().hex[:10]}"
    page = await person("admin", "/queues/")
    await page.get_by_label("Name", exact=True).fill(name)
    await page.get_by_role("button", name="Create queue").click()
    await page.get_by_role("link", name=name).click(timeout=15_000)
    await page.get_by_label("JSON").fill('{"order_id": "by-hand", "cents": 5}')
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator("#notice")).to_contain_text("Message sent.")
    await expect(page.locator("#region-queue dd").first).to_have_text("1", timeout=15_000)

    await page.get_by_role("link", name="Clear…").click()
    await expect(page.get_by_role("link", name="Cancel")).to_be_focused()
    await page.get_by_label("to confirm").fill("something else")
    await page.get_by_role("button", name="Clear").click()
    await expect(page.get_by_role("alert")).to_contain_text("Nothing changed")
    await page.get_by_label("to confirm").fill(name)
    await page.get_by_role("button", name="Clear").click()
    await expect(page.locator("#notice")).to_contain_text(f"Queue {name} cleared.")

    await page.get_by_role("link", name="Delete…").click()
    await page.get_by_label("to confirm").fill(name)
    await page.get_by_role("button", name="Delete").click()
    await expect(page.locator("#notice")).to_contain_text(f"Queue {name} deleted.")


async def test_bad_json_is_refused_and_said(person: People, stack: LiveStack) -> None:
    page = await person("operator", "/queues/orders-in/")
    await page.get_by_label("JSON").fill("{not json")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator("#notice")).to_contain_text("not JSON")


async def test_a_gate_is_made_closed(person: People) -> None:
    name = f"t-{uuid.uuid4().hex[:10]}"
    page = await person("operator", "/gates/")
    await page.get_by_label("Name", exact=True).fill(name)
    await page.get_by_role("button", name="Create gate").click()
    await expect(page.locator(f"#gate-{name} .state").first).to_have_text("Closed")


async def test_a_worker_is_drained_and_resumed(person: People) -> None:
    page = await person("operator", "/workers/")
    row = page.locator("tr", has=page.locator("#worker-orders-3"))
    await row.get_by_role("button", name="Drain orders-3").dblclick()
    await expect(row.get_by_text("Draining")).to_be_visible(timeout=10_000)
    await page.wait_for_timeout(1000)
    await expect(row.get_by_text("Draining"), "the second click must not resume it").to_be_visible()
    await row.get_by_role("button", name="Resume orders-3").click()
    await expect(row.get_by_role("button", name="Drain orders-3")).to_be_visible(timeout=10_000)


COUNTED = """() => {
  const card = document.getElementById("election-daily-report"), bar = card?.querySelector("progress");
  const said = card?.querySelector("time[data-moment=ends]")?.textContent.match(/^in (\\d+) s$/);
  return said && bar && !bar.hidden ? [Number(said[1]), bar.value, bar.max] : null;
}"""


async def test_a_leader_steps_down_and_another_leads(person: People) -> None:
    page = await person("operator", "/leaders/")
    card = page.locator("#election-daily-report")
    await expect(card.locator(".state").first).to_have_text("Leader active", timeout=20_000)
    holder = await card.locator("dd").first.inner_text()
    counted = await page.wait_for_function(COUNTED)  # as words and as a bar, of the same moment
    said, bar, whole = await counted.json_value()
    assert whole == 15
    assert said <= bar + 0.1 <= said + 1.2
    await card.get_by_role("button", name="Step down (graceful)").click()
    await expect(card.locator("dd").first).not_to_have_text(holder, timeout=20_000)


@pytest.mark.parametrize(
    ("role", "path"),
    [
        ("viewer", "/queues/orders-in/clear"),
        ("operator", "/queues/orders-in/delete"),
        ("operator", "/leaders/daily-report/break"),
    ],
)
async def test_whoever_may_not_destroy_is_told_what_it_needs(
    person: People, stack: LiveStack, role: str, path: str
) -> None:
    page = await person(role)
    answer = await page.goto(stack.url + path)
    assert answer is not None and answer.status == 403
    await expect(page.get_by_role("heading", level=1)).to_have_text("Not allowed")
    await expect(page.locator("main")).to_contain_text("Nothing changed.")


async def test_search_goes_straight_to_what_it_finds_and_slash_leads_there(person: People) -> None:
    page = await person("viewer")
    await page.keyboard.press("/")
    await expect(page.locator("#find")).to_be_focused()
    await page.keyboard.type("daily-rep")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/leaders/?q=daily-report#election-daily-report")


async def test_single_keys_can_be_switched_off(person: People) -> None:
    page = await person("viewer", "/help/")
    await page.get_by_label("Shortcuts are on").uncheck()
    await page.locator("h1").click()
    await page.keyboard.press("/")
    await expect(page.locator("#find")).not_to_be_focused()


async def test_a_theme_is_kept(person: People, stack: LiveStack) -> None:
    page = await person("viewer", color_scheme="light")
    await page.locator("[data-theme-switch]").click()
    await page.goto(f"{stack.url}/gates/")
    assert await page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


async def test_a_scaling_rule_is_put_in_force_from_the_queues_page(person: People, stack: LiveStack) -> None:
    page = await person("operator", "/queues/orders-in/")
    rule = page.locator("#scaling")
    await expect(rule).to_contain_text("the workers' default rule")
    await rule.locator("#below0").fill("10")
    await rule.locator("#tasks0").fill("x")
    await rule.locator("#tasks0").evaluate("field => field.removeAttribute('pattern')")
    await rule.get_by_role("button", name="Scale by depth").click()
    await expect(page.locator("#notice")).to_contain_text("each step needs a depth and a number of tasks")
    await rule.locator("#below0").fill("10")
    await rule.locator("#tasks0").fill("2")
    await rule.locator("#beyond").fill("7")
    await rule.get_by_role("button", name="Scale by depth").click()
    await expect(rule).to_contain_text("Below 10: 2. Above: 7.")
    await rule.get_by_role("button", name="Scale by target").click()
    await expect(rule).to_contain_text("target drain time of 10")
    await rule.get_by_role("button", name="Use default rule").click()
    await expect(rule).to_contain_text("the workers' default rule")


async def test_a_schedule_shows_what_it_will_do_and_the_armed_gate_counts_down(person: People) -> None:
    name = f"t-{uuid.uuid4().hex[:10]}"
    page = await person("operator", "/gates/", timezone_id="Europe/Berlin")
    await page.get_by_label("Name", exact=True).fill(name)
    await page.get_by_role("button", name="Create gate").click()
    await page.goto(page.url.partition("?")[0] + f"?q={name}")
    card = page.locator(f"#gate-{name}")
    await card.get_by_text("Schedule or roll out gradually…").click()
    await expect(card.get_by_role("status")).to_contain_text("Opens immediately")
    await card.get_by_label("Open at (UTC)").fill("2020-01-01T09:00")
    await expect(card.get_by_role("status")).to_contain_text("Wed 1 Jan 2020 09:00 UTC has passed")
    await card.get_by_label("Open at (UTC)").fill("2096-11-27T09:00")
    await card.get_by_label("Share").select_option("0.1")
    planned = re.compile(
        r"Opens Tue 27 Nov 2096 09:00 UTC \(10:00 your time\), in \d+ d( \d+ h)?;\s+10 %\s+of\s+workers"
    )
    await expect(card.get_by_role("status")).to_contain_text(planned)
    await card.get_by_role("button", name="Schedule opening").click()
    await expect(card.locator(".state").first).to_have_text("Armed")
    await expect(card.locator(".gate-body .gate-plan")).to_contain_text(
        re.compile(r"09:00 UTC \(10:00 your time\), in \d+ d")
    )
    await expect(card.locator(".release")).to_have_count(0)
