"""A scale-in on real workers: the idle leave first, and no job that runs is cut within the bound."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator import LocalProcessDriver, Storage
from coordinator.config import StorageConfig
from coordinator.scaling.azure import PoolReports

ROOT = Path(__file__).parents[3]


async def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        await asyncio.sleep(0.1)


def pool_of(
    connection_string: str, prefix: str, folder: Path, seconds: float, **options: float
) -> LocalProcessDriver:
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("KENNEL_", "AZURE_"))
    }
    environ |= {
        "AZURE_STORAGE_CONNECTION_STRING": connection_string,
        "KENNEL_PREFIX": prefix,
        "PYTHONPATH": str(ROOT),
        "JOB_SECONDS": str(seconds),
        "JOB_FOLDER": str(folder),
        "JOB_QUEUE": f"{prefix}jobs",
    }
    command = [sys.executable, "-m", "coordinator", "run", "tests.support.slow_jobs:worker"]
    return LocalProcessDriver("pool", command, state=folder / "state", environ=environ, **options)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_jobs_of_45_seconds_end_before_their_process_does(
    connection_string: str, storage_prefix: str, tmp_path: Path
) -> None:
    """An `async` job was cancelled after 20 s, a `def` job killed after 30 s."""
    pool = pool_of(connection_string, storage_prefix, tmp_path, 45.0)
    config = StorageConfig(prefix=storage_prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        try:
            for kind in ("async", "def"):
                await storage.queue(f"{storage_prefix}jobs-{kind}", type=str).put(kind)
            await pool.scale(1)
            await until(lambda: len(list(tmp_path.glob("*.begun"))) == 2, "both jobs run")
            began = time.monotonic()
            await pool.scale(0)
            assert await pool.actual() == 0
            await until(lambda: not pool.pids(), "the process ended", 90)
            assert {path.name for path in tmp_path.glob("*.ended")} == {"async.ended", "def.ended"}
            assert time.monotonic() - began < 75, "it stayed though its jobs had ended"
            for kind in ("async", "def"):
                assert await storage.queue(f"{storage_prefix}jobs-{kind}", type=str).depth() == 0
        finally:
            pool._drain_seconds, pool._kill_seconds = 0.5, 0.0
            await pool.close()


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_workers_report_and_the_idle_one_leaves(
    connection_string: str, storage_prefix: str, tmp_path: Path
) -> None:
    config = StorageConfig(prefix=storage_prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        reports = PoolReports(storage, "pool")
        pool = pool_of(connection_string, storage_prefix, tmp_path, 600.0)
        pool._jobs = reports.jobs
        try:
            await pool.scale(2)
            deadline = time.monotonic() + 60
            while await reports.workers() < 2:
                assert time.monotonic() < deadline, "two workers report"
                await asyncio.sleep(0.5)
            await storage.queue(f"{storage_prefix}jobs-async", type=str).put("long")
            while not any((await reports.jobs()).values()):
                assert time.monotonic() < deadline, "one of them reports a job"
                await asyncio.sleep(0.5)
                await reports.read()
            [busy] = [name for name, count in (await reports.jobs()).items() if count]
            await pool.scale(1)
            assert pool.names() == [busy]
            await until(lambda: list(pool.pids()) == [busy], "the idle one has ended")
            assert not (tmp_path / "long.ended").exists()
        finally:
            pool._drain_seconds, pool._kill_seconds = 0.5, 0.0
            await pool.close()
