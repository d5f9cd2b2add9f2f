"""A gate before real processes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from coordinator import ListeningRelease, PollingRelease, Release, Storage
from coordinator.config import StorageConfig
from coordinator.errors import ConfigurationError, GateTimeout, KennelError
from coordinator.realtime.bus import Notification
from tests.support.fleet import Fleet, fleet
from tests.support.small_hub import SmallHub


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    async with Storage.from_connection_string(
        connection_string, config=StorageConfig(prefix=storage_prefix)
    ) as storage:
        yield storage


@pytest.fixture
async def hub() -> AsyncIterator[SmallHub]:
    async with SmallHub() as hub:
        yield hub


async def all_wait(nodes: Fleet, count: int) -> None:
    await nodes.until(lambda: len(nodes.events("waiting")) == count, f"{count} workers wait")


async def passed_by(nodes: Fleet, count: int, epoch: int, seconds: float = 6.0) -> None:
    await nodes.until(lambda: len(nodes.events("passed", epoch=epoch)) == count, "all have passed", seconds)


async def test_an_armed_gate_releases_50_processes_together_though_the_hub_dies_at_that_moment(
    connection_string: str, storage_prefix: str, storage: Storage, hub: SmallHub
) -> None:
    gate = storage.gate("start")
    async with fleet(connection_string, storage_prefix, "gate", count=50, hub=hub.url) as nodes:
        await all_wait(nodes, 50)
        await nodes.until(lambda: hub.connected == 50, "all are connected")
        ahead, epoch, moment = 6.0, 0, 0.0
        while (
            len(nodes.events("armed", epoch=epoch)) < 50
        ):  # a busy machine needs longer until all know the time
            if epoch:
                await gate.close(by="olga")
            moment = time.time() + ahead
            epoch = (await gate.open(by="olga", at=moment)).epoch
            hub.tell(Notification("gate:start"))
            await asyncio.sleep(moment - 0.25 - time.time())
            ahead *= 2
        await hub.cut()
        await passed_by(nodes, 50, epoch, 30.0)
        lines = nodes.events("passed", epoch=epoch)
        # By nobody's word but the clock's, and nobody before it. How close together is for the benchmark to say:
        # here other programs may hold any of fifty processes up.
        assert {line["source"] for line in lines} == {"clock"}
        assert min(line["passed"] for line in lines) >= moment
        assert len({line["pid"] for line in lines}) == 50


async def test_a_hub_that_lies_is_deaf_or_dies_opens_no_closed_gate_and_hides_no_open_one(
    connection_string: str, storage_prefix: str, storage: Storage, hub: SmallHub
) -> None:
    gate = storage.gate("start")
    async with fleet(connection_string, storage_prefix, "gate", count=8, hub=hub.url) as nodes:
        await all_wait(nodes, 8)
        await nodes.until(lambda: hub.connected == 8, "all are connected")
        for epoch in (1, 2, 99, 1, 7):  # openings that never were, in no order
            hub.tell(Notification("gate:start", epoch=epoch))
            await asyncio.sleep(0.1)
        assert not nodes.events("passed")

        hub.deaf = True
        opened = await gate.open(by="olga")
        assert not nodes.events("passed")
        await hub.cut()  # noticed at once, and everybody looks for himself
        await nodes.until(lambda: len(nodes.events("passed")) == 8, "all have passed", 3.0)
        assert {line["epoch"] for line in nodes.events("passed")} == {opened.epoch}

        await gate.close(by="olga")  # nobody is told
        await nodes.until(lambda: len(nodes.events("leashed")) == 8, "all are leashed", 3.0)
        await hub.start()
        await nodes.until(lambda: hub.connected == 8, "all are connected again", 15.0)
        hub.tell(Notification("gate:start", epoch=99))
        await asyncio.sleep(0.3)
        assert len(nodes.events("passed")) == 8

        hub.deaf = False
        again = await gate.open(by="olga")
        hub.tell(Notification("gate:start", epoch=again.epoch))
        await nodes.until(lambda: len(nodes.events("passed", epoch=again.epoch)) == 8, "all pass again", 2.0)
        assert {line["source"] for line in nodes.events("passed", epoch=again.epoch)} == {"push"}
        assert len(nodes.events("passed")) == 16


async def test_polling_alone_releases_processes_within_one_interval(
    connection_string: str, storage_prefix: str, storage: Storage
) -> None:
    async with fleet(connection_string, storage_prefix, "gate", count=8) as nodes:
        await all_wait(nodes, 8)
        await asyncio.sleep(0.5)
        opened = await storage.gate("start").open(by="olga")
        await nodes.until(lambda: len(nodes.events("passed")) == 8, "all have passed", 4.0)
        late = [line["passed"] - opened.changed_at for line in nodes.events("passed")]
        assert max(late) <= 3.0


async def test_threads_wait_over_one_loop(storage: Storage) -> None:
    gate = storage.gate("start")
    receipts: list[Release] = []
    gate.on_pass = receipts.append
    releases: list[Release] = []

    def wait() -> None:
        releases.append(gate.wait_blocking(timeout=20))

    threads = [threading.Thread(target=wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    await asyncio.sleep(0.3)
    assert not releases
    assert (gate.status().waiting, gate.status().state) == (True, "closed")
    await gate.open(by="olga")
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert {release.epoch for release in releases} == {1}
    assert len(releases) == 5
    assert [release.epoch for release in receipts] == [1]
    assert sum(thread.name == "kennel-portal" for thread in threading.enumerate()) == 1
    await asyncio.to_thread(storage.close)
    assert not any(thread.name == "kennel-portal" for thread in threading.enumerate())


async def test_a_blocking_wait_ends_at_its_timeout_and_is_refused_on_a_loop(storage: Storage) -> None:
    gate = storage.gate("start")
    with pytest.raises(GateTimeout):
        await asyncio.to_thread(gate.wait_blocking, 0.2)
    with pytest.raises(KennelError, match="would stop this event loop"):
        gate.wait_blocking(0.2)


async def test_a_program_without_an_event_loop_uses_gates_flags_and_releases(storage: Storage) -> None:
    def program() -> list[object]:
        gate, flag = storage.gate("start"), storage.flag("go-ahead", container="flags", blob="GoAhead")
        seen: list[object] = [gate.open_blocking(by="olga").epoch, gate.wait_blocking(5).epoch]
        seen += [gate.close_blocking(by="olga").epoch, gate.read_blocking().state, flag.get_flag_blocking()]
        flag.set_flag_blocking(True)
        PollingRelease(flag, portal=lambda: storage.portal).wait_blocking(5)
        listening = ListeningRelease(storage.bus, "sale", portal=lambda: storage.portal)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(listening.wait_blocking, 10)
            while not waiting.done():
                listening.release_blocking()
        seen.append(waiting.result())
        with pytest.raises(GateTimeout):
            listening.wait_blocking(0.1)
        flag.set_flag_blocking(False)
        with pytest.raises(ConfigurationError, match="needs an event loop in another thread"):
            PollingRelease(flag).wait_blocking(1)
        storage.close()
        return seen

    assert await asyncio.to_thread(program) == [1, 1, 2, "closed", False, None]


async def test_waiting_gates_of_one_process_share_their_requests(storage: Storage) -> None:
    await storage.gate("start").open(by="olga")
    before = storage.meter.total
    await asyncio.gather(*(storage.gate("start").wait() for _ in range(200)))
    assert storage.meter.total - before <= 2
