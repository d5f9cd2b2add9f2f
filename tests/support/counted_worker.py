"""A worker process whose handler notes each time that it ends, as a line in a file: word, item, process id and time.

    python -m tests.support.counted_worker QUEUE FILE    (AZURE_STORAGE_CONNECTION_STRING, KENNEL_PREFIX, KENNEL_HUB_URL, …)

Of ten items one fails at its first attempt, and one asks to be retried.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from coordinator import Retry, RetryPolicy, Worker, current_message

worker = Worker("counted", identity=f"counted-{os.getpid()}")
log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(word: str, item: int) -> None:
    os.write(log, f"{word} {item} {os.getpid()} {time.time():.3f}\n".encode())


@worker.listen(
    sys.argv[1], tasks=range(1, 9), visibility_seconds=5, retries=RetryPolicy(attempts=20, base_seconds=0.1)
)
async def count(item: int) -> None:
    await asyncio.sleep(0.002)
    if current_message().attempt == 1 and item % 10 == 0:
        note("failed", item)
        raise ValueError(item)
    if current_message().attempt == 1 and item % 10 == 1:
        note("retried", item)
        raise Retry(after=0.1)
    note("done", item)


if __name__ == "__main__":
    asyncio.run(worker.run())
