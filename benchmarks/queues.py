"""How fast queues are filled and drained, what a task costs, and what is lost when a worker is killed.

    python benchmarks/queues.py [--quick] [--json] [--only kennel,rest,…] [--phases speed,idle,loss] [--minutes 7.5]

By default the phase `speed`: every promised ratio in one run, ending with a table of goals. What each ratio needs is
measured once; then control and Kennel by turns again, and the other products, while there is time (`--minutes`), and medians
are told. `idle` and `loss` take some ten minutes each.

Every product runs in processes of its own and notes the start and end of each task in a file. Beside each figure stands
the control: plain signed REST on the same, equally fresh emulator. Azurite slows down with the messages it holds, so there
is a second storage service with O(1) queues, where the clients are measured. A step that makes no progress is ended and
tried once more on another emulator; what fails twice is told, and the run goes on. Peers are installed into .kennel/peers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from benchmarks.peers.queue_product import (  # noqa: E402
    OURS,
    PRODUCTS,
    Product,
    azurite,
    fast_service,
    redis,
    requests_of,
)
from benchmarks.peers.queue_push import first_with_push, quantiles  # noqa: E402
from benchmarks.peers.queue_report import ratios, table  # noqa: E402
from coordinator.queues.polling import IdleBackoff  # noqa: E402

ROUNDS = 7  # of control and Kennel, by turns, if there is time
STEP_SECONDS = 240
PEERS = ("celery", "dramatiq")
OTHERS = ("sdk", "huey")
Phase = Callable[[Product, dict[str, str]], dict[str, Any]]


class Step(NamedTuple):
    """One product in one phase, on an emulator of its own."""

    title: str
    emulator: Callable[[], Any]
    phase: Phase
    name: str


@contextlib.contextmanager
def watchdog(seconds: float) -> Iterator[None]:
    """Raises `TimeoutError` in what takes longer."""

    def bark(signum: int, frame: Any) -> None:
        raise TimeoutError(f"no end after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, bark)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Phases:
    """Runs the phases; a phase that fails is reported as what went wrong, never as a figure."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.results: dict[str, dict[str, Any]] = {name: {} for name in options.only}
        self.samples: dict[tuple[str, str], list[float]] = {}
        self.began = time.monotonic()
        self.took: dict[tuple[str, str], float] = {}

    def run(self, step: Step, *, tries: int = 2) -> None:
        """Do it, on a second emulator if it fails on the first."""
        if step.name not in self.results:
            return
        said = f"{time.monotonic() - self.began:4.0f} s  {step.title}: {step.name}"
        print(f"{said} …", file=sys.stderr, flush=True)
        started = time.monotonic()
        try:
            with watchdog(STEP_SECONDS), step.emulator() if step.name != "huey" else redis() as environment:
                product = Product(step.name, environment, self.folder)
                try:
                    found = step.phase(product, environment)
                finally:
                    product.stop()
        except Exception as error:  # whatever it is, the other figures are wanted
            print(f"{said} failed: {error}", file=sys.stderr, flush=True)
            if tries > 1:
                self.run(step, tries=tries - 1)
            else:
                self.results[step.name].setdefault("errors", []).append(f"{step.title}: {error}")
            return
        self.took[step.title, step.name] = time.monotonic() - started
        for key, figure in found.items():
            samples = self.samples.setdefault((step.name, key), [])
            samples.append(figure)
            self.results[step.name][key] = statistics.median(samples)

    def each(
        self, title: str, emulator: Callable[[], Any], phase: Phase, names: tuple[str, ...] = PRODUCTS
    ) -> None:
        for name in names:
            self.run(Step(title, emulator, phase, name))

    def speed(self) -> None:
        """What every promised ratio needs, once; then again, for medians, while there is time."""
        options = self.options
        drains = [(f"drain {depth}", azurite, self.drained(depth)) for depth in options.depths]
        enqueued, fast = ("enqueue", azurite, self.enqueue), ("O(1) service", fast_service, self.fast)
        # The shallow one thrice: it takes a tenth of a second.
        repeated = [enqueued, *drains[:1], *drains[:1], *drains, fast]
        for phase in repeated:
            # Peers where something is promised of them: they take the most of the time.
            peers = PEERS if phase not in drains[:-1] else ()
            self.each(*phase, (*OURS, *peers))
        self.run(Step("batches of 50", fast_service, self.batched, "kennel"))
        if options.quick:
            return
        for turn in range(ROUNDS - 1):
            for phase in repeated[::-1]:
                # Filling is soon measured, and the machine's speed drifts: peers by turns, too.
                names = (*OURS, *PEERS) if phase == enqueued else OURS
                if not self.is_late(phase[0], names):
                    self.each(*phase, names[::-1] if turn % 2 == 0 else names)
            for phase in (enqueued, drains[-1], fast) if turn == 1 else ():
                for name in OTHERS:
                    if not self.is_late(phase[0], (name,)):
                        self.run(Step(*phase, name))

    def enqueue(self, product: Product, _: dict[str, str]) -> dict[str, Any]:
        return {"enqueue_per_second": product.put(self.options.tasks)}

    def drained(self, depth: int) -> Phase:
        def phase(product: Product, _: dict[str, str]) -> dict[str, Any]:
            product.put(depth)
            rate, cpu = product.drain(depth)
            return {f"drain_{depth}_per_second": rate, f"drain_{depth}_cpu_ms": cpu}

        return phase

    def fast(self, product: Product, environment: dict[str, str]) -> dict[str, Any]:
        # Of a service whose speed does not depend on depth: the slow ones need no more to be measured.
        count = self.options.deep if product.name in (*OURS, "huey") else self.options.deep // 2
        enqueue = product.put(count)
        before = 0 if product.name == "huey" else requests_of(environment)
        rate, cpu = product.drain(count)
        found = {"fast_enqueue_per_second": enqueue, "fast_drain_per_second": rate, "fast_cpu_ms": cpu}
        if product.name != "huey":
            # The put of each task is one request more; idle looks while it was started and stopped are in it.
            found["requests_per_task"] = (requests_of(environment) - before) / count + 1
        return found

    def is_late(self, title: str, names: tuple[str, ...]) -> bool:
        """Whether this phase of these products would end after the time is up, as far as is known."""
        known = [took for (phase, _), took in self.took.items() if phase == title]
        needed = sum(self.took.get((title, name), max(known, default=60.0)) for name in names)
        return time.monotonic() - self.began + needed > self.options.minutes * 60

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

    def pushed(self, _: Product, environment: dict[str, str]) -> dict[str, Any]:
        """First messages with push; asleep sooner and for a shorter while when there is no time."""
        quick = self.options.quick
        idle = IdleBackoff(maximum_seconds=0.5) if quick else IdleBackoff()
        connection = environment["BENCH_CONNECTION_STRING"]
        return asyncio.run(first_with_push(connection, 5 if quick else 40, idle, 1 if quick else 15))

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="about a minute: one round, fewer tasks, one peer"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--only", type=lambda text: text.split(","), help="products, separated by commas")
    parser.add_argument("--phases", type=lambda text: text.split(","), default=["speed"])
    parser.add_argument("--minutes", type=float, default=7.5, help="of `speed`: for as many rounds as fit")
    options = parser.parse_args()
    options.tasks = 200 if options.quick else 500
    options.deep = 200 if options.quick else 2000
    options.depths = (32, 100) if options.quick else (32, 512, 2000)
    options.idle_seconds, options.firsts = 40, 10
    options.only = options.only or (["rest", "kennel", "dramatiq"] if options.quick else list(PRODUCTS))
    with tempfile.TemporaryDirectory(prefix="kennel-bench-") as folder:
        bench = Phases(options, Path(folder))
        if "speed" in options.phases:
            bench.speed()
        if "idle" in options.phases:
            bench.run(Step("first message with push", azurite, bench.pushed, "kennel"))
            if not options.quick:
                bench.each("idle", fast_service, bench.idle, ("kennel", "sdk", "celery", "dramatiq"))
        if "loss" in options.phases and not options.quick:
            bench.each("kill -9", azurite, bench.killed)
            bench.each("long job", azurite, bench.long_job, ("kennel", "celery", "dramatiq"))
    rounds = {key: len(found) for (name, key), found in bench.samples.items() if name == "kennel"}
    print(table(bench.results, rounds, judge=not options.quick))
    if options.json:
        print(json.dumps({"results": bench.results, "ratios": ratios(bench.results)}, ensure_ascii=False))


if __name__ == "__main__":
    main()
