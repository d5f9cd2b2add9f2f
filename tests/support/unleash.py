"""The big button in a real browser, before a crowd of workers: what is shown when, and how busy the page is."""

from __future__ import annotations

from typing import NamedTuple

from playwright.async_api import Page, expect

from tests.support.crowd import Waiting
from tests.support.dashboard import Person

GATE = Waiting.gate
PATIENCE_MS = 60_000

WATCH = """(gate) => {
    const now = () => performance.timeOrigin + performance.now();
    window.release = {pressed: 0, shown: 0, longest: 0, words: ""};
    // An entry comes after its task: it counts for a release only if the task ran after the press.
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries())
            if (performance.timeOrigin + entry.startTime + entry.duration >= window.release.pressed)
                window.release.longest = Math.max(window.release.longest, entry.duration);
    }).observe({type: "longtask"});
    document.addEventListener("click", (event) => {
        if (event.target.closest(`#unleash-${gate}`)) window.release.pressed = now();
    }, {capture: true});
    new MutationObserver(() => {
        const said = document.querySelector(`#gate-${gate} [data-released]`);
        if (said && said.textContent.trim() === window.release.words) window.release.shown ||= now();
    }).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""
PRESS = """([gate, words]) => {
    Object.assign(window.release, {pressed: 0, shown: 0, longest: 0, words});
    document.getElementById(`unleash-${gate}`).click();
}"""
# Long tasks are told of in idle moments.
TELL = """() => new Promise((done) => requestIdleCallback(
    () => setTimeout(() => done(window.release), 500), {timeout: 5000}))"""


class Seen(NamedTuple):
    """Moments are seconds since 1970, by the browser's clock, which is this machine's."""

    pressed_at: float
    shown_at: float
    longest_task_ms: float


async def visit(page: Page, person: Person) -> Page:
    """The Overview, signed in as that person."""
    await page.context.add_cookies(
        [{"name": c.name, "value": c.value or "", "url": person.dashboard.url} for c in person.http.cookies]
    )
    await page.goto(person.dashboard.url)
    await expect(page.locator("[data-live]")).to_have_attribute("data-state", "on", timeout=PATIENCE_MS)
    await page.evaluate(WATCH, GATE)
    return page


async def all_wait(page: Page, count: int) -> None:
    """The page says that they all wait."""
    await expect(page.locator(f"#gate-{GATE} .gate-waiting .big")).to_have_text(
        str(count), timeout=PATIENCE_MS
    )


async def unleash(page: Page, count: int) -> Seen:
    """Press, and wait until the page says that the last of them has passed."""
    words = f"{count} of {count}"
    await page.evaluate(PRESS, [GATE, words])
    await expect(page.locator(f"#gate-{GATE} [data-released]")).to_have_text(words, timeout=PATIENCE_MS)
    told = await page.evaluate(TELL)
    return Seen(told["pressed"] / 1000, told["shown"] / 1000, told["longest"])
