"""How fast queues are filled and drained, what a task costs, and what is lost when a worker is killed.

    python benchmarks/queues.py [--quick] [--json] [--only kennel,rest,…]

Every product runs in processes of its own and notes the start and end of each task in a file. Beside each figure stands
the control: plain signed REST on the same, equally fresh emulator. Azurite slows down with the messages it holds, so there
is a second storage service with O(1) queues, where the clients are measured. Peers are installed into .kennel/peers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from azure.storage.queue import QueueServiceClient

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from benchmarks.peers.queue_report import check, table  # noqa: E402
from coordinator import Storage  # noqa: E402
from coordinator.bus import LocalBus  # noqa: E402
from coordinator.testing.azurite import Azurite  # noqa: E402
from tests.support.redis import running_redis  # noqa: E402

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
        while (done := len(self.lines(word))) < count:
            now = time.monotonic()
            if done != seen:
                seen, moved = done, now
            if now > deadline or now - moved > stuck_seconds:
                raise TimeoutError(f"{done} of {count} tasks, then no progress")
            time.sleep(0.05)

    def drain(self, count: int, limit: float = 240) -> tuple[float, float]:
        """Tasks a second from the first start until the queue is empty, and CPU milliseconds a task of the worker.

        The CPU is counted from the moment that the first task was seen to be done: starting a process is no task.
        """
        worker = self.start()
        self.wait(1, limit=limit)
        before, cpu = len(self.lines("end")), cpu_seconds(worker)
        self.wait(count, limit=limit)
        while self.name != "huey" and depth_of(self.environment["BENCH_CONNECTION_STRING"]):
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


def depth_of(connection_string: str) -> int:
    """Messages in all queues, invisible ones included."""
    with QueueServiceClient.from_connection_string(connection_string) as service:
        names = [queue.name for queue in service.list_queues()]
        counts = [service.get_queue_client(name).get_queue_properties() for name in names]
    return sum(count.approximate_message_count or 0 for count in counts)


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


class Bench:
    """Runs the phases; a phase that fails is reported as what went wrong, never as a figure."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.results: dict[str, dict[str, Any]] = {name: {} for name in options.only}

    def each(
        self,
        title: str,
        emulator: Callable[[], Any],
        phase: Callable[[Product, dict[str, str]], dict[str, Any]],
        names: tuple[str, ...] = PRODUCTS,
    ) -> None:
        for name in [name for name in names if name in self.results]:
            print(f"{title}: {name} …", file=sys.stderr)
            with emulator() if name != "huey" else redis() as environment:
                product = Product(name, environment, self.folder)
                try:
                    self.results[name].update(phase(product, environment))
                except (RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
                    self.results[name].setdefault("errors", []).append(f"{title}: {error}")
                finally:
                    product.stop()

    def enqueue(self, product: Product, _: dict[str, str]) -> dict[str, Any]:
        return {"enqueue_per_second": product.put(self.options.tasks)}

    def drain(self, depth: int) -> Callable[[Product, dict[str, str]], dict[str, Any]]:
        def phase(product: Product, _: dict[str, str]) -> dict[str, Any]:
            rates, cpu = [], 0.0
            for _ in range(5 if depth < 100 else 1):  # the first moments of a worker: noisy, so several
                product.stop()
                product.log.write_text("")
                product.put(depth)
                rate, cpu = product.drain(depth)
                rates.append(rate)
            return {f"drain_{depth}_per_second": statistics.median(rates), f"drain_{depth}_cpu_ms": cpu}

        return phase

    def fast(self, product: Product, environment: dict[str, str]) -> dict[str, Any]:
        count = self.options.deep
        enqueue = product.put(count)
        if product.name == "huey":
            rate, cpu = product.drain(count)
            return {"fast_enqueue_per_second": enqueue, "fast_drain_per_second": rate, "fast_cpu_ms": cpu}
        before = requests_of(environment)
        rate, cpu = product.drain(count)
        requests = (requests_of(environment) - before) / count
        return {
            "fast_enqueue_per_second": enqueue,
            "fast_drain_per_second": rate,
            "fast_cpu_ms": cpu,
            # The put of each task is one request more; idle looks while it was started and stopped are in it.
            "requests_per_task": requests + 1,
        }

    def batched(self, product: Product, environment: dict[str, str]) -> dict[str, Any]:
        count = self.options.deep
        before = requests_of(environment)
        product.put(count, batch=50)
        rate, _ = product.drain(count)
        return {
            "batched_requests_per_task": (requests_of(environment) - before) / count,
            "batched_drain_per_second": rate,
        }

    def idle(self, product: Product, environment: dict[str, str]) -> dict[str, Any]:
        product.put(1)
        product.start()
        product.wait(1, limit=60)
        time.sleep(15)
        before, seconds = requests_of(environment), self.options.idle_seconds
        time.sleep(seconds)
        idle = (requests_of(environment) - before) * 3600 / seconds
        waits = []
        for number in range(1, self.options.firsts + 1):
            time.sleep(3)
            product.put(1, first=number)
            product.wait(number + 1, limit=60)
            started = [at for at in product.lines("start", first=-1)[-1] if at >= product.first_put_at]
            waits.append(min(started) - product.first_put_at)
        return {"idle_requests_per_hour_without_push": idle, **quantiles("first_without_push", waits)}

    def killed(self, product: Product, _: dict[str, str]) -> dict[str, Any]:
        """20 tasks of half a second each; the worker is killed with work in hand, another one goes on."""
        product.put(20, seconds=0.5)
        worker = product.start()
        product.wait(2, word="start", limit=60)
        time.sleep(0.25)
        for process in [*worker.children(recursive=True), worker]:
            process.kill()
        product.start()
        deadline = time.monotonic() + 75
        while len(product.lines("end")) < 20 and time.monotonic() < deadline:
            time.sleep(0.2)
        ends = product.lines("end")
        repeated = sum(1 for times in product.lines("start").values() if len(times) > 1)
        return {"killed_lost_of_20": 20 - len(ends), "killed_run_more_than_once": repeated}

    def long_job(self, product: Product, _: dict[str, str]) -> dict[str, Any]:
        """One job of three times the visibility timeout that is usual for the product, at most 60 s."""
        seconds = {"dramatiq": 15, "kennel": 30}.get(product.name, 45)
        if product.name == "kennel":
            product.environment["BENCH_VISIBILITY"] = "5"
        product.put(1, seconds=seconds)
        product.start()
        product.wait(1, limit=seconds + 60, stuck_seconds=seconds + 60)
        return {"long_job_starts": len(product.lines("start")[0]), "long_job_seconds": seconds}


@contextlib.contextmanager
def redis() -> Iterator[dict[str, str]]:
    with running_redis() as url:
        yield {"BENCH_REDIS_URL": url}


def quantiles(name: str, seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {f"{name}_p50_ms": statistics.median(ordered) * 1000, f"{name}_p99_ms": ordered[-1] * 1000}


async def first_with_push(connection_string: str, samples: int) -> dict[str, float]:
    """From the call of put to the start of the handler, listener asleep, both in one process: no hub in between."""

    class Connected(LocalBus):
        @property
        def is_connected(self) -> bool:
            return True

    waits: list[float] = []
    started: asyncio.Queue[float] = asyncio.Queue()

    async def handler(number: int) -> None:
        await started.put(time.perf_counter())

    async with Storage.from_connection_string(connection_string, bus=Connected()) as storage:
        queue = storage.queue("bench-first", type=int)
        listener = queue.listener(handler, tasks=range(51))
        await queue.create()
        running = asyncio.create_task(listener.run())
        await asyncio.sleep(15)
        for number in range(samples):
            before = time.perf_counter()
            await queue.put(number)
            waits.append(await started.get() - before)
            while listener.crew.active:  # asleep again: back-off runs its course
                await asyncio.sleep(0.2)
        await listener.stop(5)
        await running
    return quantiles("first_with_push", waits)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="under a minute: kennel, control and one peer, fewer tasks"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--only", type=lambda text: text.split(","), help="products, separated by commas")
    parser.add_argument("--phases", type=lambda text: text.split(","), default=["speed", "idle", "loss"])
    options = parser.parse_args()
    options.tasks = 150 if options.quick else 500
    options.deep = 300 if options.quick else 2000
    options.idle_seconds = 10 if options.quick else 40
    options.firsts = 3 if options.quick else 10
    options.only = options.only or (["rest", "kennel", "dramatiq"] if options.quick else list(PRODUCTS))
    with tempfile.TemporaryDirectory(prefix="kennel-bench-") as folder:
        bench = Bench(options, Path(folder))
        if "speed" in options.phases:
            bench.each("enqueue", azurite, bench.enqueue)
            for depth in (32, 150) if options.quick else (32, 512, 2000):
                bench.each(f"drain {depth}", azurite, bench.drain(depth))
            bench.each("O(1) service", fast_service, bench.fast)
            bench.each("batches of 50", fast_service, bench.batched, ("kennel",))
        if "idle" in options.phases and "kennel" in bench.results:
            print("first message with push …", file=sys.stderr)
            with azurite() as environment:
                samples = 2 if options.quick else 5
                bench.results["kennel"].update(
                    asyncio.run(first_with_push(environment["BENCH_CONNECTION_STRING"], samples))
                )
            if not options.quick:
                bench.each("idle", fast_service, bench.idle, ("kennel", "sdk", "celery", "dramatiq"))
        if "loss" in options.phases and not options.quick:
            bench.each("kill -9", azurite, bench.killed)
            bench.each("long job", azurite, bench.long_job, ("kennel", "celery", "dramatiq"))
        ratios = check(bench.results)
    print(table(bench.results, ratios))
    if options.json:
        print(json.dumps({"results": bench.results, "ratios": ratios}))


if __name__ == "__main__":
    main()
