"""Kennel: `put DEED…`, or `work`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from deeds import act, note

from coordinator import QueueConfig, Storage
from coordinator.queues.settling import RetryPolicy


async def put(storage: Storage, deeds: list[str]) -> None:
    queue = storage.queue("bench-kennel", type=tuple[int, str], config=QueueConfig(items_per_message=1))
    await queue.put(*enumerate(deeds))


async def work(storage: Storage) -> None:
    async def handler(item: tuple[int, str]) -> None:
        number, deed = item
        if deed in ("die", "raise"):
            act(number, deed)
        note("start", number)
        await asyncio.sleep(3600 if deed == "hang" else float(deed))
        note("end", number)

    queue = storage.queue("bench-kennel", type=tuple[int, str])
    listener = queue.listener(
        handler,
        tasks=range(1, 5),
        visibility_seconds=float(os.environ["BENCH_VISIBILITY"]),
        timeout=float(os.environ["BENCH_LIMIT"]),
        retries=RetryPolicy(attempts=3, base_seconds=1, cap_seconds=2),
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(listener.stop(5)))
    await listener.run()


async def main() -> None:
    async with Storage.from_connection_string(os.environ["BENCH_CONNECTION_STRING"]) as storage:
        await (put(storage, sys.argv[2:]) if sys.argv[1] == "put" else work(storage))


if __name__ == "__main__":
    asyncio.run(main())
