"""A worker process for tests of queues: notes each start and end of a handler as a line in a file.

    python -m tests.support.queue_node QUEUE FILE --tasks 8 --seconds 0.02 --visibility 5    (NODE_CONNECTION_STRING)

Items are `[id, seconds]`; a handler takes that long, or `--seconds` if it is 0, or ends the process at once if it is
negative. `--plain` makes it a `def` handler. SIGTERM stops it, within `--stop` seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from typing import Any

from coordinator import RetryPolicy, Storage
from coordinator.queues.rules import Steps


async def work(options: argparse.Namespace) -> None:
    log = os.open(options.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(word: str, item: Any) -> None:
        os.write(
            log, f"{word} {item} {os.getpid()}\n".encode()
        )  # one short write: lines of many processes never mix

    async def handler(item: tuple[int, float]) -> None:
        note("start", item[0])
        if item[1] < 0:
            os._exit(9)
        await asyncio.sleep(item[1] or options.seconds)
        note("end", item[0])

    def plain(item: tuple[int, float]) -> None:
        note("start", item[0])
        if item[1] < 0:
            os._exit(9)
        time.sleep(item[1] or options.seconds)
        note("end", item[0])

    async with Storage.from_connection_string(os.environ["NODE_CONNECTION_STRING"]) as storage:
        queue = storage.queue(options.queue, type=tuple[int, float])
        listener = queue.listener(
            plain if options.plain else handler,
            retries=RetryPolicy(attempts=options.attempts),
            tasks=range(1, options.tasks + 1),
            rule=Steps(steps=(), beyond=options.tasks),
            visibility_seconds=options.visibility,
        )
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, lambda: asyncio.ensure_future(listener.stop(options.stop))
        )
        note("ready", 0)
        await listener.run()
    os.close(log)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("queue")
    parser.add_argument("file")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.02)
    parser.add_argument("--visibility", type=float, default=5)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--stop", type=float, default=5)
    parser.add_argument("--attempts", type=int, default=5)
    asyncio.run(work(parser.parse_args()))
