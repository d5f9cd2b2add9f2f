"""The cost page: what operators change there, at the browser."""

from __future__ import annotations

import re

from playwright.async_api import expect

from tests.browser.conftest import People


async def test_an_operator_changes_a_price_and_the_budget_and_takes_it_back(person: People) -> None:
    page = await person("operator", "/cost/")
    form = page.locator("#prices")
    try:
        await form.get_by_label("Queue operations").fill("0,5")
        await form.get_by_role("button", name="Save").click()
        await expect(page.locator("#notice")).to_contain_text("'0,5' is not a number such as 0.004")
        await expect(form.get_by_label("Queue operations")).to_have_value("0,5")
        await form.get_by_label("Queue operations").fill("0.5")
        await form.get_by_label("Source").fill("our contract")
        await form.get_by_label("Daily budget (US dollars)").fill("0.000001")
        await form.get_by_role("button", name="Save").click()
        await expect(page.locator("#notice")).to_contain_text("Prices and budget saved.")
        await expect(form).to_contain_text(re.compile("Prices saved by .* on"))
        await expect(page.locator("#region-cost")).to_contain_text("our contract")
        await expect(page.locator("#region-cost")).to_contain_text("The daily budget is exceeded.")
    finally:
        await form.get_by_role("button", name="Restore defaults").click()
    await expect(page.locator("#notice")).to_contain_text("Default prices and budget restored")
    await expect(form.get_by_label("Queue operations")).to_have_value("0.004")
    await expect(form).to_contain_text("Using the defaults.")
