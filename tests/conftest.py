"""Real parts for every test that asks for them. Each xdist worker has its own."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from coordinator.testing.azurite import Azurite
from tests.support import missing
from tests.support.azurite import started_azurite
from tests.support.browser import LAUNCH_ARGS, REMEDY, find_chromium
from tests.support.postgres import running_postgres
from tests.support.redis import running_redis

# No deadline: a busy machine is no failure.
hypothesis.settings.register_profile("kennel", deadline=None, print_blob=True)
hypothesis.settings.load_profile("kennel")

PageFactory = Callable[..., Awaitable[Page]]

# Files are shared out among processes in this order: what takes a minute must not be begun last.
LONGEST_FIRST = (
    "test_demo",
    "test_soak",
    "test_states",
    "test_demo_pool",
    "test_fail_over",
    "test_pages",
    "test_stale",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The browser lives for the session, so the tests that hold it share its event loop.
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")
def longest_first(items: list[pytest.Item]) -> None:
    rank = {stem: number for number, stem in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """Azurite in memory, shared: don't stop it, and use `storage_prefix` for names."""
    running = started_azurite()
    try:
        yield running
    finally:
        running.kill()


@pytest.fixture
def own_azurite() -> Iterator[Azurite]:
    """An Azurite for this test alone, to stop, start and fill as it likes."""
    running = started_azurite()
    try:
        yield running
    finally:
        running.kill()


@pytest.fixture
def connection_string(azurite: Azurite) -> str:
    return azurite.connection_string


@pytest.fixture
def storage_prefix() -> str:
    """Unlike any other test's: lower-case letters and digits, starts with a letter, ends with a hyphen."""
    return f"t{secrets.token_hex(5)}-"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture(scope="session")
def chromium() -> Path:
    found = find_chromium()
    if found is None:
        missing("Chromium", REMEDY)
    return found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: Path) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=chromium, args=LAUNCH_ARGS)
        yield running
        await running.close()


@pytest_asyncio.fixture(loop_scope="session")
async def new_page(browser: Browser) -> AsyncIterator[PageFactory]:
    """Opens a page in a context of its own, like another person at another machine; keywords go to the context.

    An error that a page's script throws fails the test.
    """
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    async def open_page(**options: Any) -> Page:
        context = await browser.new_context(**options)
        contexts.append(context)
        page = await context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        return page

    yield open_page
    for context in contexts:
        await context.close()
    assert not errors, f"scripts on the page failed: {errors}"


@pytest_asyncio.fixture(loop_scope="session")
async def page(new_page: PageFactory) -> Page:
    return await new_page()
