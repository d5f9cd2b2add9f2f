"""The billing job as a Celery application: `put N CHUNK SEED`, or `work`. A chunk of 1 is one task a transaction."""

import os
import random
import re
import sqlite3
import sys

from celery import Celery

CONNECTION = os.environ["BENCH_CONNECTION_STRING"]
KEY = re.search("AccountKey=([^;]+)", CONNECTION).group(1)
URL = re.search("QueueEndpoint=([^;]+)", CONNECTION).group(1)
TARIFFS = {"call": 7, "message": 2, "data": 1, "roaming": 39}
KINDS = tuple(TARIFFS)

app = Celery("billing", broker=f"azurestoragequeues://{KEY}@{URL}")
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


def transaction(seed, id):
    rng = random.Random(seed * 1_000_003 + id)
    return [id, rng.randrange(250), KINDS[rng.randrange(4)], rng.randrange(1, 500)]


@app.task(name="bill")
def bill(number, transactions):
    sums = {}
    for _, customer, kind, units in transactions:
        rate = TARIFFS[kind]
        cents = rate * min(units, 100) + rate * max(0, units - 100) * 9 // 10
        known = sums.get(customer, (0, 0))
        sums[customer] = (known[0] + cents, known[1] + 1)
    # The marker and the sums in one transaction, as Kennel has it; a local file costs next to nothing.
    connection = sqlite3.connect(os.environ["BENCH_DATABASE"], timeout=60)
    with connection:
        connection.execute("INSERT OR IGNORE INTO done VALUES (?)", (number,))
        if connection.execute("SELECT changes()").fetchone()[0]:
            connection.executemany(
                "INSERT INTO sums VALUES (?, ?, ?) ON CONFLICT (customer) DO UPDATE SET "
                "cents = cents + excluded.cents, count = count + excluded.count",
                [(customer, cents, count) for customer, (cents, count) in sums.items()],
            )
    connection.close()


if __name__ == "__main__":
    if sys.argv[1] == "put":
        count, chunk, seed = (int(word) for word in sys.argv[2:5])
        for first in range(0, count, chunk):
            bill.delay(first, [transaction(seed, id) for id in range(first, min(first + chunk, count))])
    else:
        app.worker_main(["worker", "--pool=threads", "--concurrency=8", "--loglevel=ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"])  # fmt: skip
