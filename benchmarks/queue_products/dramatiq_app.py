"""dramatiq over dramatiq-azure, as its documentation sets it up: `put N SECONDS`, or `work`."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

os.environ["AZURE_STORAGE_CONNECTION_STR"] = os.environ["BENCH_CONNECTION_STRING"]

import dramatiq
from dramatiq.worker import Worker
from dramatiq_azure.asq import ASQBroker

broker = ASQBroker()
dramatiq.set_broker(broker)


@dramatiq.actor
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
        work.send(-1, 0)
        started = time.perf_counter()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: work.send(number, seconds), range(first, first + count)))
        print(time.perf_counter() - started, began)
    else:
        worker = Worker(broker, worker_threads=8)
        worker.start()
        while True:
            time.sleep(3600)
