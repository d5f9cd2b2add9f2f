"""``manage.py demo``: the whole product on this machine."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandError, CommandParser

from coordinator.testing.azurite import AzuriteError
from dashboard.demo import auto, control
from dashboard.demo.stack import DemoFailed, Stack
from dashboard.demo.start import FOLDER, Options, add_arguments, note, start


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
        add_arguments(parser)
        parser.add_argument(
            "--seconds", type=float, default=300.0, help="with --auto: maximum seconds for all orders"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            wanted = Options(**{name: options[name] for name in Options.__dataclass_fields__})
            if options["what"] != "start":
                self.stdout.write(control.send(FOLDER, options["what"]))
            elif not options["auto"]:
                start(wanted)
            elif wanted.scale_to:
                raise CommandError("--auto runs a fixed number of workers: leave out --scale-to")
            else:
                self._auto(wanted, options["seconds"])
        except (ValueError, DemoFailed, AzuriteError) as error:
            raise CommandError(str(error)) from error

    def _auto(self, options: Options, seconds: float) -> None:
        folder = Path(tempfile.mkdtemp(prefix="kennel-"))
        stack = Stack(folder, note, is_temporary=True, hub=not options.without_hub)
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            verdict = auto.run(stack, workers=options.workers, orders=options.orders, seconds=seconds)
        finally:
            stack.stop()
        shutil.rmtree(folder)
        self.stdout.write(msgspec.json.encode(verdict).decode())
        if not verdict["ok"]:
            sys.exit(1)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
