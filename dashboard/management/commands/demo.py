"""``manage.py demo``: the whole product on this machine."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandError, CommandParser

from coordinator.testing.azurite import AzuriteError
from dashboard.demo import auto, control
from dashboard.demo.stack import PROJECT, DemoFailed, Stack

FOLDER = PROJECT / ".kennel" / "demo"
STORAGE_PORTS = (10000, 10001, 10002)
SCALE_TO = 8
MOST_WORKERS = 32
WAVE_ORDERS = 1500


class Command(BaseCommand):
    help = (
        "Start Azurite, the dashboard, workers that wait at a gate, and a producer of orders. "
        "With burst, add-worker, kill-leader or cut-hub: act on the running demo."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("what", nargs="?", default="start", choices=["start", *control.COMMANDS])
        parser.add_argument(
            "--auto", action="store_true", help="run to the end without a person, and print the result"
        )
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
        parser.add_argument(
            "--seconds", type=float, default=300.0, help="with --auto: maximum seconds for all orders"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["workers"] < 1 or options["orders"] < 1:
            raise CommandError("--workers and --orders must be at least 1")
        if options["scale_to"] is not None and not options["workers"] <= options["scale_to"] <= MOST_WORKERS:
            raise CommandError(f"--scale-to must be between --workers and {MOST_WORKERS}")
        if options["auto"] and options["scale_to"]:
            raise CommandError("--auto runs a fixed number of workers: leave out --scale-to")
        try:
            if options["what"] != "start":
                self.stdout.write(control.send(FOLDER, options["what"]))
            elif options["auto"]:
                self._auto(options)
            elif options["json"]:
                with tempfile.TemporaryDirectory(prefix="kennel-") as folder:
                    stack = Stack(
                        Path(folder),
                        self._note,
                        is_temporary=True,
                        hub=not options["without_hub"],
                        scale_to=options["scale_to"] or 0,
                        story=options["story"],
                    )
                    self._serve(stack, options)
            else:
                if running := control.running_in(FOLDER):
                    raise DemoFailed(
                        f"a demo runs here already (process {running['demo']}): end it with Ctrl-C first; "
                        "`manage.py demo --json` starts another one beside it"
                    )
                stack = Stack(
                    FOLDER,
                    self._note,
                    port=options["port"],
                    storage_ports=STORAGE_PORTS,
                    hub=not options["without_hub"],
                    scale_to=options["scale_to"] or max(SCALE_TO, options["workers"]),
                    story=not options["quiet"],
                )
                self._serve(stack, options)
        except (DemoFailed, AzuriteError) as error:
            raise CommandError(str(error)) from error

    def _note(self, text: str) -> None:
        self.stderr.write(text, str)
        self.stderr.flush()

    def _auto(self, options: dict[str, Any]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="kennel-"))
        stack = Stack(folder, self._note, is_temporary=True, hub=not options["without_hub"])
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            verdict = auto.run(
                stack, workers=options["workers"], orders=options["orders"], seconds=options["seconds"]
            )
        finally:
            stack.stop()
        shutil.rmtree(folder)
        self.stdout.write(msgspec.json.encode(verdict).decode())
        if not verdict["ok"]:
            sys.exit(1)

    def _serve(self, stack: Stack, options: dict[str, Any]) -> None:
        """Start everything, print how to use it, and look after it until SIGINT or SIGTERM."""
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        signal.signal(signal.SIGUSR1, lambda *_: control.note_new_worker(stack))
        try:
            stack.start(workers=options["workers"])
            first = _orders_so_far(stack) + 1
            if options["json"]:
                stack.start_producer(orders=options["orders"], first=first)
                if stack.story:
                    stack.start_story()
                self.stdout.write(msgspec.json.encode(stack.describe()).decode())
                self.stdout.flush()
            else:
                wave = WAVE_ORDERS if stack.story else 0
                stack.start_producer(orders=1_000_000, first=first, every_seconds=0.1, wave=wave)
                if stack.story:
                    stack.start_story()
                self._welcome(stack)
            while not ended.wait(0.5):
                stack.supervise()
                control.publish(stack)
        finally:
            self._note("Stopping …")
            control.forget(stack)
            stack.stop()
            self._note("Everything has stopped.")

    def _welcome(self, stack: Stack) -> None:
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
        self.stdout.write("\n".join(lines))
        self.stdout.flush()


def _orders_so_far(stack: Stack) -> int:
    """The number of the last order put by earlier runs, so that order ids go on."""
    if not stack.orders_database.exists():
        return 0
    with closing(sqlite3.connect(stack.orders_database)) as connection:
        row = connection.execute("SELECT max(order_id) FROM orders WHERE order_id LIKE 'order-%'").fetchone()
    return int(row[0].removeprefix("order-")) + 10_000 if row and row[0] else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
