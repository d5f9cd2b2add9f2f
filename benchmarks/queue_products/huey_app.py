"""Huey over Redis, another world: `put N SECONDS`, or `work`."""

import os
import sys
import time

from huey import RedisHuey

huey = RedisHuey("bench", url=os.environ["BENCH_REDIS_URL"], results=False)


@huey.task()
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
        work(-1, 0)
        started = time.perf_counter()
        for number in range(first, first + count):
            work(number, seconds)
        print(time.perf_counter() - started, began)
    else:
        consumer = huey.create_consumer(workers=8, worker_type="thread")
        consumer.run()
