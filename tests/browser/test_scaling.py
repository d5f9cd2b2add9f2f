"""The scaling page, on decisions of a real agent's history."""

from __future__ import annotations

import re

from playwright.async_api import expect

from coordinator import Storage
from coordinator.scaling.azure import scaling_history
from coordinator.scaling.decision import AgentState, Decision, Observation
from tests.browser.conftest import People
from tests.support.stack import LiveStack


async def test_the_page_says_how_many_are_wanted_and_why_and_takes_a_policy(
    person: People, stack: LiveStack
) -> None:
    async with Storage.from_connection_string(stack.connection_string) as storage:
        await scaling_history(storage, "billing").record(
            Decision(5, "5 because 900 wait and the target is 60 s", AgentState()),
            Observation(at=storage.clock.time(), actual=3, visible=900),
            previous=3,
            by="agent-1",
            epoch=1,
        )
    page = await person("operator", "/scaling/?pool=billing")
    await expect(page.locator("main")).to_contain_text(
        "5 because 900 wait and the target is 60 s", timeout=30_000
    )
    async with Storage.from_connection_string(stack.connection_string) as storage:
        await scaling_history(storage, "billing").record(
            Decision(2, "2 because there is nothing to do", AgentState(2, storage.clock.time())),
            Observation(at=storage.clock.time(), actual=5, visible=0),
            previous=5,
            by="agent-1",
            epoch=1,
        )
    for region in ("#region-pools", "#region-changes"):
        await expect(page.locator(region)).to_contain_text("2 because there is nothing to do", timeout=20_000)
    policy = page.get_by_label("JSON")
    await policy.fill('{"minimum": 9, "maximum": 2}')
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("#notice")).to_contain_text("minimum <= maximum, got 9 and 2")
    await policy.fill('{"minimum": 2, "maximum": 9}')
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("#notice")).to_contain_text("Policy saved. The agent of billing")
    await expect(page.get_by_label("JSON")).to_have_value(re.compile(r'"maximum": 9'))
