"""How fast a billing batch is, beside the same job in Celery and beside bare requests; and what its initiator needs.

    python benchmarks/billing.py [--quick] [--json] [--no-celery]

Each run has a fresh Azurite. Time is from the order of the batch to its report (Kennel) or to the last sum (Celery), with
one worker process of eight tasks each; Kennel's initiator and controller are in that process, too. Celery does one task
a transaction, as one would write it, and as chunks of 500, as one may. The control puts, gets and deletes messages as
large as Kennel's by bare calls, and does nothing with them. Memory is the peak of a process that only splits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from benchmarks.peers.queue_product import peers_python  # noqa: E402
from coordinator import Storage  # noqa: E402
from coordinator.pipelines.ledger import BatchLedger  # noqa: E402
from coordinator.pipelines.messages import ItemChunk  # noqa: E402
from coordinator.pipelines.sending import Sender  # noqa: E402
from coordinator.queues.envelope import encode_item  # noqa: E402
from coordinator.tables.table import Table  # noqa: E402
from coordinator.testing.azurite import Azurite  # noqa: E402
from coordinator.testing.tables import MemoryTableStore  # noqa: E402
from examples.billing import BATCH, Source, pipeline, transaction  # noqa: E402

HERE = Path(__file__).resolve().parent / "billing_products"
SEED = 1


async def kennel(transactions: int) -> float:
    """Transactions a second."""
    with Azurite() as azurite:
        async with Storage.from_connection_string(azurite.connection_string) as storage:
            billing = pipeline(storage)
            listeners: list[Any] = [
                billing.initiators(),
                billing.processors(tasks=range(8, 9)),
                billing.controllers(),
            ]
            running = [asyncio.create_task(listener.run()) for listener in listeners]
            started = time.perf_counter()
            await billing.start(BATCH, Source(transactions, SEED))
            status = await billing.wait(BATCH, poll_seconds=0.1)
            seconds = time.perf_counter() - started
            assert (status.state, status.items_counted) == ("complete", transactions)
            await asyncio.gather(*(listener.stop(5.0) for listener in listeners))
            await asyncio.gather(*running)
    return transactions / seconds


def celery(transactions: int, chunk: int) -> float:
    """Transactions a second, the time of the worker's start left out."""
    with Azurite() as azurite, tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "sums.sqlite3"
        connection = sqlite3.connect(database)
        connection.executescript(
            "PRAGMA journal_mode=WAL; CREATE TABLE done (number INTEGER PRIMARY KEY);"
            "CREATE TABLE sums (customer INTEGER PRIMARY KEY, cents INTEGER, count INTEGER);"
        )
        environment = {
            **os.environ,
            "BENCH_CONNECTION_STRING": azurite.connection_string,
            "BENCH_DATABASE": str(database),
        }
        command = [str(peers_python()), str(HERE / "celery_billing.py")]
        worker = subprocess.Popen(
            [*command, "work"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            time.sleep(5.0)
            started = time.perf_counter()
            putting = subprocess.Popen(
                [*command, "put", str(transactions), str(chunk), str(SEED)],
                env=environment,
                stderr=subprocess.DEVNULL,
            )
            counted = 0
            while counted < transactions:
                if time.perf_counter() - started > 300:
                    raise RuntimeError(f"Celery counted {counted} of {transactions} in 300 s")
                time.sleep(0.05)
                counted = connection.execute("SELECT coalesce(sum(count), 0) FROM sums").fetchone()[0]
            seconds = time.perf_counter() - started
            putting.wait()
        finally:
            worker.kill()
            worker.wait()
            connection.close()
    return transactions / seconds


async def bare(transactions: int, chunk: int = 500) -> float:
    """Transactions a second that pass through a queue and back by bare calls, eight at a time."""
    items = [encode_item(transaction(SEED, id)) for id in range(chunk)]
    with Azurite() as azurite:
        async with Storage.from_connection_string(azurite.connection_string) as storage:
            queue = storage.queue("bare", type=ItemChunk)
            await queue.create()
            kept = (await queue.put(ItemChunk(BATCH, 0, 0, items)))[0]
            await queue.clear()
            started = time.perf_counter()
            left = iter(range(transactions // chunk))

            async def one() -> None:
                for _ in left:
                    await queue.transport.put(kept.text)
                    for message in await queue.transport.get(1, visibility_seconds=60):
                        await queue.transport.delete(message.id, message.receipt)

            await asyncio.gather(*(one() for _ in range(8)))
            return transactions / (time.perf_counter() - started)


def initiator_memory(items: int) -> float:
    """MiB at the peak of a process that splits a batch of that many items."""
    done = subprocess.run(
        [sys.executable, __file__, "--split", str(items)], capture_output=True, text=True, check=True
    )
    return float(done.stdout.strip().splitlines()[-1])


async def split(items: int) -> None:
    class Sink:
        """A queue that forgets."""

        async def put(self, *chunks: ItemChunk) -> None:
            await asyncio.sleep(0)

    async def wanted() -> bool:
        return True

    ledger = BatchLedger("bench", Table(MemoryTableStore("heads")), Table(MemoryTableStore("parts")))
    sink: Any = Sink()
    sender = Sender(ledger, lambda count: ({"id": n, "customer": n % 250} for n in range(count)), sink)
    assert await sender.send("b", items, chunk_items=500, is_wanted=wanted)
    assert (await ledger.sent("b")).value.items == items
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-celery", action="store_true", help="leave the comparison out")
    parser.add_argument("--split", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.split:
        asyncio.run(split(options.split))
        return
    ours = asyncio.run(kennel(10_000 if options.quick else 50_000))
    control = asyncio.run(bare(50_000))
    memory = {
        count: round(initiator_memory(count), 1)
        for count in (10_000, 100_000 if options.quick else 1_000_000)
    }
    results: dict[str, Any] = {
        "kennel_per_second": round(ours),
        "bare_calls_per_second": round(control),
        "share_of_bare_calls": round(ours / control, 3),
        "initiator_mib": memory,
    }
    if not options.no_celery:
        single = celery(300 if options.quick else 1000, 1)
        chunked = celery(10_000 if options.quick else 50_000, 500)
        results |= {
            "celery_per_second": round(single, 1),
            "celery_chunks_of_500_per_second": round(chunked),
            "ratio_to_celery": round(ours / single, 1),
            "ratio_to_celery_in_chunks": round(ours / chunked, 2),
        }
    if options.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:36} {value}")


if __name__ == "__main__":
    main()
