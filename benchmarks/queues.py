"""How fast queues are filled and drained, what a task costs, and what is lost when a worker is killed.

    python benchmarks/queues.py [--quick] [--json] [--only kennel,rest,…]

Every product runs in processes of its own and notes the start and end of each task in a file. Beside each figure stands
the control: plain signed REST on the same, equally fresh emulator. Azurite slows down with the messages it holds, so there
is a second storage service with O(1) queues, where the clients are measured. Peers are installed into .kennel/peers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from benchmarks.peers.queue_report import check, table  # noqa: E402
from coordinator.queues.idle import IdleBackoff  # noqa: E402

ROUNDS = 5  # of control and Kennel, by turns


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

    def drains(self, depth: int) -> None:
        """Control and Kennel by turns, several times, and their medians: the emulator has good and bad moments."""
        rounds = 1 if self.options.quick else ROUNDS
        rates: dict[str, list[float]] = {}

        def phase(product: Product, _: dict[str, str]) -> dict[str, Any]:
            enqueued = product.put(depth)
            rate, cpu = product.drain(depth)
            rates.setdefault(product.name, []).append(rate)
            return {
                f"drain_{depth}_per_second": statistics.median(rates[product.name]),
                f"drain_{depth}_cpu_ms": cpu,
                **({"enqueue_per_second": enqueued} if self.options.quick else {}),
            }

        for turn in range(rounds):
            ours = OURS if turn % 2 == 0 else OURS[::-1]
            self.each(f"drain {depth}", azurite, phase, (*ours, *(PRODUCTS[2:] if turn == 0 else ())))

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

    def pushed(self) -> None:
        """First messages with push; asleep sooner and for a shorter while when there is no time."""
        print("first message with push …", file=sys.stderr)
        quick = self.options.quick
        idle = IdleBackoff(maximum_seconds=0.5) if quick else IdleBackoff()
        with azurite() as environment:
            found = first_with_push(
                environment["BENCH_CONNECTION_STRING"], 5 if quick else 40, idle, 1 if quick else 15
            )
            self.results["kennel"].update(asyncio.run(found))

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
        "--quick", action="store_true", help="under a minute: one round, fewer tasks, one peer"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--only", type=lambda text: text.split(","), help="products, separated by commas")
    parser.add_argument("--phases", type=lambda text: text.split(","), default=["speed", "idle", "loss"])
    options = parser.parse_args()
    options.tasks = 500
    options.deep = 200 if options.quick else 2000
    options.idle_seconds, options.firsts = 40, 10
    options.only = options.only or (["rest", "kennel", "dramatiq"] if options.quick else list(PRODUCTS))
    with tempfile.TemporaryDirectory(prefix="kennel-bench-") as folder:
        bench = Bench(options, Path(folder))
        if "speed" in options.phases:
            if not options.quick:
                bench.each("enqueue", azurite, bench.enqueue)
            for depth in (100,) if options.quick else (32, 512, 2000):
                bench.drains(depth)
            bench.each("O(1) service", fast_service, bench.fast, OURS if options.quick else PRODUCTS)
            bench.each("batches of 50", fast_service, bench.batched, ("kennel",))
        if "idle" in options.phases and "kennel" in bench.results:
            bench.pushed()
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
