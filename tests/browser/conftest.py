"""A live product for the browser, shared by the tests of this folder, and people who sign in to it."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.conftest import PageFactory
from tests.support.stack import LiveStack, live_stack, wait_until

WORKERS = 3
GATE = "start-order-processing"
People = Callable[..., Awaitable[Page]]


@pytest.fixture(scope="package")
def stack() -> Iterator[LiveStack]:
    with live_stack(workers=WORKERS, orders=200) as running:
        visitor = running.sign_in("viewer")
        wait_until(lambda: visitor.get("/queues/orders-in/").ok, "the dashboard has seen the queue")
        yield running


async def signed_in(page: Page, stack: LiveStack, role: str, path: str = "/") -> Page:
    """Somebody of that role signs in at `page` and comes to `path`; returns when the page is live."""
    await page.goto(f"{stack.url}/accounts/login/?next={path}")
    await page.get_by_label("Username").fill(stack.users[role]["name"])
    await page.get_by_label("Password").fill(stack.users[role]["password"])
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_load_state()
    if await page.locator("[data-live]:not([hidden])").count():
        await expect(page.locator("[data-live]")).to_have_attribute("data-state", "on")
    return page


@pytest.fixture
def person(new_page: PageFactory, stack: LiveStack) -> People:
    """`await person("operator")`: somebody of that role, at a browser of their own, on `path`."""

    async def sign_in(role: str, path: str = "/", **context: Any) -> Page:
        return await signed_in(await new_page(**context), stack, role, path)

    return sign_in


@pytest.fixture
def held_gate(stack: LiveStack) -> str:
    """The gate, closed, with every worker waiting before it."""
    visitor = stack.sign_in("operator")
    visitor.post(f"/gates/{GATE}/leash", reason="a test begins")

    def all_wait() -> bool:
        if f'<strong class="big">{WORKERS}</strong>' in visitor.get("/gates/").text:
            return True
        # A worker that sleeps before an empty queue comes back to the gate when there is something to take.
        visitor.post("/queues/orders-in/put", body=f'{{"order_id": "test-{uuid.uuid4().hex}", "cents": 100}}')
        return False

    wait_until(all_wait, "every worker waits at the gate", 30)
    return GATE
