"""Several things ticked and acted upon at once."""

from __future__ import annotations

import uuid

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import People
from tests.support.stack import LiveStack, wait_until

BOXES = "input.tick"


async def stay_ticked(page: Page, seconds: float) -> None:
    """The boxes, the focus and what is typed outlive the live updates of that long, and updates did come."""
    boxes = page.locator(BOXES)
    await boxes.nth(0).check()
    await boxes.nth(2).check()
    await page.get_by_label("Filter by name, host or queue").fill("half a wo")
    await boxes.nth(2).focus()
    chosen = [await boxes.nth(n).get_attribute("id") for n in (0, 2)]
    await page.evaluate(
        "() => { window.pulses = 0; document.addEventListener('kennel:pulse', () => { window.pulses += 1; }); }"
    )
    await page.wait_for_timeout(seconds * 1000)
    await page.wait_for_function("() => window.pulses >= 5")  # one a second at least
    ticked = await page.evaluate(f"[...document.querySelectorAll('{BOXES}:checked')].map((box) => box.id)")
    assert ticked == chosen
    assert await page.evaluate("document.activeElement.id") == chosen[1]
    await expect(page.get_by_label("Filter by name, host or queue")).to_have_value("half a wo")
    await expect(page.locator("#bulk")).to_contain_text("2 selected")


async def test_ticked_boxes_survive_live_updates(person: People) -> None:
    await stay_ticked(await person("operator", "/workers/"), 0)


async def test_where_nothing_can_be_ticked_no_bulk_action_is_offered(person: People) -> None:
    page = await person("operator", "/workers/?q=nobody")
    await expect(page.locator("#bulk")).to_be_hidden()
    await page.get_by_label("Filter by name, host or queue").fill("orders-1")
    await page.get_by_role("button", name="Apply").click()
    await expect(page.locator("#bulk")).to_be_visible()


@pytest.mark.slow
async def test_ticked_boxes_survive_a_minute_of_live_updates(person: People) -> None:
    await stay_ticked(await person("operator", "/workers/"), 60)


async def test_ticked_workers_are_drained_and_resumed_by_keyboard_and_each_is_audited(
    person: People, stack: LiveStack
) -> None:
    page = await person("operator", "/workers/")
    for verb, word in (("Drain", "Draining"), ("Resume", "Running")):
        for name in ("orders-1", "orders-2"):
            await page.get_by_label(f"Select {name}").focus()
            await page.keyboard.press("Space")
        await page.keyboard.press("Enter")  # leads to the buttons, and presses none
        await expect(page.locator("#bulk").get_by_role("button", name="Drain")).to_be_focused()
        await page.locator("#bulk").get_by_role("button", name=verb).press("Enter")
        await expect(page.locator("#notice")).to_contain_text("2 workers")
        for name in ("orders-1", "orders-2"):
            row = page.locator("tr", has=page.locator(f"#worker-{name}"))
            await expect(row.get_by_text(word, exact=True)).to_be_visible(timeout=15_000)
    text = stack.sign_in("admin").get("/audit/").text
    assert text.count("worker.drain") >= 2 and text.count("worker.resume") >= 2


async def test_ticked_gates_open_in_one_go(person: People, stack: LiveStack) -> None:
    names = [f"t-{uuid.uuid4().hex[:10]}" for _ in range(2)]
    page = await person("operator", "/gates/")
    for name in names:
        await page.get_by_label("Name", exact=True).fill(name)
        await page.get_by_role("button", name="Create gate").click()
        await expect(page.locator(f"#gate-{name} .state").first).to_have_text("Closed")
    for name in names:
        await page.get_by_label(f"Select {name}").check()
    await page.locator("#bulk").get_by_role("button", name="Unleash").click()
    await expect(page.locator("#notice")).to_contain_text("Unleashed 2 gates.")
    for name in names:
        await expect(page.locator(f"#gate-{name} .state").first).to_have_text("Open", timeout=15_000)
        await expect(page.get_by_label(f"Select {name}"), "an open gate is not offered").to_have_count(0)


async def test_ticked_queues_are_cleared_only_after_the_typed_words_and_counts(
    person: People, stack: LiveStack
) -> None:
    names = [f"t-{uuid.uuid4().hex[:10]}" for _ in range(2)]
    visitor = stack.sign_in("admin")
    for name in names:
        visitor.post("/queues/", name=name)
        visitor.post(f"/queues/{name}/put", body='{"cents": 1}')
    wait_until(
        lambda: all(f'id="queue-{name}"' in visitor.get("/queues/").text for name in names), "they are shown"
    )
    page = await person("admin", "/queues/")
    for name in names:
        await page.get_by_label(f"Select {name}").check()
    await page.locator("#bulk").get_by_role("button", name="Clear…").click()
    await expect(page.get_by_role("link", name="Cancel")).to_be_focused()
    for name in names:
        await expect(page.locator(".consequences")).to_contain_text(f"{name}: about 1 to be deleted")
    await page.get_by_label("to confirm").fill("clear 3")
    await page.get_by_role("button", name="Clear all").click()
    await expect(page.get_by_role("alert")).to_contain_text("Nothing changed")
    await page.get_by_label("to confirm").fill("clear 2")
    await page.get_by_role("button", name="Clear all").click()
    await expect(page.locator("#notice")).to_contain_text("2 queues were cleared.")
    for name in names:
        visitor.post(f"/queues/{name}/delete", typed=name)


async def test_nothing_ticked_is_said_and_does_nothing(person: People) -> None:
    page = await person("operator", "/workers/")
    await page.locator("#bulk").get_by_role("button", name="Stop…").click()
    await expect(page.locator("#notice")).to_contain_text("Select at least one row")
