"""What operators do every day: each in at most four clicks from the overview, by mouse and by keyboard, and refused to others."""

from __future__ import annotations

import asyncio
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from coordinator.config import StorageConfig
from coordinator.queues.envelope import Failure, PoisonRecord
from coordinator.storage import Storage
from dashboard.live.releases import source_of
from tests.browser.conftest import GATE, People
from tests.support.stack import LiveStack, wait_until

MOST_CLICKS = 4


class Hand:
    """Somebody at a page, by mouse or by keyboard. Filling a field is not a click."""

    def __init__(self, page: Page, by: str) -> None:
        self.page = page
        self.by = by
        self.clicks = 0

    async def press(self, target: Locator) -> None:
        self.clicks += 1
        if self.by == "mouse":
            await target.click()
            return
        await expect(target).to_be_visible()
        assert await target.evaluate("it => it.tabIndex") >= 0, "it cannot be reached by keyboard"
        await target.focus()
        await expect(target).to_be_focused()
        await self.page.keyboard.press("Enter")

    async def link(self, name: str) -> None:
        await self.press(self.page.get_by_role("link", name=name).first)

    async def go(self, name: str) -> None:
        """To a page of the navigation."""
        nav = self.page.get_by_role("navigation", name="Pages")
        await self.press(nav.get_by_role("link", name=name))
        await expect(self.page.locator("h1")).to_contain_text(name)

    async def button(self, name: str, within: Locator | None = None) -> None:
        await self.press((within or self.page).get_by_role("button", name=name).first)

    async def told(self, text: str) -> None:
        await expect(self.page.locator("#notice")).to_contain_text(text, timeout=30_000)


class Site:
    """The product, and what a task needs to be there."""

    def __init__(self, stack: LiveStack, storage: Storage) -> None:
        self.stack = stack
        self.storage = storage
        self.admin = stack.sign_in("admin")
        self.name = f"t-{uuid.uuid4().hex[:10]}"

    def ready(self, path: str, text: str) -> None:
        wait_until(lambda: text in self.admin.get(path).text, f"{path} shows {text}", 60)

    async def gate(self, *, is_open: bool = False) -> str:
        await asyncio.to_thread(self.admin.post, "/gates/", name=self.name)
        if is_open:
            await asyncio.to_thread(self.admin.post, f"/gates/{self.name}/unleash")
        await asyncio.to_thread(self.ready, "/gates/", f'id="gate-{self.name}"')
        return self.name

    async def queue(self) -> str:
        """Made on the page, so that the dashboard looks for new names at once."""
        await asyncio.to_thread(self.admin.post, "/queues/", name=self.name)
        await asyncio.to_thread(self.ready, "/queues/", f'id="queue-{self.name}"')
        return self.name

    def worked(self, *, done: int, days_ago: int) -> None:
        """Handlers of a queue ended so often, an hour before this time of that day."""
        hour = (int(time.time()) // 3600 - 1) * 3600 - days_ago * 86_400
        with (
            closing(sqlite3.connect(self.stack.folder / "dashboard.sqlite3", timeout=30)) as database,
            database,
        ):
            database.execute(
                "INSERT INTO dashboard_tally (source, seconds, start, queue, handler, done, failed, retried, durations, waits)"
                " VALUES (?, 3600, ?, ?, 'bill', ?, 0, 0, '{}', '{}')",
                [source_of(self.storage), hour, self.name, done],
            )

    async def poison(self, count: int = 3) -> str:
        queue = self.storage.queue(self.name, type=Any)
        for n in range(count):
            failure = Failure("no stock", "ValueError", "Traceback …", "orders-1", 5, time.time(), 0, "bill")
            record = PoisonRecord(
                self.name, f"m-{n}", f'{{"n":{n}}}', "no stock", [failure], 1.0, time.time(), 5
            )
            await queue.poison.put(record)
        await self.queue()
        await asyncio.to_thread(self.ready, "/queues/", f"/queues/{self.name}/poison")
        return self.name


@pytest_asyncio.fixture(loop_scope="session")
async def site(stack: LiveStack) -> AsyncIterator[Site]:
    async with Storage.from_connection_string(stack.connection_string, config=StorageConfig()) as storage:
        site = Site(stack, storage)
        yield site
        for queue in (site.name, f"{site.name}-poison"):
            await storage.queue(queue).delete()


Task = Callable[[Hand, Site], Awaitable[list[str]]]
"""Does it, and returns the addresses that somebody of a lesser role must be refused."""


async def unleash(hand: Hand, site: Site) -> list[str]:
    name = await site.gate()
    await hand.go("Gates")
    card = hand.page.locator(f"#gate-{name}")
    await hand.button("Unleash", card)
    await expect(card.locator(".state").first).to_have_text("Open", timeout=30_000)
    return [f"/gates/{name}/unleash"]


async def schedule(hand: Hand, site: Site) -> list[str]:
    name = await site.gate()
    await hand.go("Gates")
    card = hand.page.locator(f"#gate-{name}")
    await hand.press(card.get_by_text("Schedule or roll out gradually…"))
    await card.get_by_label("Open at (UTC)").fill("2099-11-27T09:00:00")
    await card.get_by_label("Share").select_option("10 % of workers")
    await expect(card.locator(".plan")).to_contain_text("27 Nov 2099", timeout=30_000)
    await hand.button("Schedule opening", card)
    async with asyncio.timeout(30):
        while (await site.storage.gate(name).read()).state != "armed":
            await asyncio.sleep(0.05)
    return [f"/gates/{name}/unleash"]


async def leash_everything(hand: Hand, site: Site) -> list[str]:
    name = await site.gate(is_open=True)
    await hand.go("Gates")
    await hand.link("Leash everything…")
    await hand.page.get_by_label("to confirm").fill("leash everything")
    await hand.button("Leash everything")
    await expect(hand.page.locator(f"#gate-{name} .state").first).to_have_text("Closed", timeout=30_000)
    return ["/several/gates/leash"]


async def why_not_draining(hand: Hand, site: Site) -> list[str]:
    await site.queue()
    await asyncio.to_thread(site.admin.post, f"/queues/{site.name}/put", body="1")
    await hand.go("Queues")
    await hand.link(site.name)
    await expect(hand.page.locator("#region-queue .banner")).to_contain_text("No consumers", timeout=30_000)
    return []


async def retry_one(hand: Hand, site: Site) -> list[str]:
    name = await site.poison()
    await hand.go("Queues")
    await hand.press(hand.page.locator(f"#queue-{name} a[href$=poison]"))
    await hand.page.get_by_role("button", name="Retry message").first.wait_for()
    await hand.button("Retry message")
    await hand.told("1 message requeued.")
    assert await site.storage.queue(name).depth() == 1
    assert await site.storage.queue(f"{name}-poison").depth() == 2
    return [f"/queues/{name}/messages/retry", f"/queues/{name}/poison/read"]


async def delete_one(hand: Hand, site: Site) -> list[str]:
    name = await site.poison()
    await hand.go("Queues")
    await hand.press(hand.page.locator(f"#queue-{name} a[href$=poison]"))
    await hand.button("Delete… message")
    await hand.page.get_by_label("to confirm").fill("delete 1")
    await hand.button("Delete")
    await hand.told("1 message deleted.")
    assert await site.storage.queue(name).depth() == 0
    assert await site.storage.queue(f"{name}-poison").depth() == 2
    return [f"/queues/{name}/messages/delete"]


async def retry_a_kind(hand: Hand, site: Site) -> list[str]:
    name = await site.poison()
    await hand.go("Queues")
    await hand.press(hand.page.locator(f"#queue-{name} a[href$=poison]"))
    await hand.button("Retry all… 3 of")
    await hand.page.get_by_label("to confirm").fill("retry 3")
    await hand.button("Retry all")
    await expect(hand.page.get_by_text("No poison messages.")).to_be_visible(timeout=60_000)
    assert await site.storage.queue(name).depth() == 3
    return [f"/queues/{name}/messages/retry?all=1"]


async def drain_a_worker(hand: Hand, site: Site) -> list[str]:
    await hand.go("Workers")
    row = hand.page.locator("tr", has=hand.page.locator("#worker-orders-2"))
    await hand.button("Drain orders-2", row)
    await expect(row.get_by_text("Draining")).to_be_visible(timeout=30_000)
    instance = (await row.get_attribute("id") or "").removeprefix("instance-")
    await asyncio.to_thread(site.admin.post, f"/workers/{instance}/resume")
    return [f"/workers/{instance}/drain"]


async def change_the_rule(hand: Hand, site: Site) -> list[str]:
    await site.queue()
    await hand.go("Queues")
    await hand.link(site.name)
    await hand.page.get_by_label("Target drain time (seconds)").fill("30")
    await hand.button("Scale by target")
    await hand.told("uses the new rule")
    return [f"/queues/{site.name}/rule"]


async def find_the_owner_of_a_number(hand: Hand, site: Site) -> list[str]:
    page = hand.page
    await page.keyboard.press("/")
    await expect(page.get_by_role("searchbox").first).to_be_focused()
    await page.keyboard.type("orders-1")
    await page.keyboard.press("Enter")
    hand.clicks += 1
    await expect(page.locator("main")).to_contain_text("orders-1", timeout=30_000)
    return []


async def see_what_a_worker_did(hand: Hand, site: Site) -> list[str]:
    await hand.go("Workers")
    await hand.link("timeline of orders-1")
    await expect(hand.page.locator("main")).to_contain_text("Started")
    await expect(hand.page.locator("h1")).to_have_text("orders-1")
    return []


async def add_a_person(hand: Hand, site: Site) -> list[str]:
    await hand.go("Access")
    await hand.page.get_by_label("Username").first.fill(site.name)
    await hand.page.get_by_label("Role of the new person").select_option("operator")
    await hand.button("Add person")
    await expect(hand.page.locator("main")).to_contain_text(site.name)
    return ["/access/people"]


async def last_months_audit(hand: Hand, site: Site) -> list[str]:
    await hand.go("Audit")
    await hand.link("Last month")
    await expect(hand.page.get_by_label("From (UTC)")).not_to_have_value("")
    async with hand.page.expect_download() as download:
        await hand.link("CSV")
    assert (await download.value).suggested_filename == "audit.csv"
    return []


async def have_a_leader_step_down(hand: Hand, site: Site) -> list[str]:
    await hand.go("Leaders")
    card = hand.page.locator("#election-daily-report")
    await expect(card.locator(".state").first).to_have_text("Leader active", timeout=60_000)
    holder = await card.locator("dd").first.inner_text()
    await hand.button("Step down (graceful)", card)
    await expect(card.locator("dd").first).not_to_have_text(holder, timeout=60_000)
    return ["/leaders/daily-report/step-down"]


async def alert_when_a_queue_is_deep(hand: Hand, site: Site) -> list[str]:
    await hand.go("Alerts")
    await hand.link("Create rule")
    await hand.page.get_by_label("Name", exact=True).fill(site.name)
    await hand.page.get_by_label("Figure").select_option("queue.depth")
    await hand.page.get_by_label("Value", exact=True).fill("250")
    await hand.page.get_by_label("Names", exact=True).fill(f"{site.name}-*")
    await hand.button("Save")
    rule = hand.page.locator("tr", has=hand.page.get_by_role("link", name=site.name))
    await expect(rule).to_contain_text("above 250", timeout=30_000)
    return ["/alerts/new", f"/alerts/rules/{site.name}/"]


async def today_against_last_week(hand: Hand, site: Site) -> list[str]:
    site.worked(done=4321, days_ago=7)
    site.worked(done=5432, days_ago=0)
    await hand.go("Queues")
    await hand.link("Throughput of handlers")
    await hand.link("Last 24 hours")
    row = hand.page.locator("tr", has=hand.page.get_by_role("link", name=site.name))
    await expect(row.locator("[data-label=Done]")).to_contain_text("5\N{NARROW NO-BREAK SPACE}432")
    await expect(row.locator("[data-label='Last week']")).to_contain_text("4\N{NARROW NO-BREAK SPACE}321")
    await hand.link("Yesterday")
    await expect(row.locator("[data-label=Yesterday]")).to_have_text("0")
    return []


TASKS: dict[Task, tuple[str, str]] = {
    unleash: ("operator", "viewer"),
    schedule: ("operator", "viewer"),
    leash_everything: ("operator", "viewer"),
    why_not_draining: ("viewer", ""),
    retry_one: ("operator", "viewer"),
    delete_one: ("admin", "operator"),
    retry_a_kind: ("operator", "viewer"),
    drain_a_worker: ("operator", "viewer"),
    change_the_rule: ("operator", "viewer"),
    find_the_owner_of_a_number: ("viewer", ""),
    see_what_a_worker_did: ("viewer", ""),
    add_a_person: ("admin", "operator"),
    last_months_audit: ("viewer", ""),
    have_a_leader_step_down: ("operator", "viewer"),
    alert_when_a_queue_is_deep: ("admin", "operator"),
    today_against_last_week: ("viewer", ""),
}


@pytest.mark.parametrize("by", ["keyboard", pytest.param("mouse", marks=pytest.mark.slow)])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
async def test_a_task_of_every_day_takes_four_clicks_at_most_and_is_refused_to_others(
    person: People, stack: LiveStack, site: Site, task: Task, by: str
) -> None:
    role, lesser = TASKS[task]
    was_open = (await site.storage.gate(GATE).read()).state == "open"
    hand = Hand(await person(role), by)
    addresses = await task(hand, site)
    assert hand.clicks <= MOST_CLICKS
    if lesser:
        assert addresses
        other = await asyncio.to_thread(stack.sign_in, lesser)
        for address in addresses:
            refused = await asyncio.to_thread(other.post, address)
            assert refused.status_code == 403, f"{address} for {lesser}"
    if was_open:
        await asyncio.to_thread(site.admin.post, f"/gates/{GATE}/unleash")


async def test_ctrl_k_finds_while_one_types_and_arrows_choose(person: People, stack: LiveStack) -> None:
    page = await person("viewer")
    await page.keyboard.press("Control+k")
    field, found = page.locator("#find"), page.locator("#found")
    await expect(field).to_be_focused()
    await page.keyboard.type("orders-")
    await expect(found.get_by_role("link", name="orders-in")).to_be_visible(timeout=30_000)
    await page.keyboard.press("ArrowDown")
    await expect(found.get_by_role("link").first).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(field).to_be_focused()
    await expect(found).to_be_hidden()
    await field.fill("queue")
    await expect(found.get_by_role("link", name="Queues")).to_be_visible(timeout=30_000)
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("Queues", timeout=30_000)
