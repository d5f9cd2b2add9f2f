"""Celery over kombu's azurestoragequeues, as its documentation sets it up: `put N SECONDS`, or `work`."""

import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from celery import Celery

CONNECTION = os.environ["BENCH_CONNECTION_STRING"]
KEY = re.search("AccountKey=([^;]+)", CONNECTION).group(1)
URL = re.search("QueueEndpoint=([^;]+)", CONNECTION).group(1)

app = Celery("bench", broker=f"azurestoragequeues://{KEY}@{URL}")
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(name="work")
def work(number, seconds):
    log = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"start {number} {time.time()}\n".encode())
    time.sleep(seconds)
    os.write(log, f"end {number} {time.time()}\n".encode())
    os.close(log)


if __name__ == "__main__":
    if sys.argv[1] == "put":
        first, count, seconds = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
        began = time.time()
        work.delay(-1, 0)  # the connection and the queue are made outside of the time
        started = time.perf_counter()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: work.delay(number, seconds), range(first, first + count)))
        print(time.perf_counter() - started, began)
    else:
        app.worker_main(["worker", "--pool=threads", "--concurrency=8", "--loglevel=ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"])  # fmt: skip
