"""Real parts for every test that asks for them. Each xdist worker has its own."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import pytest_asyncio
from _pytest.pathlib import import_path
from playwright.async_api import Browser, BrowserContext, Page, async_playwright
from xdist.scheduler import LoadScopeScheduling

from coordinator.testing.azurite import Azurite
from tests.support.azurite import started_azurite
from tests.support.browser import LAUNCH_ARGS, REMEDY, find_chromium
from tests.support.parts import missing
from tests.support.postgres import running_postgres
from tests.support.redis import running_redis

# No deadline: a busy machine is no failure.
hypothesis.settings.register_profile("kennel", deadline=None, print_blob=True)
hypothesis.settings.load_profile("kennel")

TESTS = Path(__file__).resolve().parent
PageFactory = Callable[..., Awaitable[Page]]

# A file runs whole in one process, so that what its tests share is started once. Those of the browser run in one process together,
# which starts the product once. Processes take groups in this order: what takes a minute must not be begun last.
BROWSER = "browser"
LONGEST_FIRST = (
    BROWSER,
    "integration/test_demo",
    "integration/dashboard/test_sockets",
    "integration/scaling/test_demo_pool",
    "integration/dashboard/test_soak",
    "integration/queues/test_crashes",
    "integration/dashboard/test_restore_drill",
    "hostile/test_sequences",
    "bench/test_sequences_under_fire",
    "integration/test_project",
    "hostile/test_gates",
    "integration/dashboard/test_guessing",
    "integration/gates/test_fleet",
    "integration/dashboard/test_api_schema",
    "contract/test_sequences",
    "integration/test_newcomer",
    "integration/dashboard/test_two_processes",
    "faults/test_payloads",
    "integration/dashboard/test_outages",
    "hostile/test_dashboard",
    "integration/dashboard/test_journal",
    "unit/dashboard/test_signing_in",
    "integration/tables/test_blog",
    "integration/queues/test_wire_format",
    "integration/leadership/test_fail_over",
    "integration/dashboard/test_databases",
    "integration/test_story",
    "integration/dashboard/test_alerts",
    "hostile/test_leases",
    "faults/test_requests",
    "integration/test_wheel",
    "integration/test_worker",
    "integration/dashboard/test_locked_database",
    "integration/dashboard/test_requests",
    "integration/test_docs",
    "integration/dashboard/test_throughput",
    "unit/sequences/test_generator",
)


# What waits nearly all the time, for leases, time-outs and polls of the product: one process begins with these, beside others that
# are busy, so that fewer calculate at once. Tests of response times are not among them, and all together take no longer than what the others do.
WAITING = {
    "integration/scaling/test_demo_pool",
    "integration/dashboard/test_journal",
    "integration/dashboard/test_restore_drill",
    "integration/dashboard/test_alerts",
    "integration/dashboard/test_soak",
    "integration/queues/test_crashes",
    "integration/queues/test_wire_format",
    "integration/leadership/test_fail_over",
    "integration/scaling/test_agents",
    "integration/scaling/test_running_jobs",
    "hostile/test_gates",
    "hostile/test_leases",
    "faults/test_payloads",
    "faults/test_requests",
}
MIXED_PROCESSES = 4
"""With so many processes, or more, the last one begins with what waits."""


def group_of(path: Path) -> str:
    """What runs in one process."""
    group = str((path.parent / path.stem).relative_to(TESTS))
    return BROWSER if group.startswith(f"{BROWSER}/") else group


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a process one group after another. xdist's own groups have no effect with this release of pytest."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(TESTS.parent / nodeid.partition("::")[0])

    def _waits(self, node: Any) -> bool:
        """Whether that process begins with what waits, and the others with everything else."""
        return (
            self.numnodes >= MIXED_PROCESSES and int(node.gateway.id.removeprefix("gw")) == self.numnodes - 1
        )

    def _assign_work_unit(self, node: Any) -> None:
        waits = self._waits(node)
        fits = (
            scope
            for scope in self.workqueue
            if self.numnodes < MIXED_PROCESSES or (scope in WAITING) == waits
        )
        if (scope := next(fits, None)) is not None:  # else the next of the other kind
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """In a new clone no test is compiled yet. So that not each process compiles each, each begins with another part of them."""
    number, of = (
        int(os.environ.get(f"PYTEST_XDIST_WORKER{end}", "0").removeprefix("gw")) for end in ("", "_COUNT")
    )
    if of and session.config.args in ([], ["tests"]):
        files = sorted(TESTS.rglob("test_*.py"))
        for file in files[len(files) * number // of : len(files) * (number + 1) // of]:
            with contextlib.suppress(Exception, pytest.skip.Exception):  # told when the module is collected
                import_path(
                    file, mode="importlib", root=session.config.rootpath, consider_namespace_packages=False
                )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    # The browser lives for the session, so the tests that hold it share its event loop.
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
    yield
    # After pytest-randomly, and after pytest-django, which puts what needs the database first.
    items.sort(key=lambda item: rank(group_of(item.path)))


def rank(group: str) -> int:
    """The group's turn among those that take long; behind them for all others."""
    return LONGEST_FIRST.index(group) if group in LONGEST_FIRST else len(LONGEST_FIRST)


def pytest_collection_finish() -> None:
    # Thousands of tests and all modules stay to the end: the garbage collector need not search them again each time.
    gc.freeze()


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
