"""Every page, in both themes, down to 320 px."""

from __future__ import annotations

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from tests.browser.conftest import People
from tests.conftest import PageFactory
from tests.support.stack import LiveStack

PATHS = (
    "/",
    "/gates/",
    "/queues/",
    "/queues/orders-in/",
    "/queues/orders-in/clear",
    "/workers/",
    "/leaders/",
    "/sequences/",
    "/batches/",
    "/scaling/",
    "/cost/",
    "/audit/",
    "/access/",
    "/search/?q=o",
    "/help/",
    "/tv",
    "/nowhere/",
)
AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


async def test_no_page_scrolls_sideways(person: People, stack: LiveStack) -> None:
    page = await person("admin")
    wide = []
    for path in PATHS:
        await page.goto(stack.url + path)
        for width in (1440, 768, 320):
            await page.set_viewport_size({"width": width, "height": 800})
            await page.wait_for_timeout(50)
            if await page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wide.append(f"{path} at {width} px")
    assert not wide


@pytest.mark.parametrize("theme", ["dark", "light"])
async def test_axe_finds_nothing(person: People, new_page: PageFactory, stack: LiveStack, theme: str) -> None:
    page = await person("admin", color_scheme=theme)
    found: list[str] = []
    visitor = await new_page(color_scheme=theme)
    await visitor.goto(f"{stack.url}/accounts/login/")
    for who, path in [(visitor, "/accounts/login/"), *((page, path) for path in PATHS)]:
        await who.goto(stack.url + path)
        results = await Axe().run(who, options=AXE)
        found += [
            f"{path}: {violation['id']}: {violation['help']}: {violation['nodes'][0]['html'][:160]}"
            for violation in results.response["violations"]
        ]
    assert not found, "\n".join(found)


async def test_the_console_stays_silent_under_the_content_security_policy(
    person: People, stack: LiveStack
) -> None:
    page = await person("admin")
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    for path in PATHS:
        if path == "/nowhere/":
            continue  # its 404 is an error on the console by itself
        await page.goto(stack.url + path)
        await page.wait_for_timeout(300)
    assert not said


async def test_pages_are_readable_without_javascript(person: People, stack: LiveStack) -> None:
    page = await person("viewer", java_script_enabled=False)
    for path in ("/", "/gates/", "/queues/", "/workers/", "/leaders/", "/sequences/", "/audit/"):
        await page.goto(stack.url + path)
        await expect(page.locator("h1")).to_have_count(1)
        await expect(page.locator(".headline-state")).to_be_visible()
