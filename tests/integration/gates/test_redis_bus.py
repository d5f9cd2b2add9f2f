"""The bus over Redis: hints between processes, a cut told, a stranger's message ignored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from redis.asyncio import Redis

from coordinator import ListeningRelease, Storage
from coordinator.config import StorageConfig
from coordinator.realtime.bus import RESYNC, Notification
from coordinator.realtime.redis_bus import RedisBus


@contextlib.asynccontextmanager
async def running(url: str, channel: str) -> AsyncIterator[RedisBus]:
    bus = RedisBus(url, channel=channel)
    task = asyncio.create_task(bus.run())
    try:
        await until(lambda: bus.is_connected)
        yield bus
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_release_by_one_process_frees_those_who_listen_in_another(
    redis_url: str, storage_prefix: str
) -> None:
    async with running(redis_url, storage_prefix) as here, running(redis_url, storage_prefix) as there:
        waiting = [
            asyncio.create_task(ListeningRelease(bus, "sale").wait(30)) for bus in (here, there, there)
        ]
        await asyncio.sleep(0)  # each has subscribed
        await ListeningRelease(here, "sale").release()
        await asyncio.gather(*waiting)


async def test_each_process_hears_a_hint_once_and_a_stranger_s_message_is_ignored(
    redis_url: str, storage_prefix: str
) -> None:
    heard: dict[str, list[Notification]] = {"here": [], "there": []}
    async with running(redis_url, storage_prefix) as here, running(redis_url, storage_prefix) as there:
        here.subscribe("gate:a", heard["here"].append)
        there.subscribe("gate:a", heard["there"].append)
        async with Redis.from_url(redis_url) as stranger:
            await stranger.publish(storage_prefix, b"\xff{")
        await here.publish(Notification("gate:a", epoch=1))
        await there.publish(Notification("gate:a", epoch=2))
        await until(lambda: len(heard["here"]) >= 2 and len(heard["there"]) >= 2)
    for hints in heard.values():
        assert sorted(hint.epoch for hint in hints if hint.topic != RESYNC) == [1, 2]


async def test_a_cut_is_told_and_mended(redis_url: str, storage_prefix: str) -> None:
    heard: list[str] = []
    async with running(redis_url, storage_prefix) as bus:
        bus.subscribe("gate:a", lambda hint: heard.append(hint.topic))
        async with Redis.from_url(redis_url) as admin:
            await admin.client_kill_filter(_type="pubsub")
        await until(lambda: heard.count(RESYNC) >= 2 and bus.is_connected)


async def test_without_redis_hints_stay_in_the_process_and_nothing_is_raised() -> None:
    bus, heard = RedisBus("redis://127.0.0.1:1"), []
    bus.subscribe("gate:a", heard.append)
    await bus.publish(Notification("gate:a"))
    assert [hint.topic for hint in heard] == ["gate:a"]
    assert not bus.is_connected


async def test_a_gate_is_released_by_push_over_redis(
    redis_url: str, connection_string: str, storage_prefix: str
) -> None:
    config = StorageConfig(prefix=storage_prefix)
    async with (
        running(redis_url, storage_prefix) as waits,
        running(redis_url, storage_prefix) as opens,
        Storage.from_connection_string(connection_string, config=config, bus=waits) as worker,
        Storage.from_connection_string(connection_string, config=config, bus=opens) as operator,
    ):
        gate = worker.gate("sale")
        waiting = asyncio.create_task(gate.wait(60))
        await until(lambda: gate.state is not None)  # it has looked, found it closed, and listens
        await operator.gate("sale").open(by="olga", reason="")
        assert (await waiting).source == "push"
