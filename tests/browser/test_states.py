"""Pages that have nothing to show, that show what is old, and that people may not use: still for everybody, in every theme."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.async_api import expect

from tests.browser.conftest import People, signed_in
from tests.browser.test_pages import found_by_axe
from tests.conftest import PageFactory
from tests.support.stack import LiveStack, empty_stack

pytestmark = pytest.mark.timeout(300)  # each page is examined twice, and answers slowly while storage is gone

LIVE = (
    "/", "/gates/", "/queues/", "/queues/orders-in/", "/workers/", "/leaders/", "/sequences/", "/batches/",
    "/scaling/", "/cost/", "/audit/", "/access/", "/tv",
)  # fmt: skip
FOR_OPERATORS = (
    "/", "/gates/", "/queues/", "/queues/orders-in/", "/workers/", "/leaders/", "/batches/", "/scaling/", "/access/",
    "/queues/orders-in/clear",
)  # fmt: skip
# What went wrong, or was not found: (who, where, what the page says).
ERRORS = (
    ("viewer", "/queues/orders-in/messages", "operator"),
    ("admin", "/batches/?pipeline=nothing&batch=nothing#detail", "does not exist"),
    ("admin", "/batches/?saga=nothing&key=nothing#detail", "does not exist"),
    ("admin", "/queues/nothing-here/", "Nothing exists at"),
    ("admin", "/workers/?q=nobody-at-all", "No matching workers"),
    ("admin", "/sequences/?sequence=orders&number=999999999#ledger", "Sequences"),  # if one was used by now
    ("admin", "/audit/?q=nothing-like-it", "No entries match"),
    ("admin", "/search/?q=nothing-like-it", "nothing-like-it"),
)
# Every figure that comes from storage, outside a panel that is marked as old. Workers tell the dashboard themselves.
LOOKS_NEW = """() => [...document.querySelectorAll("[data-panel] :is(.num, .big, .strong, .wall-figure, dd)")]
    .filter((each) => /\\d/.test(each.textContent))
    .filter((each) => { const panel = each.closest("[data-panel]");
        return panel.dataset.panel !== "workers" && !panel.hasAttribute("data-stale"); })
    .map((each) => each.textContent.trim())"""


@pytest.fixture(scope="module")
def nothing() -> Iterator[LiveStack]:
    with empty_stack() as running:
        yield running


async def test_axe_finds_nothing_on_pages_that_have_nothing_to_show(
    new_page: PageFactory, nothing: LiveStack
) -> None:
    page = await signed_in(await new_page(color_scheme="dark"), nothing, "admin")
    found, empty = [], 0
    for path in LIVE:
        answer = await page.goto(nothing.url + path)
        if path != "/queues/orders-in/":
            assert answer is not None and answer.ok, path
        empty += await page.locator(".empty").count()
        found += await found_by_axe(page, path)
    assert empty >= 5, "these pages do have something to show"
    assert not found, "\n".join(found)
    await page.goto(nothing.url)
    await expect(page.get_by_text("updated", exact=False)).to_have_count(5, timeout=30_000)


async def test_axe_finds_nothing_while_storage_is_gone_and_everything_is_old(
    person: People, stack: LiveStack
) -> None:
    page = await person("admin", "/", color_scheme="dark")
    found = []
    with stack.suspended(stack.azurite_pid):
        await expect(page.locator("#region-storage")).to_contain_text("Storage unreachable", timeout=40_000)
        for path in LIVE:
            await page.goto(stack.url + path)
            await expect(page.locator("#region-storage")).to_contain_text("Storage unreachable")
            if await page.locator("[data-live]").count():
                await expect(page.locator("[data-live]")).to_have_attribute(
                    "data-state", "on", timeout=20_000
                )
            new_looking = await page.evaluate(LOOKS_NEW)
            assert not new_looking, f"{path} shows as if it were new: {new_looking}"
            found += await found_by_axe(page, path)
    await expect(page.locator("#region-storage")).not_to_contain_text("unreachable", timeout=40_000)
    assert not found, "\n".join(found)


async def test_axe_finds_nothing_on_the_pages_of_whoever_may_only_look(
    person: People, stack: LiveStack
) -> None:
    page = await person("viewer", "/", color_scheme="dark")
    found = []
    for path in FOR_OPERATORS:
        await page.goto(stack.url + path)
        assert await page.locator("form[action*=unleash], form[action*=drain]").count() == 0
        found += await found_by_axe(page, path)
    assert not found, "\n".join(found)


async def test_axe_finds_nothing_on_pages_that_say_what_went_wrong(person: People, stack: LiveStack) -> None:
    pages = {role: await person(role, "/", color_scheme="dark") for role in ("viewer", "admin")}
    found = []
    for role, path, words in ERRORS:
        page = pages[role]
        await page.goto(stack.url + path)
        await expect(page.locator("main")).to_contain_text(words)
        found += await found_by_axe(page, path)
    page = pages["admin"]
    await page.goto(f"{stack.url}/queues/orders-in/clear")
    await page.locator("input[name=typed]").fill("something else")
    await page.locator(".confirm .danger-button").click()
    await expect(page.locator("main")).to_contain_text("Nothing changed")
    found += await found_by_axe(page, "a name typed wrongly")
    await page.context.clear_cookies()
    await page.goto(f"{stack.url}/accounts/login/")
    await page.get_by_label("Username").fill("nobody")
    await page.get_by_label("Password").fill("nothing")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.locator("main, body").first).to_contain_text("Incorrect username or password")
    found += await found_by_axe(page, "a password typed wrongly")
    assert not found, "\n".join(found)


async def test_states_and_focus_can_be_told_apart_in_forced_colours(person: People) -> None:
    page = await person("operator", "/workers/", forced_colors="active")
    assert await page.evaluate("matchMedia('(forced-colors: active)').matches")
    state = page.locator(".state").first
    assert await state.evaluate("(each) => getComputedStyle(each).borderTopStyle") == "solid"
    button = page.get_by_role("button", name="Drain orders-1")
    await button.focus()
    await page.keyboard.press("Shift+Tab")
    await page.keyboard.press("Tab")
    outline = await button.evaluate("(each) => getComputedStyle(each).outlineStyle")
    assert outline not in ("none", ""), "the focus cannot be seen"


async def test_nothing_moves_for_whoever_asked_for_that(person: People) -> None:
    style = """() => { const bar = document.createElement("progress"); document.body.append(bar);
        bar.style.transition = "opacity 2s"; return getComputedStyle(bar).transitionDuration; }"""
    still = await person("viewer", "/help/", reduced_motion="reduce")
    assert await still.evaluate(style) == "0s"
    moving = await person("viewer", "/help/", reduced_motion="no-preference")
    assert await moving.evaluate(style) == "2s"
