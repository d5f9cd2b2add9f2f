"""Takes numbers until told to stop, and writes each down: eight bytes a number, in small appends."""

from __future__ import annotations

import array
import os
import signal
import sys
import time

from coordinator.config import StorageConfig
from coordinator.errors import KennelError
from coordinator.storage import Storage


def main() -> None:
    record, prefix, name, range_size, pace_seconds = sys.argv[1:6]
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    storage = Storage.from_connection_string(
        os.environ["AZURE_STORAGE_CONNECTION_STRING"], config=StorageConfig(prefix=prefix)
    )
    size = int(range_size)
    ids = storage.sequence(name, range_size=size, max_range_size=size, max_retries=1000)
    output = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while not stopping:
        try:
            numbers = [ids.next_id() for _ in range(50)]
        except KennelError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            continue
        os.write(output, array.array("q", numbers).tobytes())
        time.sleep(float(pace_seconds))
    ids.close()
    storage.close()


if __name__ == "__main__":
    main()
