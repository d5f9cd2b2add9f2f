"""Nothing is lost and nothing runs twice without need, whoever is killed and whatever the network does."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coordinator import Storage
from coordinator.testing.azurite import Azurite
from coordinator.testing.faults import BUSY, DROP_ANSWER, RESET_BEFORE, SLOW, TRUNCATED, FaultProxy
from tests.support.processes import start_server

BUFFER = 32


class Fleet:
    """Worker processes on one queue, some of them killed."""

    def __init__(
        self,
        connection_string: str,
        queue: str,
        file: Path,
        *options: str,
        tasks: int = 8,
        visibility: float = 5,
    ) -> None:
        self.environment = {**os.environ, "NODE_CONNECTION_STRING": connection_string}
        self.command = [
            sys.executable, "-m", "tests.support.queue_node", queue, str(file),
            "--tasks", str(tasks), "--visibility", str(visibility), *options,
        ]  # fmt: skip
        self.file = file
        self.running: list[subprocess.Popen[bytes]] = []
        self.killed: set[int] = set()

    def start(self) -> None:
        log = self.file.with_suffix(".words")
        self.running.append(start_server(self.command, log=log, env=self.environment))

    def kill_one(self, rng: random.Random) -> None:
        victim = self.running.pop(rng.randrange(len(self.running)))
        victim.kill()
        victim.wait()
        self.killed.add(victim.pid)

    def stop(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def lines(self, word: str) -> dict[int, list[int]]:
        """Process ids by item, in order, of the lines with that word."""
        found: dict[int, list[int]] = defaultdict(list)
        if self.file.exists():
            for line in self.file.read_text().splitlines():
                said, item, pid = line.split()
                if said == word:
                    found[int(item)].append(int(pid))
        return found


def assert_only_the_killed_repeat(fleet: Fleet, count: int) -> None:
    starts, ends = fleet.lines("start"), fleet.lines("end")
    assert set(ends) == set(range(count)), f"lost: {sorted(set(range(count)) - set(ends))[:20]}"
    for item, pids in starts.items():
        unexplained = [pid for pid in pids[:-1] if pid not in fleet.killed]
        assert not unexplained, f"item {item} ran again although {unexplained} was not killed"
    repeats = sum(len(pids) - 1 for pids in starts.values())
    assert repeats <= len(fleet.killed) * (BUFFER + 2 * 8)


async def fill(connection_string: str, queue: str, count: int) -> None:
    async with Storage.from_connection_string(connection_string) as storage:
        target = storage.queue(queue, type=tuple[int, float])
        gate = asyncio.Semaphore(16)

        async def put(number: int) -> None:
            async with gate:
                await target.put((number, 0.0))

        await target.create()
        await asyncio.gather(*(put(number) for number in range(count)))


def run_with_kills(fleet: Fleet, count: int, *, kills: int, rng: random.Random, seconds: float) -> None:
    """Let four workers do it; one after the other is killed, each when another equal part of the work is done."""
    deadline, left = time.monotonic() + seconds, kills
    for _ in range(4):
        fleet.start()
    try:
        while (done := len(fleet.lines("end"))) < count:
            assert time.monotonic() < deadline, f"only {done} of {count} were done in time"
            if left and done >= count * (kills - left + 1) / (kills + 2):
                fleet.kill_one(rng)
                fleet.start()
                left -= 1
            time.sleep(0.05)
        assert not left, f"the work was over before the last {left} kills: nothing was tested"
    finally:
        fleet.stop()


@pytest.fixture
def proxy(own_azurite: Azurite) -> Iterator[FaultProxy]:
    with FaultProxy(own_azurite.connection_string) as running:
        yield running


def test_killed_workers_and_a_bad_network_lose_nothing_and_repeat_only_what_the_killed_had(
    own_azurite: Azurite, proxy: FaultProxy, tmp_path: Path
) -> None:
    count, rng = 500, random.Random(20)
    asyncio.run(fill(own_azurite.connection_string, "orders-in", count))
    proxy.at_random(0.03, seed=20, faults=(BUSY, DROP_ANSWER, RESET_BEFORE, SLOW, TRUNCATED))
    fleet = Fleet(proxy.connection_string, "orders-in", tmp_path / "log")
    run_with_kills(fleet, count, kills=3, rng=rng, seconds=90)
    assert len(proxy.applied) > 10
    assert_only_the_killed_repeat(fleet, count)


@contextmanager
def fast_service() -> Iterator[str]:
    """The O(1) queue service in a process of its own: Azurite would be measured, not us, at this depth."""
    process = subprocess.Popen(
        [sys.executable, "-m", "coordinator.testing.queue_service"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_20_000_messages_survive_random_kills_and_faults(tmp_path: Path) -> None:
    count, rng = 20_000, random.Random(21)
    with fast_service() as service, FaultProxy(service) as proxy:
        asyncio.run(fill(service, "orders-in", count))
        proxy.at_random(0.01, seed=21, faults=(BUSY, DROP_ANSWER, RESET_BEFORE, SLOW, TRUNCATED))
        fleet = Fleet(proxy.connection_string, "orders-in", tmp_path / "log")
        run_with_kills(fleet, count, kills=12, rng=rng, seconds=800)
    assert_only_the_killed_repeat(fleet, count)


def test_a_job_of_six_times_the_visibility_runs_once_while_others_look_for_work(
    connection_string: str, storage_prefix: str, tmp_path: Path
) -> None:
    queue = f"{storage_prefix}jobs"

    async def put() -> None:
        async with Storage.from_connection_string(connection_string) as storage:
            await storage.queue(queue).put((0, 6.0))

    asyncio.run(put())
    fleet = Fleet(connection_string, queue, tmp_path / "log", visibility=1)
    run_with_kills(fleet, 1, kills=0, rng=random.Random(1), seconds=60)
    assert len(fleet.lines("start")[0]) == 1


@pytest.mark.parametrize("options", [(), ("--plain",)], ids=["async def", "def"])
def test_an_item_that_ends_its_process_is_in_poison_and_its_neighbours_run_twice_at_the_most(
    connection_string: str, storage_prefix: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    queue, killer = f"{storage_prefix}killers", 11

    async def put() -> None:
        async with Storage.from_connection_string(connection_string) as storage:
            await storage.queue(queue).put(
                *((number, -1.0 if number == killer else 0.0) for number in range(20))
            )

    async def look() -> tuple[int, list[str]]:
        async with Storage.from_connection_string(connection_string) as storage:
            source = storage.queue(queue)
            records = [message.items[0] for message in await source.poison.peek()]
            return await source.depth(), [record.reason for record in records]

    asyncio.run(put())
    fleet = Fleet(
        connection_string, queue, tmp_path / "log", "--attempts", "3", *options, tasks=4, visibility=1
    )
    deaths, deadline = 0, time.monotonic() + 90
    fleet.start()
    try:
        while (found := asyncio.run(look())) != (0, ["killed 3 processes"]):
            assert time.monotonic() < deadline, f"{found} after {deaths} deaths"
            if fleet.running[-1].poll() is not None:
                assert fleet.running.pop().returncode == 9
                deaths += 1
                fleet.start()
            time.sleep(0.1)
    finally:
        fleet.stop()
    starts, ends = fleet.lines("start"), fleet.lines("end")
    assert (deaths, len(starts[killer])) == (3, 3)
    assert set(ends) == set(range(20)) - {killer}
    assert max(len(pids) for item, pids in starts.items() if item != killer) <= 2


def test_a_def_handler_is_not_started_beside_the_one_that_sigterm_found_running(
    connection_string: str, storage_prefix: str, tmp_path: Path
) -> None:
    queue = f"{storage_prefix}terms"

    async def put() -> None:
        async with Storage.from_connection_string(connection_string) as storage:
            await storage.queue(queue).put((0, 6.0))

    asyncio.run(put())
    options = ("--plain", "--stop", "1")
    fleet = Fleet(connection_string, queue, tmp_path / "log", *options, visibility=1)
    deadline = time.monotonic() + 60
    fleet.start()
    try:
        while not fleet.lines("start"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        fleet.running[0].terminate()
        fleet.start()
        fleet.running[0].wait(60)
        assert fleet.lines("end").keys() == {0}, "the process ended before its handler had"
    finally:
        fleet.stop()
    assert len(fleet.lines("start")[0]) == 1


def test_azurite_away_for_a_while_stops_nobody(own_azurite: Azurite, tmp_path: Path) -> None:
    asyncio.run(_outage(own_azurite))


async def _outage(azurite: Azurite) -> None:
    got: list[int] = []

    async def handler(item: int) -> None:
        got.append(item)

    async with Storage.from_connection_string(azurite.connection_string) as storage:
        queue = storage.queue("orders-in", type=int)
        await queue.put(1)
        listener = queue.listener(handler, tasks=range(1, 5))
        running = asyncio.create_task(listener.run())
        await until(lambda: got == [1])
        await asyncio.to_thread(azurite.kill)
        await until(lambda: listener.status().state == "unreachable")
        await asyncio.to_thread(azurite.start)
        await queue.put(2)
        await until(lambda: 2 in got)
        await listener.stop(5)
        await running


async def until(condition: object, seconds: float = 30) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)
