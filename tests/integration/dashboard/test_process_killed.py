"""When dashboard processes die or restart in mid-release: real workers, real gates, one address before both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from coordinator import Worker
from coordinator.gates.state import Release
from tests.support.dashboard import TOKEN, Dashboard, Person, until
from tests.support.relay import relay

GATE = "start-order-processing"
COUNT = 8


@pytest.fixture
def pair(
    tmp_path: Path, connection_string: str, storage_prefix: str, redis_url: str
) -> Iterator[tuple[Dashboard, Dashboard]]:
    extra = {"REDIS_URL": redis_url, "KENNEL_PROCESSES": "2"}
    with Dashboard(tmp_path, connection_string, storage_prefix, extra) as one:
        other = one.sibling().start()
        try:
            yield one, other
        finally:
            other.stop()


@pytest.mark.timeout(300)
async def test_no_release_is_missed_and_every_receipt_is_had_when_one_process_is_killed_and_the_other_restarts(
    pair: tuple[Dashboard, Dashboard],
) -> None:
    one, other = pair
    async with relay(one.port) as address:
        ports = [address.port, other.port] * (COUNT // 2)
        workers = [_worker(one, f"worker-{n}", port) for n, port in enumerate(ports)]
        waits = [asyncio.create_task(worker.gate(GATE).wait()) for worker in workers]
        runs = [asyncio.create_task(worker.run()) for worker in workers]
        try:
            with Person(one, "olga") as olga, Person(other, "vera") as vera:
                await until(lambda: len(_gate(vera).get("waiting", ())) == COUNT, seconds=60)
                press = asyncio.create_task(asyncio.to_thread(_try_to_press, olga))
                await until(lambda: any(wait.done() for wait in waits), seconds=30)
                before = [_looks(worker) for worker in workers]
                one.stop(kill=True)
                address.target = other.port
                releases = await asyncio.wait_for(asyncio.gather(*waits), 60)
                # The gate is open in storage: the next look lets everybody through, and no pause between two looks is
                # longer than the poll interval once the push is away. One more may have been on its way.
                looks = [_looks(worker) - known for worker, known in zip(workers, before, strict=True)]
                assert (min(before) > 0, max(looks) <= 2) == (True, True), (before, looks)
                await press
                epochs = {release.epoch for release in releases}
                # The process that wrote it is dead: the other one reads it in storage itself.
                await until(lambda: {_gate(vera).get("epoch")} == epochs, seconds=30)
                assert {release.source for release in releases} <= {"push", "poll"}
                await until(lambda: _release(vera) == (COUNT, COUNT, []), seconds=60)
                await until(lambda: _presence(vera) == {"ok"}, seconds=60)
            one.start()
            with Person(one, "otto") as otto:
                await asyncio.to_thread(otto.post, f"/gates/{GATE}/leash", {"reason": "again"})
                waits = [asyncio.create_task(_again(worker)) for worker in workers]
                await until(lambda: len(_gate(otto).get("waiting", ())) == COUNT, seconds=60)
                address.target = one.port
                restart = asyncio.create_task(asyncio.to_thread(_restart, other))
                await asyncio.to_thread(otto.post, f"/gates/{GATE}/unleash", {})
                again = await asyncio.wait_for(asyncio.gather(*waits), 60)
                await restart
                assert {release.epoch for release in again} == {releases[0].epoch + 2}
                for process in (one, other):
                    with Person(process, "vera") as vera:
                        await until(lambda vera=vera: _release(vera) == (COUNT, COUNT, []), seconds=60)  # type: ignore[misc]
        finally:
            for worker in workers:
                worker.stop()
            await asyncio.gather(*runs)


def _worker(dashboard: Dashboard, name: str, port: int) -> Worker:
    environ = {
        "AZURE_STORAGE_CONNECTION_STRING": dashboard.connection_string,
        "KENNEL_PREFIX": dashboard.prefix,
        "KENNEL_HUB_URL": f"ws://127.0.0.1:{port}/ws/workers/",
        "KENNEL_WORKER_TOKEN": TOKEN,
    }
    return Worker("killed", environ=environ, identity=name)


async def _again(worker: Worker) -> Release:
    await worker.gate(GATE).wait_leashed()
    return await worker.gate(GATE).wait()


def _restart(dashboard: Dashboard) -> None:
    """As a rolling update does: it is asked to end, and starts anew at the same address."""
    dashboard.stop()
    dashboard.start()


def _looks(worker: Worker) -> int:
    requests = worker.storage.meter.by_operation()
    return sum(number for operation, number in requests.items() if operation.startswith("blob."))


def _try_to_press(person: Person) -> None:
    """The process may be gone before it answers."""
    with contextlib.suppress(requests.ConnectionError):
        person.post(f"/gates/{GATE}/unleash", page="/accounts/logout/")


def _gate(person: Person) -> dict[str, Any]:
    gates = person.get("/api/v1/fleet").json()["gates"]
    return next((gate for gate in gates if gate["name"] == GATE), {})


def _release(person: Person) -> tuple[int, int, list[str]] | None:
    release = _gate(person).get("release")
    return (release["expected"], release["passed"], release["stragglers"]) if release else None


def _presence(person: Person) -> set[str]:
    return {worker["presence"] for worker in person.get("/api/v1/fleet").json()["workers"]}
