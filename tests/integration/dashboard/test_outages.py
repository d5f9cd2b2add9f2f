"""Promises for when a part is away: the dashboard itself, or the storage account."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.storage import Storage
from coordinator.testing.azurite import Azurite
from tests.support.dashboard import BareWorker, Dashboard, Person, until


@pytest.fixture
def with_own_azurite(tmp_path: Path, own_azurite: Azurite) -> Iterator[Dashboard]:
    """A dashboard on an Azurite that the test may stop."""
    with Dashboard(tmp_path, own_azurite.connection_string, f"t{secrets.token_hex(5)}-") as running:
        yield running


async def test_while_storage_is_away_figures_stay_old_and_say_so_and_recover_by_themselves(
    with_own_azurite: Dashboard, own_azurite: Azurite
) -> None:
    dashboard = with_own_azurite
    storage = Storage.from_connection_string(own_azurite.connection_string)
    async with storage:
        await storage.queue("orders-in", dict).put(*({"order": number} for number in range(7)))
    with Person(dashboard, "vera") as vera:

        def page() -> str:
            return vera.get("/queues/").text

        await until(lambda: "orders-in" in page() and dashboard.ready()["storage"], seconds=60)
        before = _depths(vera)
        assert before["orders-in"] > 0
        async with vera.socket("queues") as socket:
            await socket.recv()
            own_azurite.kill()
            async with asyncio.timeout(15):
                while "unreachable since" not in str(await socket.recv()):
                    pass
        assert "unreachable since" in page()
        assert _depths(vera) == before
        told = dashboard.ready()
        assert (told["ok"], told["storage"]) == (True, False)
        await asyncio.to_thread(own_azurite.start)
        await until(lambda: dashboard.ready()["storage"], seconds=60)
        assert "unreachable since" not in page()


async def test_a_killed_dashboard_knows_its_workers_again_after_a_restart(own_dashboard: Dashboard) -> None:
    async with BareWorker(own_dashboard, "before") as worker:
        await until(lambda: worker.heard)
        own_dashboard.stop(kill=True)
        await until(lambda: worker.closed)
    own_dashboard.start()
    with Person(own_dashboard, "vera") as vera:
        assert "before" not in vera.get("/workers/").text
        async with BareWorker(own_dashboard, "after") as worker:
            await until(lambda: worker.heard)
            await until(lambda: "after" in vera.get("/workers/").text)


async def test_a_stopping_dashboard_tells_its_sockets_and_leaves_nothing_open(
    own_dashboard: Dashboard,
) -> None:
    async with BareWorker(own_dashboard, "w") as worker:
        await until(lambda: worker.heard)
        await asyncio.to_thread(own_dashboard.stop)
        await until(lambda: worker.closed)
        assert worker.closed is not None
        assert worker.closed[0] in (1001, 1012)
    said = own_dashboard.said()
    assert "Unclosed" not in said
    assert "Traceback" not in said
    assert "was never" not in said
    assert "Warning" not in said


def _depths(person: Person) -> dict[str, int]:
    return {queue["name"]: queue["depth"] for queue in person.get("/api/v1/fleet").json()["queues"]}
