"""When the dashboard goes away under an open page."""

from __future__ import annotations

import os
import signal

import psutil
from playwright.async_api import expect

from tests.browser.conftest import People
from tests.support.stack import LiveStack, wait_until


def dashboard_pids(stack: LiveStack) -> list[int]:
    demo = psutil.Process(stack.worker_pids[0]).parent()
    assert demo is not None
    serving = ("dashboard.asgi:application", "prepare_demo")  # started again, and started first
    return [
        child.pid for child in demo.children() if any(each in " ".join(child.cmdline()) for each in serving)
    ]


async def test_a_page_shows_its_age_while_the_dashboard_is_gone_and_recovers_by_itself(
    person: People, stack: LiveStack
) -> None:
    page = await person("viewer")
    await page.evaluate("window.untouched = true")
    queues = page.locator("[data-panel=queues]")
    await expect(queues).not_to_have_attribute("data-stale", "")
    place = await queues.bounding_box()
    for pid in dashboard_pids(stack):
        os.kill(pid, signal.SIGKILL)
    await expect(queues).to_have_attribute("data-stale", "", timeout=5000)
    await expect(queues.locator("[data-age]")).to_contain_text("as of")
    await expect(page.locator("[data-reconnect]")).to_contain_text("No connection to the dashboard")
    await expect(page.locator(".headline-off")).to_contain_text("Not connected")
    await expect(page.locator("#region-status"), "no green word while nobody knows").to_be_hidden()
    assert await queues.bounding_box() == place, "the banner moved the page"
    wait_until(lambda: bool(dashboard_pids(stack)), "the demo starts the dashboard again", 30)
    await expect(page.locator("[data-live]")).to_have_attribute("data-state", "on", timeout=30_000)
    await expect(queues).not_to_have_attribute("data-stale", "", timeout=15_000)
    await expect(page.locator("[data-reconnect]")).to_be_hidden()
    await expect(page.locator(".headline-off")).to_be_hidden()
    assert await page.evaluate("window.untouched"), "the page was reloaded"


async def test_whoever_was_signed_out_meanwhile_is_asked_to_sign_in(person: People, stack: LiveStack) -> None:
    page = await person("viewer", "/workers/")
    await page.context.clear_cookies()
    for pid in dashboard_pids(stack):
        os.kill(pid, signal.SIGKILL)
    await page.wait_for_url("**/accounts/login/?next=/workers/", timeout=60_000)
    wait_until(lambda: bool(dashboard_pids(stack)), "the demo starts the dashboard again", 30)


async def test_while_storage_is_gone_pages_say_since_when_and_keep_their_figures(
    person: People, stack: LiveStack
) -> None:
    page = await person("viewer", "/queues/orders-in/")
    figure = page.locator("#region-queue dd").first
    await expect(figure).not_to_contain_text("not known")
    before = await figure.inner_text()
    with stack.suspended(stack.azurite_pid):
        await expect(page.locator("#region-storage")).to_contain_text(
            "Storage unreachable since", timeout=30_000
        )
        await expect(page.locator("[data-panel=queues]")).to_have_attribute("data-stale", "")
        assert await figure.inner_text() == before
    await expect(page.locator("#region-storage")).not_to_contain_text("unreachable", timeout=30_000)
    await expect(page.locator("[data-panel=queues]")).not_to_have_attribute("data-stale", "", timeout=30_000)


async def test_pause_stops_changes_and_says_so(person: People) -> None:
    page = await person("viewer", "/workers/")
    await page.locator("[data-live-rate]").select_option("paused")
    await expect(page.locator("[data-live-word]")).to_have_text("Paused")
    before = await page.locator("#region-pulse").text_content()
    await expect(page.locator("[data-panel=workers] [data-age]")).to_contain_text("as of", timeout=15_000)
    assert await page.locator("#region-pulse").text_content() == before
    await page.locator("[data-live-rate]").select_option("0")
    await expect(page.locator("[data-panel=workers] [data-age]")).to_contain_text("updated")
