"""One product at work on queues, in processes of its own, and the services it works on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import psutil
from azure.core.exceptions import AzureError
from azure.storage.queue import QueueServiceClient

from coordinator.testing.azurite import Azurite
from tests.support.redis import running_redis

PROJECT = Path(__file__).resolve().parents[2]
HERE = PROJECT / "benchmarks" / "queue_products"
PEERS = PROJECT / ".kennel" / "peers"
PRODUCTS = ("rest", "kennel", "sdk", "celery", "dramatiq", "huey")
OURS = PRODUCTS[:2]
STUCK_SECONDS = 30.0


def peers_python() -> Path:
    """The peers' interpreter, installed once for each list of requirements."""
    python, wanted = PEERS / "bin" / "python", (HERE / "requirements.txt").read_text()
    stamp = PEERS / "installed"
    if not stamp.is_file() or stamp.read_text() != wanted:
        print("Installing the peers into .kennel/peers …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "-r", HERE / "requirements.txt"],
            check=True,
            capture_output=True,
        )
        stamp.write_text(wanted)
    return python


class Product:
    """One product on one emulator, seen from outside."""

    def __init__(self, name: str, environment: dict[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.log.write_text("")
        self.environment = {
            **os.environ,
            **environment,
            "BENCH_LOG": str(self.log),
            "PYTHONPATH": str(PROJECT),
        }
        python = sys.executable if name in OURS else str(peers_python())
        self.command = [python, str(HERE / f"{name}_app.py")]
        self.first_put_at = 0.0  # of the first message of the last put, the one numbered -1
        self.workers: list[psutil.Popen] = []

    def put(
        self, count: int, *, first: int = 0, seconds: float = 0, batch: int = 1, limit: float = 240
    ) -> float:
        """Items put a second, by one process."""
        more = [str(batch)] if batch > 1 else []
        done = subprocess.run(
            [*self.command, "put", str(first), str(count), str(seconds), *more],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{self.name} could not put: {done.stderr[-1500:]}")
        elapsed, self.first_put_at = map(float, done.stdout.strip().splitlines()[-1].split())
        return count / elapsed

    def start(self) -> psutil.Popen:
        worker = psutil.Popen(
            [*self.command, "work"],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.workers.append(worker)
        return worker

    def lines(self, word: str, *, first: int = 0) -> dict[int, list[float]]:
        """The times of that word by task; the warm-up task -1 left out unless `first` says otherwise."""
        found: dict[int, list[float]] = defaultdict(list)
        for line in self.log.read_text().splitlines():
            said, number, at = line.split()
            if said == word and int(number) >= first:
                found[int(number)].append(float(at))
        return found

    def wait(
        self, count: int, *, word: str = "end", limit: float = 240, stuck_seconds: float = STUCK_SECONDS
    ) -> None:
        """Until that many tasks were done; a product or an emulator that makes no progress is given up."""
        deadline, seen, moved = time.monotonic() + limit, -1, time.monotonic()
        # Counting words is cheap, so that the moment is known to a few milliseconds; what was run twice counts once.
        while (said := self.log.read_bytes().count(f"{word} ".encode())) < count or len(
            self.lines(word)
        ) < count:
            now = time.monotonic()
            if said != seen:
                seen, moved = said, now
            if now > deadline or now - moved > stuck_seconds:
                raise TimeoutError(f"{len(self.lines(word))} of {count} tasks, then no progress")
            time.sleep(0.003)

    def drain(self, count: int, limit: float = 240) -> tuple[float, float]:
        """Tasks a second from the first start until the queue is empty, and CPU milliseconds a task of the worker.

        The CPU is counted from the moment that the first task was seen to be done: starting a process is no task.
        """
        depth = None if self.name == "huey" else Depth(self.environment["BENCH_CONNECTION_STRING"])
        worker = self.start()
        self.wait(1, limit=limit)
        before, cpu = len(self.lines("end")), cpu_seconds(worker)
        self.wait(count, limit=limit)
        deadline = time.monotonic() + STUCK_SECONDS
        while depth is not None and (left := depth.now()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"all tasks were done, and {left} messages stay in the queue")
            time.sleep(0.002)
        ended = time.time()
        cpu = cpu_seconds(worker) - cpu
        started = min(times[0] for times in self.lines("start").values())
        return count / (ended - started), cpu * 1000 / max(1, count - before)

    def stop(self) -> None:
        for worker in self.workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [*worker.children(recursive=True), worker]:
                    process.kill()
            worker.wait()
        self.workers.clear()


class Depth:
    """Messages in all queues that there are now, invisible ones included. Its connection is kept: it is in what is timed."""

    def __init__(self, connection_string: str) -> None:
        service = QueueServiceClient.from_connection_string(connection_string, retry_total=0, read_timeout=20)
        self._queues = [service.get_queue_client(queue.name) for queue in service.list_queues()]

    def now(self) -> int:
        try:
            return self._sum()
        except AzureError:  # the emulator closes connections that were idle for 5 s
            return self._sum()

    def _sum(self) -> int:
        return sum(queue.get_queue_properties().approximate_message_count or 0 for queue in self._queues)


def cpu_seconds(worker: psutil.Popen) -> float:
    total = 0.0
    for process in [worker, *worker.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


@contextlib.contextmanager
def azurite() -> Iterator[dict[str, str]]:
    with Azurite() as running:
        yield {"BENCH_CONNECTION_STRING": running.connection_string}


@contextlib.contextmanager
def fast_service() -> Iterator[dict[str, str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "coordinator.testing.queue_service"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield {"BENCH_CONNECTION_STRING": process.stdout.readline().strip()}
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def requests_of(environment: dict[str, str]) -> int:
    url = dict(part.split("=", 1) for part in environment["BENCH_CONNECTION_STRING"].split(";") if part)[
        "QueueEndpoint"
    ]
    with urllib.request.urlopen(f"{url}?comp=requests") as answer:
        return int(answer.read())


@contextlib.contextmanager
def redis() -> Iterator[dict[str, str]]:
    with running_redis() as url:
        yield {"BENCH_REDIS_URL": url}
