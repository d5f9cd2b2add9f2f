"""Kennel: `put N SECONDS [items a message]`, or `work`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from coordinator import QueueConfig, Storage


async def put(storage: Storage, first: int, count: int, seconds: float, batch: int) -> None:
    queue = storage.queue("bench-kennel", type=tuple[int, float], config=QueueConfig(items_per_message=batch))
    began = time.time()
    await queue.put((-1, 0.0))
    numbers = iter(range(first, first + count, batch))
    started = time.perf_counter()

    async def some() -> None:
        for number in numbers:
            await queue.put(*((n, seconds) for n in range(number, min(number + batch, first + count))))

    await asyncio.gather(*(some() for _ in range(8)))
    print(time.perf_counter() - started, began)


async def work(storage: Storage) -> None:
    log = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def handler(item: tuple[int, float]) -> None:
        number, seconds = item
        os.write(log, f"start {number} {time.time()}\n".encode())
        if seconds:
            await asyncio.sleep(seconds)
        os.write(log, f"end {number} {time.time()}\n".encode())

    queue = storage.queue("bench-kennel", type=tuple[int, float])
    visibility = float(os.environ.get("BENCH_VISIBILITY", "30"))
    listener = queue.listener(handler, tasks=range(51), visibility_seconds=visibility)
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, lambda: asyncio.ensure_future(listener.stop(5))
    )
    await listener.run()


async def main() -> None:
    async with Storage.from_connection_string(os.environ["BENCH_CONNECTION_STRING"]) as storage:
        if sys.argv[1] == "put":
            batch = int(sys.argv[5]) if len(sys.argv) > 5 else 1
            await put(storage, int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), batch)
        else:
            await work(storage)


if __name__ == "__main__":
    asyncio.run(main())
