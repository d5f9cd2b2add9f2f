"""Celery over kombu's azurestoragequeues with everything that its documentation has against loss: `put DEED…`, or `work`.

Late acknowledgement, tasks of a lost worker rejected back, prefork (the only pool that enforces time limits).
"""

import os
import re
import sys

from celery import Celery
from deeds import act

CONNECTION = os.environ["BENCH_CONNECTION_STRING"]
KEY = re.search("AccountKey=([^;]+)", CONNECTION).group(1)
URL = re.search("QueueEndpoint=([^;]+)", CONNECTION).group(1)

app = Celery("bench", broker=f"azurestoragequeues://{KEY}@{URL}")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": int(os.environ["BENCH_VISIBILITY"])},
    task_acks_late=True,
    task_acks_on_failure_or_timeout=True,
    task_ignore_result=True,
    task_reject_on_worker_lost=True,
    task_time_limit=int(os.environ["BENCH_LIMIT"]),
    worker_hijack_root_logger=False,
    worker_prefetch_multiplier=1,
)


@app.task(name="work", autoretry_for=(Exception,), max_retries=2, default_retry_delay=1, retry_backoff=1)
def work(number, deed):
    act(number, deed)


if __name__ == "__main__":
    if sys.argv[1] == "put":
        for number, deed in enumerate(sys.argv[2:]):
            work.delay(number, deed)
    else:
        app.worker_main(["worker", "--pool=prefork", "--concurrency=4", "--loglevel=ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"])  # fmt: skip
