"""What a new condition may move: nothing under the pointer."""

from __future__ import annotations

import uuid

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import GATE, People
from tests.support.stack import LiveStack


async def place_of(page: Page) -> list[float]:
    box = await page.locator(f"#unleash-{GATE}").bounding_box()
    assert box is not None
    return [box["x"], box["y"]]


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (360, 740)])
async def test_a_new_condition_does_not_move_unleash(
    person: People, stack: LiveStack, held_gate: str, width: int, height: int
) -> None:
    page = await person("admin", viewport={"width": width, "height": height})
    await expect(page.locator(f"#unleash-{GATE}")).to_be_visible()
    before = await place_of(page)
    name = f"t-{uuid.uuid4().hex[:10]}"
    admin = stack.sign_in("admin")
    admin.post("/queues/", name=name)
    admin.post(f"/queues/{name}/put", body='{"order_id": "nobody-takes-it"}')
    try:
        await expect(page.locator("#conditions")).to_contain_text(f"{name}: no consumers", timeout=20_000)
        assert await place_of(page) == before
        await page.locator("#conditions-summary").click()
        await expect(page.locator("#conditions .issue-do").first).to_be_visible()
    finally:
        admin.post(f"/queues/{name}/delete", typed=name)


async def test_the_wallboard_fits_a_screen_with_conditions_on_top(person: People) -> None:
    page = await person("viewer", "/tv", viewport={"width": 1920, "height": 1080})
    await expect(page.locator("[data-live]")).to_have_attribute("data-state", "on")
    await expect(page.locator(".uplot")).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollHeight") <= 1080
    conditions = await page.locator(".wall-card").evaluate_all(
        "all => all.map((each) => each.matches('.wall-wide'))"
    )
    assert conditions == sorted(conditions, reverse=True)
