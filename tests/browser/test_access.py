"""Tokens and teams, at the browser."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import requests
from playwright.async_api import expect

from tests.browser.conftest import People
from tests.conftest import PageFactory
from tests.support.stack import LiveStack


def reads(stack: LiveStack, token: str) -> int:
    """What the API answers to that token."""
    headers = {"Authorization": f"Bearer {token}"}
    return requests.get(f"{stack.url}/api/v1/attention", headers=headers, timeout=10).status_code


async def test_a_person_makes_a_token_sees_it_once_and_revokes_it(person: People, stack: LiveStack) -> None:
    name = f"my script {uuid.uuid4().hex[:6]}"
    page = await person("viewer", "/access/")
    await expect(page.get_by_label("Owner")).to_have_count(0)
    await page.get_by_label("Token name").fill(name)
    await page.get_by_role("button", name="Create token").click()
    token = await page.get_by_label("Copy the token now").input_value()
    assert token.startswith("kp_")
    assert reads(stack, token) == 200
    await page.goto(f"{stack.url}/access/")
    assert token not in await page.content()
    row = page.get_by_role("row").filter(has_text=name)
    await expect(row).to_contain_text("Valid")
    await row.get_by_role("link", name="Revoke").click()
    await expect(page.get_by_role("link", name="Cancel")).to_be_focused()
    await page.get_by_label("to confirm").fill("something else")
    await page.get_by_role("button", name="Revoke").click()
    await expect(page.get_by_role("alert")).to_contain_text("Nothing changed")
    assert reads(stack, token) == 200
    await page.get_by_label("to confirm").fill(name)
    await page.get_by_role("button", name="Revoke").click()
    await expect(page.get_by_role("row").filter(has_text=name)).to_contain_text("Revoked")
    assert reads(stack, token) == 401


async def test_a_screen_opens_its_address_and_shows_the_wallboard(
    person: People, new_page: PageFactory, stack: LiveStack
) -> None:
    admin = await person("admin", "/access/")
    await admin.get_by_label("Token name").fill("the hall")
    await admin.get_by_label("Owner").select_option("a screen")
    await admin.get_by_role("button", name="Create token").click()
    address = await admin.get_by_label("Open this address on the screen").input_value()
    assert "/tv/kiosk#kk_" in address
    screen = await new_page(viewport={"width": 1920, "height": 1080})
    asked: list[str] = []
    screen.on("request", lambda request: asked.append(request.url))
    await screen.goto(address)
    await expect(screen.locator("[data-live]")).to_have_attribute("data-state", "on")
    await expect(screen.locator("#region-tv")).to_contain_text("Workers")
    assert screen.url == f"{stack.url}/tv"
    assert not [url for url in asked if "kk_" in url.partition("#")[0]]
    assert await screen.evaluate("document.documentElement.scrollHeight") <= 1080
    # The graph takes what the cards leave, and how many those are depends on what other tests made.
    top, bottom = await screen.evaluate(
        "(({top, bottom}) => [top, bottom])(document.querySelector('.graph-canvas').getBoundingClientRect())"
    )
    assert bottom - top > 160
    assert 1000 < bottom <= 1080
    if folder := os.environ.get("KENNEL_PICTURES"):
        await screen.screenshot(path=Path(folder) / "screen.png")
        await admin.screenshot(path=Path(folder) / "screen-token.png", full_page=True)
    row = admin.get_by_role("row").filter(has_text="the hall")
    await row.get_by_role("link", name="Revoke").click()
    await admin.get_by_label("to confirm").fill("the hall")
    await admin.get_by_role("button", name="Revoke").click()
    # The page is told that its socket is not welcome any more, and asks for itself again.
    await expect(screen.get_by_role("alert")).to_contain_text("has expired or was revoked", timeout=30_000)


async def test_an_administrator_gives_a_gate_to_a_team_and_takes_it_back(
    person: People, stack: LiveStack
) -> None:
    gate = f"pay-{uuid.uuid4().hex[:6]}"
    stack.sign_in("operator").post("/gates/", name=gate)
    operator = await person("operator", "/gates/")
    card = operator.locator(f"#gate-{gate}")
    await expect(card.get_by_role("button", name="Unleash").first).to_be_visible()
    admin = await person("admin", "/access/")
    rule = admin.locator("section").filter(has=admin.get_by_role("heading", name="New rule"))
    await rule.get_by_label("Name pattern").fill(f"{gate}*")
    await rule.get_by_label("Team").fill("payments")
    await rule.get_by_role("button", name="Create rule").click()
    await expect(admin.get_by_role("row").filter(has_text=gate)).to_contain_text("payments")
    # The open page learns of it by itself.
    await expect(card).to_contain_text("operators of the team payments")
    await expect(card.get_by_role("button", name="Unleash")).to_have_count(0)
    answer = stack.sign_in("operator").post(f"/gates/{gate}/unleash")
    assert answer.status_code == 403
    await admin.get_by_role("button", name=f"Remove {gate}").click()
    await expect(card.get_by_role("button", name="Unleash").first).to_be_visible()


async def test_the_page_is_whole_on_a_telephone_and_by_night(person: People, stack: LiveStack) -> None:
    for width, scheme in ((1440, "light"), (360, "dark")):
        page = await person(
            "admin", "/access/", viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
        if folder := os.environ.get("KENNEL_PICTURES"):
            await page.screenshot(path=Path(folder) / f"access-{width}-{scheme}.png", full_page=True)
