"""What a queue product loses, runs twice and leaves stuck when something fails, and how soon it goes on.

    python benchmarks/faults.py [--quick] [--json] [--only kennel,celery,dramatiq] [--faults "kill -9,…"]

Kennel, Celery and dramatiq work through the same tasks on equal, fresh emulators behind a proxy that breaks requests, with a
visibility timeout of 5 s and a time limit of 5 s where the product has one. As a service manager would, the benchmark
starts a worker again when it ends. Each task notes its start and its end in a file.

Of the tasks that are sound: *lost* are those that never ended and are in no queue any more; *stuck* those that did not end
in time but are in a queue; *run twice* those that were started more than once; *recovered* is the seconds from the
fault (its end, for an outage) until the last one ended. *Bad task* is what became of the one that cannot succeed.
`--quick` takes three faults and about a minute. Peers are installed into .kennel/peers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from azure.storage.queue import QueueServiceClient

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from benchmarks.peers.queue_product import peers_python  # noqa: E402
from coordinator.testing.azurite import Azurite  # noqa: E402
from coordinator.testing.faults import DROP_ANSWER, RESET_BEFORE, FaultProxy, throttled  # noqa: E402

PRODUCTS = ("kennel", "celery", "dramatiq")
HERE = PROJECT / "benchmarks" / "fault_products"
VISIBILITY_SECONDS = 5
BAD = 3  # the place of the task that cannot succeed


@dataclass
class Site:
    """One product with its emulator, its proxy and its worker, seen from outside."""

    name: str
    deeds: list[str]
    proxy: FaultProxy
    connection_string: str
    log: Path
    workers_started: int = 0
    worker: psutil.Popen | None = None
    _ending: threading.Event = field(default_factory=threading.Event)

    def command(self, *arguments: str) -> dict[str, Any]:
        behind = self.proxy.connection_string if arguments == ("work",) else self.connection_string
        return {
            "args": [
                str(sys.executable if self.name == "kennel" else peers_python()),
                str(HERE / f"{self.name}_app.py"),
                *arguments,
            ],
            "env": {
                **os.environ,
                "BENCH_CONNECTION_STRING": behind,
                "BENCH_LOG": str(self.log),
                "BENCH_VISIBILITY": str(VISIBILITY_SECONDS),
                "BENCH_LIMIT": "5",
                "PYTHONPATH": str(PROJECT),
            },
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }

    def put(self) -> None:
        subprocess.run(**self.command("put", *self.deeds), check=True, timeout=60)

    def serve(self) -> None:
        """Keep a worker running until the site ends."""
        while not self._ending.is_set():
            self.workers_started += 1
            self.worker = psutil.Popen(**self.command("work"), start_new_session=True)
            while self.worker.poll() is None and not self._ending.is_set():
                time.sleep(0.05)
            self.kill()
            self._ending.wait(0.5)

    def kill(self) -> None:
        """kill -9 to the worker and its children."""
        worker = self.worker
        if worker is not None and worker.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [*worker.children(recursive=True), worker]:
                    process.kill()
            worker.wait()

    def terminate(self) -> None:
        """SIGTERM to the worker, as a deployment would; killed if it has not ended after 30 s."""
        worker = self.worker
        assert worker is not None
        worker.terminate()
        with contextlib.suppress(psutil.TimeoutExpired):
            worker.wait(30)

    def end(self) -> None:
        self._ending.set()

    def times(self, word: str) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for line in self.log.read_text().splitlines():
            said, number, at = line.split()
            if said == word:
                found.setdefault(int(number), []).append(float(at))
        return found

    def started(self, count: int, limit: float = 40.0) -> None:
        """Return when that many tasks were started."""
        deadline = time.monotonic() + limit
        while len(self.times("start")) < count and time.monotonic() < deadline:
            time.sleep(0.02)

    def depth(self) -> tuple[int, int]:
        """Messages in all queues but the dead letters, and in those."""
        with QueueServiceClient.from_connection_string(self.connection_string) as service:
            waiting = dead = 0
            for queue in service.list_queues():
                with service.get_queue_client(queue.name) as client:
                    count = client.get_queue_properties().approximate_message_count or 0
                if queue.name.endswith(("-poison", "-dlq")):
                    dead += count
                else:
                    waiting += count
        return waiting, dead


def killed(site: Site) -> None:
    site.started(3)
    time.sleep(0.2)
    site.kill()


def outage(site: Site) -> None:
    site.started(3)
    site.proxy.always(RESET_BEFORE)
    time.sleep(2.5 * VISIBILITY_SECONDS)
    site.proxy.heal()


def stopped(site: Site) -> None:
    site.started(2)
    time.sleep(0.3)
    site.terminate()


def nothing(site: Site) -> None:
    site.started(1)


def throttling(site: Site) -> None:
    site.started(1)
    site.proxy.at_random(0.3, seed=7, faults=[throttled(1)])


def lost_answers(site: Site) -> None:
    site.started(1)
    site.proxy.at_random(0.1, seed=7, faults=[DROP_ANSWER])


def deeds_with(bad: str, *, count: int = 12, each: str = "0.2") -> list[str]:
    return [bad if number == BAD else each for number in range(count)]


@dataclass(frozen=True)
class Fault:
    """`deeds` are put, the worker is started, `strike` does the harm; after `seconds` the count is taken."""

    title: str
    deeds: list[str]
    strike: Callable[[Site], None]
    seconds: float = 60.0


FAULTS = (
    Fault("kill -9 in a handler", ["0.5"] * 20, killed),
    Fault("task that kills its process", deeds_with("die"), nothing, 90.0),
    Fault("task that hangs", deeds_with("hang"), nothing, 90.0),
    Fault("outage longer than the visibility", ["1"] * 12, outage),
    Fault("SIGTERM with a running task", ["3"] * 6, stopped),
    Fault("task that always raises", deeds_with("raise"), nothing),
    Fault("throttled, 30 % of requests", ["0.3"] * 40, throttling, 90.0),
    Fault("lost answers, 10 % of requests", ["0.3"] * 40, lost_answers, 90.0),
)
QUICK = ("kill -9 in a handler", "task that always raises", "lost answers, 10 % of requests")


@contextlib.contextmanager
def site_of(name: str, fault: Fault, folder: Path) -> Iterator[Site]:
    log = folder / f"{name}-{fault.title.replace(' ', '-').replace('%', '')}.log"
    log.write_text("")
    with Azurite() as azurite, FaultProxy(azurite.connection_string) as proxy:
        yield Site(name, fault.deeds, proxy, azurite.connection_string, log)


def measure(name: str, fault: Fault, folder: Path) -> dict[str, Any]:
    """One product, one fault."""
    sound = {number for number, deed in enumerate(fault.deeds) if deed not in ("die", "hang", "raise")}
    with site_of(name, fault, folder) as site:
        site.put()
        serving = threading.Thread(target=site.serve)
        serving.start()
        try:
            began = time.monotonic()
            fault.strike(site)
            struck_at = time.time()
            while time.monotonic() < began + fault.seconds:
                waiting, dead = site.depth()
                if sound <= site.times("end").keys() and not waiting:
                    break
                time.sleep(0.2)
            waiting, dead = site.depth()
        finally:
            site.end()
            serving.join()
        starts, ends = site.times("start"), site.times("end")
    unfinished = len(sound - ends.keys())
    stuck = min(unfinished, waiting)
    done_at = max((times[0] for number, times in ends.items() if number in sound), default=struck_at)
    return {
        "lost": unfinished - stuck,
        "run_twice": sum(1 for number in sound if len(starts.get(number, ())) > 1),
        "stuck": stuck,
        "recovered_seconds": None if unfinished else round(max(0.0, done_at - struck_at), 1),
        "bad_task": fate(len(starts.get(BAD, ())), waiting - stuck, dead) if len(sound) < len(fault.deeds) else "",
        "workers_started": site.workers_started,
    }  # fmt: skip


def fate(tries: int, waiting: int, dead: int) -> str:
    where = "dead letter" if dead else "still tried" if waiting else "gone"
    return f"{where} after {tries}"


def table(results: dict[str, dict[str, dict[str, Any]]], names: list[str]) -> str:
    """One row a fault, for each product: lost / run twice / stuck / seconds, and the bad task's fate."""
    head = ["lost / run twice / stuck / seconds to recover", *names]
    rows = [head]
    for title, found in results.items():
        row = [title]
        for name in names:
            figures = found[name]
            if "error" in figures:
                row.append(f"failed: {figures['error']}"[:40])
                continue
            seconds = "–" if figures["recovered_seconds"] is None else f"{figures['recovered_seconds']:g} s"
            text = f"{figures['lost']} / {figures['run_twice']} / {figures['stuck']} / {seconds}"
            row.append(f"{text}; {figures['bad_task']}" if figures["bad_task"] else text)
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "-|-".join("-" * width for width in widths), *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three faults, about a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PRODUCTS))
    parser.add_argument("--faults", type=lambda text: text.split(","), help="titles, or how they begin")
    options = parser.parse_args()
    wanted = [
        fault
        for fault in FAULTS
        if (fault.title.startswith(tuple(options.faults)) if options.faults else True)
        and (fault.title in QUICK or not options.quick or options.faults)
    ]
    if set(options.only) - {"kennel"}:
        peers_python()  # installed before the time runs
    # Long before the limits of full runs, what recovers at all has recovered.
    limit = 25.0 if options.quick else 90.0
    results: dict[str, dict[str, dict[str, Any]]] = {}

    def one(name: str, fault: Fault, folder: str) -> dict[str, Any]:
        try:
            return measure(name, fault, Path(folder))
        except Exception as error:  # the other figures are wanted
            return {"error": f"{type(error).__name__}: {error}"}

    # Handlers wait rather than compute, so the products share the machine, one fault after the other.
    with (
        tempfile.TemporaryDirectory(prefix="kennel-bench-") as folder,
        ThreadPoolExecutor(len(options.only)) as pool,
    ):
        for fault in wanted:
            print(f"{fault.title} …", file=sys.stderr, flush=True)
            bounded = Fault(fault.title, fault.deeds, fault.strike, min(limit, fault.seconds))
            found = list(pool.map(lambda name, fault=bounded: one(name, fault, folder), options.only))
            results[fault.title] = dict(zip(options.only, found, strict=True))
    print(table(results, options.only))
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        main()
