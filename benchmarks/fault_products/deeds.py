"""What a task does, the same for every product: plain Python, so that the peers' interpreter can import it too."""

import os
import time


def note(word, number):
    log = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{word} {number} {time.time()}\n".encode())
    os.close(log)


def act(number, deed):
    """Note the start, do it, note the end. `deed`: "die", "hang", "raise", or how many seconds it takes."""
    note("start", number)
    if deed == "die":
        os._exit(9)
    if deed == "raise":
        raise ValueError("as the benchmark asked")
    time.sleep(3600 if deed == "hang" else float(deed))
    note("end", number)
