"""Starts the demo, prints how to use it, and looks after it until somebody ends it.

Needs neither Django nor the Azure SDK: to load them takes as long as half the start, and the dashboard's own process loads them.
"""

from __future__ import annotations

import argparse
import signal
import sqlite3
import sys
import tempfile
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dashboard.demo import running
from dashboard.demo.stack import PROJECT, DemoFailed, Stack

FOLDER = PROJECT / ".kennel" / "demo"
STORAGE_PORTS = (10000, 10001, 10002)
SCALE_TO = 8
MOST_WORKERS = 32
WAVE_ORDERS = 1500


@dataclass(frozen=True)
class Options:
    """What to start. `scale_to` None: a scaling agent with the default maximum; with `json`: none.

    Raises ValueError for numbers that make no sense.
    """

    json: bool = False
    workers: int = 4
    scale_to: int | None = None
    orders: int = 2000
    without_hub: bool = False
    quiet: bool = False
    story: bool = False
    port: int = 8000

    def __post_init__(self) -> None:
        if self.workers < 1 or self.orders < 1:
            raise ValueError("--workers and --orders must be at least 1")
        if self.scale_to is not None and not self.workers <= self.scale_to <= MOST_WORKERS:
            raise ValueError(f"--scale-to must be between --workers and {MOST_WORKERS}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the demo, one for each field of `Options`."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="use free ports and fresh storage, and print one line of JSON when ready",
    )
    parser.add_argument("--workers", type=int, default=4, help="workers to start (default 4)")
    parser.add_argument(
        "--scale-to",
        type=int,
        help="maximum number of workers for the scaling agent (default 8; with --auto and --json: no agent)",
    )
    parser.add_argument("--orders", type=int, default=2000, help="orders to send (default 2,000)")
    parser.add_argument("--without-hub", action="store_true", help="workers poll and have no socket")
    parser.add_argument(
        "--quiet", action="store_true", help="orders alone: no waves, shop, batches, past or tour"
    )
    parser.add_argument(
        "--story", action="store_true", help="with --json: the shop, batches, past and tour, too"
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="port of the dashboard; the next free one if it is taken"
    )


def start(options: Options) -> None:
    """Start the demo and look after it until SIGINT or SIGTERM. Raises `DemoFailed` or `AzuriteError` if it does not start."""
    if options.json:
        with tempfile.TemporaryDirectory(prefix="kennel-") as folder:
            stack = Stack(
                Path(folder),
                note,
                is_temporary=True,
                hub=not options.without_hub,
                scale_to=options.scale_to or 0,
                story=options.story,
            )
            _serve(stack, options)
        return
    if already := running.running_in(FOLDER):
        raise DemoFailed(
            f"a demo runs here already (process {already['demo']}): end it with Ctrl-C first; "
            "`manage.py demo --json` starts another one beside it"
        )
    stack = Stack(
        FOLDER,
        note,
        port=options.port,
        storage_ports=STORAGE_PORTS,
        hub=not options.without_hub,
        scale_to=options.scale_to or max(SCALE_TO, options.workers),
        story=not options.quiet,
    )
    _serve(stack, options)


def note(text: str) -> None:
    """Progress, beside the output."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _serve(stack: Stack, options: Options) -> None:
    """Start everything, print how to use it, and look after it until SIGINT or SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    signal.signal(signal.SIGUSR1, lambda *_: running.note_new_worker(stack))
    try:
        stack.start(workers=options.workers)
        first = _orders_so_far(stack) + 1
        if options.json:
            stack.start_producer(orders=options.orders, first=first)
            if stack.story:
                stack.start_story()
            _say(msgspec.json.encode(stack.describe()).decode())
        else:
            wave = WAVE_ORDERS if stack.story else 0
            stack.start_producer(orders=1_000_000, first=first, every_seconds=0.1, wave=wave)
            if stack.story:
                stack.start_story()
            _say(welcome(stack))
        while not ended.wait(0.5):
            stack.supervise()
            running.publish(stack)
    finally:
        note("Stopping …")
        running.forget(stack)
        stack.stop()
        note("Everything has stopped.")


def welcome(stack: Stack) -> str:
    """Where the demo is, for whom, and what to do there."""
    lines = ["", f"  Kennel runs at {stack.url}", ""]
    lines += [f"    {user.role:<9} {user.name:<6} {user.password}" for user in stack.credentials.users]
    lines += [
        "",
        "  Sign in as the operator and press Unleash: the waiting workers go, orders get their numbers.",
        *(["  A guided tour in five steps is at the top of the page."] if stack.story else []),
        "  Then, in another terminal:",
        "    .venv/bin/python manage.py demo burst          1,500 orders at once: see the Scaling page add workers",
        "    .venv/bin/python manage.py demo add-worker     one more worker joins",
        "    .venv/bin/python manage.py demo kill-leader    kill -9 the worker that leads; another takes over",
        "    .venv/bin/python manage.py demo cut-hub        kill the dashboard; it is back in 5 s, orders go on",
        "  Ctrl-C here stops everything; the next start goes on with the same data.",
        "",
    ]
    return "\n".join(lines)


def _orders_so_far(stack: Stack) -> int:
    """The number of the last order put by earlier runs, so that order ids go on."""
    if not stack.orders_database.exists():
        return 0
    with closing(sqlite3.connect(stack.orders_database)) as connection:
        row = connection.execute("SELECT max(order_id) FROM orders WHERE order_id LIKE 'order-%'").fetchone()
    return int(row[0].removeprefix("order-")) + 10_000 if row and row[0] else 0
