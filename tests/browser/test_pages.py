"""Every page, in both themes, down to 320 px."""

from __future__ import annotations

import re

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect

from tests.browser.conftest import People
from tests.conftest import PageFactory
from tests.support.readme import PROJECT
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
    "/throughput/",
    "/alerts/",
    "/alerts/new",
    "/audit/",
    "/access/",
    "/search/?q=o",
    "/views/?at=/queues/",
    "/help/",
    "/tv",
    "/nowhere/",
)
AXE = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}
# A theme is another set of colours (`test_a_theme_changes_colours_alone`), so once all rules held in one, these are left.
OF_COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
SEEN = """async (options) => (await axe.run(options)).violations.map(
    (found) => `${found.id}: ${found.help}: ${found.nodes[0].html.slice(0, 160)}`)"""
# 1280 px wide at 400 %: what is left of the window for the page, and the least that WCAG 1.4.10 asks for.
ZOOMED = {"width": 320, "height": 256}
# Everything that can be worked: brought into view it lies within the window, and nothing lies over it.
OUT_OF_REACH = """() => {
    const lost = [];
    for (const each of document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")) {
        if (!each.checkVisibility({visibilityProperty: true}) || each.closest(".visually-hidden, .skip")) continue;
        each.scrollIntoView({block: "center", behavior: "instant"});
        const line = each.getClientRects()[0];
        const over = document.elementFromPoint(line.x + line.width / 2, line.y + line.height / 2);
        const within = line.left >= 0 && line.right <= innerWidth + 0.5;
        if (!within || !over || !(each.contains(over) || over.contains(each) || each.labels?.[0]?.contains(over)))
            lost.push(each.outerHTML.slice(0, 120));
    }
    return lost;
}"""


async def found_by_axe(page: Page, place: str) -> list[str]:
    """All rules on the page as it is when dark, and all that depend on colours when it is light."""
    await page.evaluate(Axe().axe_script)
    found = []
    for theme, rules in (("dark", AXE), ("light", AXE | OF_COLOURS)):
        await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        found += [f"{place}, {theme}: {each}" for each in await page.evaluate(SEEN, rules)]
    return found


async def test_no_page_scrolls_sideways_and_all_can_be_reached_at_four_hundred_per_cent(
    person: People, stack: LiveStack
) -> None:
    page = await person("admin")
    wide, lost = [], []
    for path in PATHS:
        await page.goto(stack.url + path)
        for size in ({"width": 1440, "height": 800}, {"width": 768, "height": 800}, ZOOMED):
            await page.set_viewport_size(size)  # type: ignore[arg-type]
            await page.wait_for_timeout(50)
            if await page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wide.append(f"{path} at {size['width']} px")
        lost += [f"{path}: {each}" for each in await page.evaluate(OUT_OF_REACH)]
    assert not wide
    assert not lost, "\n".join(lost)


async def test_axe_finds_nothing_in_either_theme(
    person: People, new_page: PageFactory, stack: LiveStack
) -> None:
    page, visitor = await person("admin"), await new_page()
    found: list[str] = []
    for who, path in [(visitor, "/accounts/login/"), *((page, path) for path in PATHS)]:
        await who.goto(stack.url + path)
        found += await found_by_axe(who, path)
    assert not found, "\n".join(found)


def test_a_theme_changes_colours_alone() -> None:
    """What a theme's rules set: the scheme and values of names, which no rule but those of colours reads differently."""
    texts = [path.read_text() for path in (PROJECT / "static" / "css").glob("*.css")]
    rules = [rule for text in texts for rule in re.findall(r"([^{}]*data-theme[^{}]*)\{([^{}]*)\}", text)]
    assert len(rules) >= 2
    for selector, body in rules:
        for name in re.findall(r"([\w-]+)\s*:[^;]*;", body):
            assert name == "color-scheme" or name.startswith("--"), f"{selector.strip()} sets {name}"
    assert [text.count("prefers-color-scheme") for text in texts if "prefers-color-scheme" in text] == [1]


async def test_the_switch_and_the_systems_wish_give_the_same_colours(person: People) -> None:
    page = await person("viewer", "/help/")
    read = """() => { const set = {}; const style = getComputedStyle(document.documentElement);
        for (const sheet of document.styleSheets) for (const rule of sheet.cssRules) for (const name of rule.style ?? [])
            if (name.startsWith("--")) set[name] = style.getPropertyValue(name).trim();
        return set; }"""
    wished, switched = {}, {}
    for theme, other in (("dark", "light"), ("light", "dark")):
        await page.evaluate("delete document.documentElement.dataset.theme")
        await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        wished[theme] = await page.evaluate(read)
        await page.emulate_media(color_scheme=other)  # type: ignore[arg-type]
        await page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", theme)
        switched[theme] = await page.evaluate(read)
    assert wished == switched
    assert len(wished["dark"]) > 40 and wished["dark"] != wished["light"]


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
        await expect(page.locator("#region-status .headline-state")).to_be_visible()
        await expect(page.locator(".headline-off")).to_be_hidden()
