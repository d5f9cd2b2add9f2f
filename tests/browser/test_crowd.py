"""Promises of the big button before a large fleet: 200 workers in each run, 1,000 with ``-m slow``."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from coordinator.testing.azurite import Azurite
from tests.conftest import PageFactory
from tests.support.crowd import crowd, quantile_ms
from tests.support.dashboard import Dashboard, Person
from tests.support.unleash import GATE, all_wait, unleash, visit

MOST_NODES = 3000
MOST_BYTES_A_FRAME = 100_000
MOST_FRAMES_A_SECOND = 12


@pytest.fixture
def crowded(tmp_path: Path, azurite: Azurite, storage_prefix: str) -> Dashboard:
    return Dashboard(tmp_path, azurite.connection_string, storage_prefix)


async def test_a_release_of_200_workers_is_shown_to_the_last_and_does_not_flood_the_page(
    new_page: PageFactory, crowded: Dashboard
) -> None:
    frames: list[int] = []
    with crowded, Person(crowded, "olga") as olga:
        async with crowd([crowded], 200) as workers:
            page = await new_page()
            page.on(
                "websocket", lambda socket: socket.on("framereceived", lambda said: frames.append(len(said)))
            )
            await visit(page, olga)
            await all_wait(page, 200)
            frames.clear()
            began = time.monotonic()
            await unleash(page, 200)
            seconds = time.monotonic() - began
            assert all(worker.arrived_at for worker in workers)
            gate = page.locator(f"#gate-{GATE}")
            assert await gate.locator(".stragglers").count() == 0
            assert await gate.locator("progress").get_attribute("value") == "200"
            assert await page.evaluate("document.querySelectorAll('*').length") < MOST_NODES
            # A frame for each of 200 receipts would be the flood.
            assert 0 < len(frames) < 10 + MOST_FRAMES_A_SECOND * seconds, (len(frames), seconds)
            assert max(frames) < MOST_BYTES_A_FRAME


@pytest.mark.slow
@pytest.mark.timeout(600)  # most of it until a thousand sockets are open
async def test_a_thousand_pass_within_a_quarter_of_a_second_and_the_page_stays_responsive(
    new_page: PageFactory, crowded: Dashboard
) -> None:
    with crowded, Person(crowded, "olga") as olga:
        async with crowd([crowded], 1000) as workers:
            page = await visit(await new_page(), olga)
            await all_wait(page, 1000)
            seen = await unleash(page, 1000)
            passed = [worker.arrived_at - seen.pressed_at for worker in workers]
            assert quantile_ms(passed, 0.99) < 250
            assert seen.longest_task_ms < 200
