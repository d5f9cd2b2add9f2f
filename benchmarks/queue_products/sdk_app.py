"""The loop of Microsoft's documentation with the plain SDK: `put N SECONDS`, or `work`."""

import contextlib
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from azure.core.exceptions import ResourceExistsError
from azure.storage.queue import QueueClient

client = QueueClient.from_connection_string(os.environ["BENCH_CONNECTION_STRING"], "bench-sdk")


def put(item):
    client.send_message(json.dumps(item))


def work(message):
    number, seconds = json.loads(message.content)
    log = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"start {number} {time.time()}\n".encode())
    time.sleep(seconds)
    os.write(log, f"end {number} {time.time()}\n".encode())
    os.close(log)
    client.delete_message(message)


if __name__ == "__main__":
    with contextlib.suppress(ResourceExistsError):
        client.create_queue()
    with ThreadPoolExecutor(8) as pool:
        if sys.argv[1] == "put":
            first, count, seconds = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
            began = time.time()
            put([-1, 0])
            started = time.perf_counter()
            list(pool.map(put, ([number, seconds] for number in range(first, first + count))))
            print(time.perf_counter() - started, began)
        else:
            while True:
                found = list(
                    client.receive_messages(messages_per_page=32, max_messages=32, visibility_timeout=30)
                )
                list(pool.map(work, found))
                if not found:
                    time.sleep(1)
