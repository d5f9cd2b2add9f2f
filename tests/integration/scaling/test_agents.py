"""Two agents as processes, one election: the one that leads is killed in the middle of a change."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator import LocalProcessDriver, Storage
from coordinator.config import StorageConfig
from coordinator.scaling.azure import scaling_history

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_an_agent_killed_in_mid_scale_is_replaced_and_the_pool_does_not_flap(
    connection_string: str, storage_prefix: str, tmp_path: Path
) -> None:
    words = [
        sys.executable,
        "-m",
        "tests.support.scaling_agent",
        connection_string,
        storage_prefix,
        str(tmp_path),
    ]
    pool = LocalProcessDriver("pool", ["sleep", "120"], state=tmp_path, drain_seconds=2.0, kill_seconds=1.0)
    config = StorageConfig(prefix=storage_prefix)
    agents = []
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        queue = storage.queue(f"{storage_prefix}work", type=int)
        for number in range(35):
            await queue.put(number)
        history = scaling_history(storage, "pool")
        try:
            agents.append(subprocess.Popen([*words, "first"], cwd=ROOT))
            while await pool.actual() < 2:
                await asyncio.sleep(0.05)
            agents[0].kill()
            agents[0].wait()
            left = await pool.actual()
            assert left < 4, "it was not killed in the middle"
            record = await history.latest()
            assert record is not None
            wanted = record.wanted
            await queue.clear()  # there seems to be nothing to do for whoever comes next
            agents.append(subprocess.Popen([*words, "second"], cwd=ROOT))
            sizes = [left]
            while sizes[-1] < wanted:
                await asyncio.sleep(0.2)
                sizes.append(await pool.actual())
            await asyncio.sleep(5)
            sizes.append(await pool.actual())
            assert sizes == sorted(sizes), "the pool flapped"
            latest = await history.latest()
            assert latest is not None
            assert (latest.by, latest.wanted, latest.epoch) == ("second", wanted, record.epoch + 1)
            assert "there is nothing to do" in latest.reason
            assert [(each.by, each.wanted) for each in await history.changes()] == [("first", wanted)]
        finally:
            for agent in agents:
                agent.kill()
                agent.wait()
            await pool.close()
