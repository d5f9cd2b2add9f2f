"""Single sign-on with a real OpenID Connect provider, and the second factor, at the browser."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from playwright.async_api import Page, expect

from coordinator.testing.azurite import Azurite
from tests.conftest import PageFactory
from tests.support.dashboard import PASSWORD, Dashboard, audit_of
from tests.support.ports import free_port, wait_until_listening
from tests.support.processes import start_server, stop_server

PEOPLE = (
    {"sub": "1001", "preferred_username": "olga"},
    {"sub": "1002", "preferred_username": "otto"},
    {"sub": "2002", "preferred_username": "otto"},
    {"sub": "3003", "preferred_username": "mallory"},
)


@pytest.fixture(scope="module")
def dashboard(azurite: Azurite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """A dashboard whose people may come through a provider that lets everybody be whom they say."""
    folder: Path = tmp_path_factory.mktemp("sign-in")
    port = free_port()
    command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port)]
    for person in PEOPLE:
        command += ["--user-claims", json.dumps(person)]
    provider = start_server(command, log=folder / "provider.log")
    try:
        assert wait_until_listening(port, timeout_seconds=40), (folder / "provider.log").read_text()
        extra = {
            "KENNEL_OIDC_URL": f"http://127.0.0.1:{port}",
            "KENNEL_OIDC_CLIENT_ID": "kennel",
            "KENNEL_OIDC_SECRET": "canary-secret-of-the-client",
            "KENNEL_OIDC_NAME": "Example Directory",
        }
        with Dashboard(folder, azurite.connection_string, "signin-", extra) as running:
            yield running
            assert "canary-secret" not in running.said()
    finally:
        stop_server(provider)


async def arrive(page: Page, dashboard: Dashboard, subject: str) -> None:
    """Through the provider, as somebody it knows."""
    await page.goto(f"{dashboard.url}/gates/")
    await page.get_by_role("button", name="Example Directory").click()
    await page.locator("input[name=sub]").fill(subject)
    await page.get_by_role("button", name="Authorize").click()


def outcomes(dashboard: Dashboard, name: str) -> list[str]:
    return [r["outcome"] for r in audit_of(dashboard) if r["action"] == "sign_in" and r["actor"] == name]


async def test_a_known_person_comes_in_through_the_provider_and_leaves(
    new_page: PageFactory, dashboard: Dashboard
) -> None:
    page = await new_page()
    refused: list[str] = []
    page.on("console", lambda line: refused.append(line.text) if "Content Security" in line.text else None)
    await arrive(page, dashboard, "1001")
    await expect(page.get_by_role("heading", name="Gates", level=1)).to_be_visible()
    await expect(page.locator(".who-name")).to_contain_text("olga")
    assert outcomes(dashboard, "olga") == ["intent", "done"]
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("button", name="Example Directory")).to_be_visible()
    await arrive(page, dashboard, "1001")
    await expect(page.locator(".who-name")).to_contain_text("olga")
    assert refused == []


async def test_who_has_no_user_gets_none(new_page: PageFactory, dashboard: Dashboard) -> None:
    page = await new_page()
    await arrive(page, dashboard, "3003")
    await expect(page.get_by_role("heading", name="Not signed in")).to_be_visible()
    await page.goto(f"{dashboard.url}/gates/")
    await expect(page.get_by_role("button", name="Example Directory")).to_be_visible()
    assert outcomes(dashboard, "mallory") == ["denied"]


async def test_a_name_given_to_somebody_else_later_opens_nothing(
    new_page: PageFactory, dashboard: Dashboard
) -> None:
    first, second = await new_page(), await new_page()
    await arrive(first, dashboard, "1002")
    await expect(first.locator(".who-name")).to_contain_text("otto")
    await arrive(second, dashboard, "2002")
    await expect(second.get_by_role("heading", name="Not signed in")).to_be_visible()
    assert outcomes(dashboard, "otto") == ["intent", "done", "denied"]


async def test_the_second_factor_is_set_up_without_breaking_the_policy(
    new_page: PageFactory, dashboard: Dashboard
) -> None:
    page = await new_page(viewport={"width": 360, "height": 800})
    refused: list[str] = []
    page.on("console", lambda line: refused.append(line.text) if "Content Security" in line.text else None)
    await page.goto(f"{dashboard.url}/accounts/login/?next=/access/")
    await page.get_by_label("Username").fill("adam")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("link", name="Two-factor authentication").click()
    await page.get_by_role("link", name="Activate").click()
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Confirm").click()
    picture = page.locator("img.qr")
    await expect(picture).to_be_visible()
    assert await picture.evaluate("image => image.naturalWidth") > 100, "it was drawn"
    await page.get_by_label("Authenticator code").fill("000000")
    await page.get_by_role("button", name="Activate").click()
    await expect(page.get_by_role("alert")).to_contain_text("Incorrect code")
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    assert refused == []


def test_an_answer_of_the_provider_that_nobody_asked_for_signs_nobody_in(dashboard: Dashboard) -> None:
    with requests.Session() as browser:
        login = browser.get(f"{dashboard.url}/accounts/login/").text
        action = re.search(r'action="(/accounts/[^"]*oidc[^"]*)"', login)
        assert action is not None
        token = browser.cookies["csrftoken"]
        to_provider = browser.post(
            dashboard.url + action[1],
            data={"csrfmiddlewaretoken": token},
            headers={"Referer": dashboard.url},
            allow_redirects=False,
        )
        asked = parse_qs(urlsplit(to_provider.headers["Location"]).query)
        # Each try has a state and a challenge of its own; the code alone is worth nothing.
        assert asked["code_challenge_method"] == ["S256"]
        assert len(asked["state"][0]) >= 16
        assert len(asked["code_challenge"][0]) >= 43
        forged = browser.get(asked["redirect_uri"][0], params={"code": "stolen", "state": "forged"})
        assert "sessionid" not in browser.cookies or "Sign in" in browser.get(f"{dashboard.url}/gates/").text
        assert forged.status_code < 500
        assert "1001" not in forged.text
