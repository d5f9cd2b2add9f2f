"""A scaling agent as a process: `python -m tests.support.scaling_agent CONNECTION PREFIX FOLDER NAME`."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from coordinator import LocalProcessDriver, ScalingPolicy, Storage
from coordinator.config import StorageConfig
from coordinator.leadership.term import LeaseConfig
from coordinator.scaling.azure import make_scaling_agent
from coordinator.scaling.observing import QueueObserver

POLICY = ScalingPolicy(
    maximum=6, target_seconds=10, boot_seconds=0, instance_per_second=1, step_seconds=5, cooldown_seconds=60
)


class SlowDriver(LocalProcessDriver):
    """Takes a second for each instance, so that it can be killed between two."""

    def _start(self, name: str) -> Any:
        instance = super()._start(name)
        time.sleep(1.0)
        return instance


async def main(connection_string: str, prefix: str, folder: Path, name: str) -> None:
    config = StorageConfig(prefix=prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        storage.identity = name
        driver = SlowDriver("pool", ["sleep", "120"], state=folder)
        observer = QueueObserver(storage.queue(f"{prefix}work", type=int))
        agent = make_scaling_agent(
            storage, "pool", driver, policy=POLICY, observe=observer, every_seconds=1.0
        )
        await storage.election("scale-pool", identity=name, config=LeaseConfig()).run(agent.lead)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
