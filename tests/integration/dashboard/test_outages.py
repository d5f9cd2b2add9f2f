"""Promises for when a part is away: the dashboard itself, or the storage account."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.clock import SystemClock
from coordinator.config import StorageConfig
from coordinator.queues.azure import BlobRules
from coordinator.queues.rules import TargetLatency
from coordinator.realtime.bus import RESYNC, Notification
from coordinator.realtime.hub_client import HubConnection
from coordinator.realtime.protocol import GateStatus, Receipt, WorkerState
from coordinator.storage import Storage
from coordinator.testing.azurite import Azurite
from tests.support.dashboard import TOKEN, BareWorker, Dashboard, Person, until

GATE = "start-order-processing"


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


async def test_a_page_answers_within_about_a_second_while_storage_is_away_from_what_was_read_last(
    with_own_azurite: Dashboard, own_azurite: Azurite
) -> None:
    dashboard = with_own_azurite
    storage = Storage.from_connection_string(
        own_azurite.connection_string, config=StorageConfig(prefix=dashboard.prefix)
    )
    async with storage:
        await storage.queue("orders-in", dict).put({"order": 1})
        election = storage.election("month-end", identity="node-7")
        await election.run(_nothing)
        await BlobRules(storage).write("orders-in", TargetLatency(7.0), by="olga")
    pages = (
        "/leaders/?election=month-end",
        "/queues/orders-in/",
        "/queues/orders-in/messages",
        "/scaling/?pool=x",
    )
    with Person(dashboard, "olga") as olga:
        await until(
            lambda: dashboard.ready()["storage"] and "orders-in" in olga.get("/queues/").text, seconds=60
        )
        await until(lambda: all("did not answer" not in olga.get(page).text for page in pages), seconds=60)
        assert "node-7" in olga.get(pages[0]).text
        own_azurite.kill()
        took: dict[str, float] = {}
        for known_away in (False, True):
            for page in pages:
                began = time.perf_counter()
                answer = await asyncio.to_thread(olga.get, page)
                took[f"{page} {known_away}"] = time.perf_counter() - began
                assert answer.status_code == 200
            await until(lambda: "unreachable since" in olga.get("/queues/").text, seconds=30)
        # What the network itself refuses is known at once; a busy machine may take its time to draw.
        assert max(took.values()) < 2.5, took
        leaders, queue = olga.get(pages[0]).text, olga.get(pages[1]).text
        assert "node-7" in leaders and "As read at" in leaders
        assert "<strong>target drain time</strong> of" in queue and "As read at" in queue
        assert olga.get("/tables/terms.csv?election=month-end").status_code == 503


async def _nothing(term: object) -> None: ...


class Pauses(SystemClock):
    """The system's clock; keeps how long it was asked to pause."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        await super().sleep(seconds)


class Follower:
    """A real worker's end of the socket, waiting at a gate that it passes at the first hint."""

    def __init__(self, dashboard: Dashboard, number: int) -> None:
        self.bare = BareWorker(dashboard, f"worker-{number:04}")
        self.bare.state = WorkerState(gates=(GateStatus(GATE, "closed", waiting=True),))
        self.clock = Pauses()
        self.resyncs = 0
        self.hub = HubConnection(
            dashboard.hub_url, TOKEN, hello=self.bare.hello, on_command=lambda _: None, clock=self.clock
        )
        self.hub.subscribe(f"gate:{GATE}", self._heard)

    def _heard(self, hint: Notification) -> None:
        if hint.topic == RESYNC:
            self.resyncs += 1
        else:
            self.bare.state = WorkerState(gates=(GateStatus(GATE, "open", hint.epoch),))
            self.hub.receipt(Receipt(GATE, hint.epoch, "push", 0.01, time.time()))


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
async def test_after_its_hub_was_killed_a_whole_fleet_comes_back_spread_out_and_misses_no_release(
    own_dashboard: Dashboard, count: int
) -> None:
    fleet = [Follower(own_dashboard, number) for number in range(count)]
    running = [asyncio.create_task(each.hub.run()) for each in fleet]

    def back() -> bool:
        return all(each.hub.is_connected for each in fleet)

    try:
        await until(back, seconds=120)
        own_dashboard.stop(kill=True)
        await until(lambda: not any(each.hub.is_connected for each in fleet))
        for each in fleet:
            each.resyncs = 0
        await asyncio.to_thread(own_dashboard.start)
        await until(back, seconds=120)
        # Whatever was opened while nobody could be told, everybody looks again; and not all in the same instant.
        assert all(each.resyncs for each in fleet)
        assert len({round(each.clock.asked[0], 3) for each in fleet}) > min(count, 200) / 3
        with Person(own_dashboard, "olga") as olga:

            def gates() -> str:
                return olga.get("/gates/").text

            await until(lambda: f'<strong class="big">{count}</strong>' in gates())
            await asyncio.to_thread(olga.post, f"/gates/{GATE}/unleash")
            await until(lambda: f"{count} of {count}</strong>" in gates())
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


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
