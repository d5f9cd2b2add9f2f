"""What a number costs, how late it can be, and what a crowd on one counter costs; beside what others offer.

    python benchmarks/sequences.py [--quick] [--json] [--only speed,latency,crowd,economy,peers]

Storage is Azurite, on this machine's cores together with all clients; read ratios, not absolute figures. The naive
loop is the source article's: read, add, write if unchanged, at once again if not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import secrets
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from azure.core import MatchConditions
from azure.core.exceptions import ResourceModifiedError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.peers.sequences import connected, peers
from coordinator.errors import SequenceContended
from coordinator.sequences.allocator import RangeAllocator
from coordinator.sequences.azure import BlobCounterStore, TableLedger, owner_of
from coordinator.sequences.grants import SequenceConfig
from coordinator.sequences.ledger import open_book
from coordinator.storage import Storage
from coordinator.testing.azurite import Azurite
from coordinator.testing.faults import FaultProxy, delayed
from coordinator.testing.sequences import memory_generator
from tests.support.postgres import running_postgres
from tests.support.redis import running_redis

RANGE = 1000
PEERS = ("redis", "hilo", "sequence")
CROWD_WARM_SECONDS = 3.0
# More interpreters on a few cores would be what is measured.
MOST_PROCESSES = 32
SECTIONS = ("speed", "latency", "crowd", "economy", "peers")


# --- one number -------------------------------------------------------------------------------------------------------


def speed(options: argparse.Namespace) -> dict[str, Any]:
    counter, lock, held = itertools.count(1), threading.Lock(), [0]

    def locked_count() -> int:
        with lock:
            return next(counter)

    def lock_and_increment() -> int:
        with lock:
            held[0] += 1
            return held[0]

    with memory_generator(range_size=RANGE) as ids:
        for _ in range(300_000):
            ids.next_id()
        programs: dict[str, Callable[[], int]] = {
            "next_id": ids.next_id,
            "count_and_lock": locked_count,
            "lock_and_increment": lock_and_increment,
        }
        rounds = 5 if options.quick else 15
        best = dict.fromkeys(programs, float("inf"))
        for _ in range(rounds):  # in turn, so that a busy machine is busy for all
            for name, program in programs.items():
                best[name] = min(best[name], timeit.timeit(program, number=100_000) / 100_000)
    result = {f"{name}_ns": round(seconds * 1e9, 1) for name, seconds in best.items()}
    result["ratio_to_count_and_lock"] = round(best["next_id"] / best["count_and_lock"], 2)
    return result


# --- the slowest number -----------------------------------------------------------------------------------------------


def latency(options: argparse.Namespace, azurite: Azurite) -> dict[str, Any]:
    return {
        f"storage_plus_{late_ms}_ms": _latency(options, azurite.connection_string, late_ms)
        for late_ms in (0, 50, 500)
    }


def _latency(options: argparse.Namespace, connection_string: str, late_ms: int) -> dict[str, Any]:
    threads, per_second = 8, 100_000
    warm_seconds, seconds = (4.0, 2.0) if options.quick else (12.0, 10.0)
    with _proxy(connection_string, late_ms) as address:
        storage = Storage.from_connection_string(address)
        # A range lasts a quarter of a second here instead of ten, so that many refills fall into the time measured.
        ids = storage.sequence(f"late-{late_ms}-{secrets.token_hex(3)}", range_size=RANGE, range_seconds=0.25)
        begins = time.perf_counter() + warm_seconds
        ends = begins + seconds
        timings: list[list[int]] = [[] for _ in range(threads)]

        def work(own: list[int]) -> None:
            burst, pause = 50, 50 * threads / per_second
            due = time.perf_counter()
            while (now := time.perf_counter()) < ends:
                measured = now >= begins
                for _ in range(burst):
                    before = time.perf_counter_ns()
                    ids.next_id()
                    after = time.perf_counter_ns()
                    if measured:
                        own.append(after - before)
                due += pause
                time.sleep(max(0.0, due - time.perf_counter()))

        workers = [threading.Thread(target=work, args=(own,)) for own in timings]
        for worker in workers:
            worker.start()
        time.sleep(max(0.0, begins - time.perf_counter()))
        blocked, grants = ids.blocked_calls, ids.status().grants
        for worker in workers:
            worker.join()
        blocked, grants = ids.blocked_calls - blocked, ids.status().grants - grants
        ids.close()
        storage.close()
    ordered = sorted(itertools.chain.from_iterable(timings))

    def quantile(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1000, 2)

    return {
        "per_second": round(len(ordered) / seconds),
        "p50_us": quantile(0.5),
        "p99_us": quantile(0.99),
        "p999_us": quantile(0.999),
        "max_us": round(ordered[-1] / 1000, 1),
        "refills": grants,
        "blocking_calls": blocked,
    }


@contextmanager
def _proxy(connection_string: str, late_ms: int) -> Iterator[str]:
    """A delaying proxy in a process of its own: its work must not wait for our interpreter's lock."""
    command = [sys.executable, __file__, "--as-proxy", connection_string, str(late_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate("")


def as_proxy(connection_string: str, late_ms: str) -> None:
    with FaultProxy(connection_string) as proxy:
        proxy.always(delayed(int(late_ms) / 1000))
        print(proxy.connection_string, flush=True)
        sys.stdin.read()


# --- a crowd on one counter -------------------------------------------------------------------------------------------


def crowd(options: argparse.Namespace) -> dict[str, Any]:
    """Won writes of 1,000 numbers each, for all alike. The peers keep no ledger, and their servers do the adding.

    The naive loop and Kennel take turns, so that a busy machine is busy for both. The naive loop is on the Azure SDK, as in
    the article; once more with the requests that Kennel signs by hand.
    """
    seconds, turns = (4.0, 1) if options.quick else (8.0, 3)
    kinds = ("naive", "naive_signed_by_hand", "kennel")
    told: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for _ in range(turns):
        for kind in kinds:
            told[kind].append(_alone(kind, 8, seconds))
    result: dict[str, Any] = {f"{kind}_8": _middle(runs) for kind, runs in told.items()}
    for kind in kinds[:2]:
        ratios = [
            ours["won_writes_per_second"] / max(0.1, theirs["won_writes_per_second"])
            for ours, theirs in zip(told["kennel"], told[kind], strict=True)
        ]
        result[f"kennel_to_{kind}_at_8"] = [round(ratio, 2) for ratio in ratios]
    result["kennel_32"] = _alone("kennel", 32, seconds)
    if not options.quick:
        result["kennel_300"] = _alone("kennel", 300, 5 * seconds)
    seconds = min(3.0, seconds)
    with running_redis() as url:
        result["redis_incrby_8"] = _crowd(url, "redis", 8, seconds)
    with running_postgres() as url:
        address = url.replace("postgres://", "postgresql://")
        with connected(address) as connection:
            connection.execute("CREATE TABLE hilo (next bigint NOT NULL)")
            connection.execute("INSERT INTO hilo VALUES (1)")
            connection.execute(f"CREATE SEQUENCE blocks INCREMENT BY {RANGE}")
        result["postgres_hilo_8"] = _crowd(address, "hilo", 8, seconds)
        result["postgres_sequence_of_blocks_8"] = _crowd(address, "sequence", 8, seconds)
    return result


def _middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run in the middle."""
    return sorted(runs, key=lambda run: float(run["won_writes_per_second"]))[len(runs) // 2]


def _alone(kind: str, writers: int, seconds: float) -> dict[str, Any]:
    """With an Azurite of its own: it slows down with what is in it."""
    with Azurite() as azurite:
        return _crowd(azurite.connection_string, kind, writers, seconds)


def _crowd(address: str, kind: str, writers: int, seconds: float) -> dict[str, Any]:
    """Each writer is a process, or one of several in a process if there are many: with a storage, connections and a
    generator's allocator of its own it shares nothing with the others but the processor."""
    name = f"crowd-{secrets.token_hex(4)}"
    ours = kind not in PEERS
    if ours:
        storage = Storage.from_connection_string(address)
        BlobCounterStore(storage, name).try_optimistic_write("1", etag=None, metadata={})
    # Forked: 300 interpreters that import everything would be what is measured.
    fork = multiprocessing.get_context("fork")
    ready, go, answers = fork.Semaphore(0), fork.Event(), fork.SimpleQueue()
    warm = CROWD_WARM_SECONDS if ours else 1.0
    processes = min(writers, MOST_PROCESSES)
    running = [
        fork.Process(
            target=_write_several,
            args=(range(number, writers, processes), kind, address, name, warm, seconds, ready, go, answers),
        )
        for number in range(processes)
    ]
    for process in running:
        process.start()
    for _ in range(writers):
        ready.acquire()
    go.set()
    told = [answers.get() for _ in range(writers)]
    for process in running:
        process.join()
    won, conflicts, requests, contended = (
        sum(each[key] for each in told) for key in ("won", "conflicts", "requests", "contended")
    )
    result = {
        "won_writes_per_second": round(won / seconds, 1),
        "conflicts_per_won_write": round(conflicts / max(1, won), 3),
        "fewest_and_most": [min(each["won"] for each in told), max(each["won"] for each in told)],
        "longest_wait_seconds": round(max(each["longest"] for each in told), 2),
        "longest_wait_of_nine_in_ten": round(sorted(each["longest"] for each in told)[-len(told) // 10], 2),
    }
    if ours:
        result["requests_per_won_write"] = round(requests / max(1, won), 2)
    if kind == "kennel":
        result["contended"] = contended
        result["ledger"] = open_book(storage, name).verify().summary
    return result


def _write_several(writers: range, *args: Any) -> None:
    threads = [threading.Thread(target=_write, args=args) for _ in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _write(
    kind: str, address: str, name: str, warm: float, seconds: float, ready: Any, go: Any, answers: Any
) -> None:
    writer = _Writer(kind, address, name)
    ready.release()
    go.wait()
    writer.work(warm, seconds)
    answers.put(writer.told)


class _Writer:
    """Takes blocks without end; counts once it is warm."""

    def __init__(self, kind: str, address: str, name: str) -> None:
        self.told: dict[str, float] = {}
        self.conflicts = self.contended = 0
        self.requests: Callable[[], int] = lambda: 0
        self.take: Callable[[], bool]
        if kind == "redis":
            client = redis.Redis.from_url(address)
            self.take = lambda: bool(client.incrby(name, RANGE))
        elif kind in ("hilo", "sequence"):
            connection = connected(address)
            query = (
                "UPDATE hilo SET next = next + 1000 RETURNING next"
                if kind == "hilo"
                else "SELECT nextval('blocks')"
            )
            self.take = lambda: connection.execute(query).fetchone() is not None
        else:
            storage = Storage.from_connection_string(address)
            self.requests = lambda: sum(storage.meter.by_operation().values())
            start = {"naive": self._naive, "kennel": self._kennel}.get(kind, self._naive_signed_by_hand)
            self.take = start(storage, name)

    def _naive(self, storage: Storage, name: str) -> Callable[[], bool]:
        blob = storage.blocking.blobs.get_blob_client(storage.config.container("sequences"), name)

        def take() -> bool:
            answer = blob.download_blob()
            data, etag = answer.readall(), answer.properties.etag
            try:
                blob.upload_blob(
                    str(int(data) + RANGE), overwrite=True, etag=etag, match_condition=MatchConditions.IfNotModified
                )  # fmt: skip
            except ResourceModifiedError:
                self.conflicts += 1
                return False
            return True

        return take

    def _naive_signed_by_hand(self, storage: Storage, name: str) -> Callable[[], bool]:
        store = BlobCounterStore(storage, name)

        def take() -> bool:
            read = store.get_data()
            if store.try_optimistic_write(str(int(read.data) + RANGE), etag=read.etag, metadata={}):
                return True
            self.conflicts += 1
            return False

        return take

    def _kennel(self, storage: Storage, name: str) -> Callable[[], bool]:
        store, ledger = BlobCounterStore(storage, name), TableLedger(storage, name)
        allocator = RangeAllocator(name, store, ledger, SequenceConfig(), owner=lambda: owner_of(storage))

        def take() -> bool:
            before = allocator.conflicts
            try:
                allocator.used(allocator.reserve(RANGE))
            except SequenceContended:
                self.contended += 1
                return False
            finally:
                self.conflicts += allocator.conflicts - before
            return True

        return take

    def work(self, warm_seconds: float, seconds: float) -> None:
        since = begins = time.monotonic()
        counted, longest, won = begins + warm_seconds, 0.0, 0
        requests, conflicts, warm = 0, 0, True
        while (now := time.monotonic()) < counted + seconds:
            if warm and now >= counted:
                warm, won, longest, conflicts, requests = False, 0, 0.0, self.conflicts, self.requests()
            if self.take():
                ended = time.monotonic()
                won += ended < counted + seconds
                longest, since = max(longest, ended - since), ended
        longest = max(longest, now - since)  # who was not served to the end has waited, too
        self.told = {
            "won": won, "conflicts": self.conflicts - conflicts, "requests": self.requests() - requests,
            "longest": longest, "contended": self.contended,
        }  # fmt: skip


# --- a quiet client ---------------------------------------------------------------------------------------------------


def economy(options: argparse.Namespace, azurite: Azurite) -> dict[str, Any]:
    """100 numbers/s by default settings; --quick runs ten times as fast, with ranges that last a tenth as long."""
    haste = 10 if options.quick else 1
    ranges = 15 if options.quick else 6
    storage = Storage.from_connection_string(azurite.connection_string)
    with storage.sequence(
        f"quiet-{secrets.token_hex(3)}", range_size=RANGE, range_seconds=12.0 / haste
    ) as ids:
        ids.next_id()
        time.sleep(0.2)
        before, begun = storage.meter.by_operation(), time.perf_counter()
        issued, seconds = 0, ranges * 10.0 / haste
        while (elapsed := time.perf_counter() - begun) < seconds:
            for _ in range(int(elapsed * 100 * haste) - issued):
                ids.next_id()
                issued += 1
            time.sleep(0.01)
        writes = storage.meter.by_operation()["blob.PutBlob"] - before["blob.PutBlob"]
        # What is still to be written down belongs to the bill.
        ids.close()
        sent = {
            key: n - before.get(key, 0)
            for key, n in storage.meter.by_operation().items()
            if n > before.get(key, 0)
        }
    storage.close()
    return {
        "numbers": issued,
        "requests_per_1000": round(sum(sent.values()) / issued * 1000, 2),
        "numbers_per_write": round(issued / max(1, writes)),
        "seconds_per_write_at_100": round(issued / max(1, writes) / 100, 1),
        "requests": sent,
    }


# --- putting it together ----------------------------------------------------------------------------------------------


def show(title: str, value: Any, indent: int = 0) -> None:
    if isinstance(value, dict):
        print(f"{'  ' * indent}{title}")
        for key, entry in value.items():
            show(str(key), entry, indent + 1)
    else:
        text = f"{value:,}" if isinstance(value, int) else str(value)
        print(f"{'  ' * indent}{title:<{38 - 2 * indent}} {text:>16}")


def main() -> None:
    if sys.argv[1:2] == ["--as-proxy"]:
        return as_proxy(*sys.argv[2:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="about a minute and a half")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    options = parser.parse_args()
    wanted = options.only.split(",")
    programs: dict[str, Callable[[Azurite], dict[str, Any]]] = {
        "speed": lambda _: speed(options),
        "latency": lambda azurite: latency(options, azurite),
        "crowd": lambda _: crowd(options),
        "economy": lambda azurite: economy(options, azurite),
        "peers": lambda _: peers(1.0 if options.quick else 3.0, RANGE),
    }
    result: dict[str, Any] = {}
    for section in wanted:
        with Azurite() as azurite:  # a fresh one each: it slows down with what is in it
            result[section] = programs[section](azurite)
        show(section, result[section])
    if options.json:
        print(json.dumps(result))
    return None


if __name__ == "__main__":
    main()
