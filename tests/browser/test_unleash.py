"""Unleash and leash, as people do it."""

from __future__ import annotations

import re

from playwright.async_api import Page, expect

from tests.browser.conftest import GATE, People
from tests.support.stack import LiveStack

ALL = re.compile(r"3 of 3")


async def holds_all(page: Page) -> None:
    """The page says that every worker waits."""
    await expect(page.locator(f"#gate-{GATE} .gate-waiting .big")).to_have_text("3", timeout=15_000)


async def test_one_press_unleashes_and_shows_written_pushed_and_who_passed(
    person: People, held_gate: str
) -> None:
    page = await person("operator")
    await holds_all(page)
    await page.get_by_role("button", name=f"Unleash {GATE}").click()
    gate = page.locator(f"#gate-{GATE}")
    await expect(gate.locator("[data-released]")).to_have_text(ALL)
    await expect(gate.locator(".steps")).to_contain_text("Written")
    await expect(gate.locator(".steps")).to_contain_text("Pushed")
    await expect(gate).to_contain_text("p99")
    await expect(gate.locator(".state").first).to_have_text("Open")
    await expect(page.locator("#region-announce")).to_contain_text("3 of 3 workers released")


async def test_a_double_click_opens_once(person: People, held_gate: str) -> None:
    page = await person("operator", "/gates/")
    await holds_all(page)
    said = page.locator(f"#gate-{GATE} .gate-said")
    before = int(re.search(r"epoch (\d+)", await said.inner_text())[1])  # type: ignore[index]
    await page.get_by_role("button", name=f"Unleash {GATE}").dblclick()
    await expect(page.locator(f"#gate-{GATE} [data-released]")).to_have_text(ALL)
    await expect(said).to_contain_text(f"epoch {before + 1}")


async def test_leash_asks_for_a_reason_and_shows_it(person: People, held_gate: str) -> None:
    page = await person("operator", "/gates/")
    await holds_all(page)
    await page.get_by_role("button", name=f"Unleash {GATE}").click()
    gate = page.locator(f"#gate-{GATE}")
    await gate.get_by_text("Leash…").click()
    await gate.get_by_role("button", name="Leash", exact=True).click()
    await expect(gate.locator(".state").first).to_have_text("Open")
    await gate.get_by_label("Reason (recorded").fill("stock check")
    await gate.get_by_role("button", name="Leash", exact=True).click()
    await expect(gate.locator(".gate-said")).to_contain_text("stock check")
    await expect(gate.locator(".state").first).not_to_have_text("Open")


async def test_what_is_being_typed_survives_live_changes(
    person: People, stack: LiveStack, held_gate: str
) -> None:
    page = await person("operator", "/gates/")
    await page.get_by_role("button", name=f"Unleash {GATE}").click()
    gate = page.locator(f"#gate-{GATE}")
    await expect(gate.locator("[data-released]")).to_have_text(ALL)
    await gate.get_by_text("Leash…").click()
    reason = gate.get_by_label("Reason (recorded")
    await reason.fill("half a sen")
    pulse = page.locator("#region-pulse")
    await expect(pulse).not_to_have_text(await pulse.text_content() or "")
    await expect(reason).to_be_focused()
    await expect(reason).to_have_value("half a sen")


async def test_two_operators_see_each_other_within_a_second(
    person: People, stack: LiveStack, held_gate: str
) -> None:
    olga, adam = await person("operator"), await person("admin")
    await holds_all(adam)
    await holds_all(olga)
    await olga.get_by_role("button", name=f"Unleash {GATE}").click()
    name = stack.users["operator"]["name"]
    await expect(adam.locator(f"#gate-{GATE} .gate-said")).to_contain_text(f"Opened by {name}", timeout=1000)


async def test_unleash_needs_nothing_but_a_keyboard(person: People, held_gate: str) -> None:
    page = await person("operator")
    await holds_all(page)
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.className") == "skip"
    await page.keyboard.press("Enter")
    for _ in range(30):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.id") == f"unleash-{GATE}":
            break
    await page.keyboard.press("Enter")
    await expect(page.locator(f"#gate-{GATE} [data-released]")).to_have_text(ALL)
    # The button is gone with the closed gate; the reader stays in the same card.
    assert await page.evaluate(f"document.getElementById('gate-{GATE}').contains(document.activeElement)")


async def test_unleash_works_without_javascript(person: People, held_gate: str) -> None:
    page = await person("operator", java_script_enabled=False)
    await page.get_by_role("button", name=f"Unleash {GATE}").click()
    await expect(page.locator("#notice")).to_contain_text(f"Unleashed {GATE}")
    await expect(page.locator(f"#gate-{GATE} .state").first).to_have_text("Open")
