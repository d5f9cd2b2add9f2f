"""dramatiq over dramatiq-azure, as its documentation sets it up: `put DEED…`, or `work`."""

import os
import signal
import sys
import threading

os.environ["AZURE_STORAGE_CONNECTION_STR"] = os.environ["BENCH_CONNECTION_STRING"]

import dramatiq
from deeds import act
from dramatiq.worker import Worker
from dramatiq_azure.asq import ASQBroker

broker = ASQBroker(dead_letter=True)
dramatiq.set_broker(broker)


@dramatiq.actor(
    max_retries=2, min_backoff=1000, max_backoff=2000, time_limit=1000 * int(os.environ["BENCH_LIMIT"])
)
def work(number, deed):
    act(number, deed)


if __name__ == "__main__":
    if sys.argv[1] == "put":
        for number, deed in enumerate(sys.argv[2:]):
            work.send(number, deed)
    else:
        worker, ended = Worker(broker, worker_threads=4), threading.Event()
        worker.start()
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        ended.wait()
        worker.stop()
