"""Several processes of one command, kept and, if asked for, restarted when its code changes."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

import click

log = logging.getLogger(__name__)
LOOK_SECONDS = 0.25
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """For `preexec_fn`: the process gets SIGTERM when its parent ends, however that ended. Linux only."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        os._exit(1)


def spawn(
    command: Sequence[str], environ: Mapping[str, str], output: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """A process out of reach of the terminal's Ctrl-C, which ends with this one. Its output goes to `output`, if given."""
    return subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output and subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=die_with_parent if sys.platform == "linux" else None,
    )


@contextlib.contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Supervisor:
    """Keeps `count` processes of `command` until SIGTERM or Ctrl-C, then stops them and waits for all.

    One that ended by itself is started again after a pause of 0.5 to 30 s, twice as long each time. With `name`, each gets it as
    ``KENNEL_WORKER_NAME``, with a number if there are several.
    """

    def __init__(self, command: Sequence[str], count: int, *, name: str = "") -> None:
        self._command = list(command)
        self._count = count
        self._name = name
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._starts: dict[int, tuple[float, float]] = {}

    def run(self, *, watched: Path | None = None) -> None:
        """Runs until stopped; with `watched`, restarts all when a Python file below that folder changes."""
        with stop_signals() as stop:
            changes = _changes(watched, stop) if watched else _ticks(stop)
            try:
                self._keep()
                for changed in changes:
                    if changed:
                        click.echo(f"Changed: {', '.join(changed)}; restarting.", err=True)
                        self._end()
                        self._starts.clear()
                    self._keep()
            finally:
                self._end()

    def _keep(self) -> None:
        now = time.monotonic()
        for number in range(self._count):
            child = self._children.get(number)
            if child is not None and child.poll() is None:
                continue
            due, pause = self._starts.get(number, (now, FIRST_PAUSE_SECONDS / 2))
            if child is not None:
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                log.warning(
                    "Process %d ended with code %s; starting it again in %.1f s",
                    number + 1,
                    child.returncode,
                    pause,
                    extra={"action": "restart"},
                )
                del self._children[number]
                self._starts[number] = (now + pause, pause)
            elif now >= due:
                self._starts[number] = (now, pause)
                self._children[number] = spawn(self._command, self._environ(number))

    def _environ(self, number: int) -> dict[str, str]:
        if not self._name:
            return dict(os.environ)
        name = self._name if self._count == 1 else f"{self._name}-{number + 1}"
        return {**os.environ, "KENNEL_WORKER_NAME": name}

    def _end(self) -> None:
        for child in self._children.values():
            if child.poll() is None:
                child.terminate()
        for child in self._children.values():
            child.wait()
        self._children.clear()


def _ticks(stop: threading.Event) -> Iterator[list[str]]:
    while not stop.wait(LOOK_SECONDS):
        yield []


def _changes(folder: Path, stop: threading.Event) -> Iterator[list[str]]:
    """The names of the Python files that changed, every now and then none."""
    try:
        import watchfiles
    except ImportError as error:
        raise click.ClickException(
            "--reload needs watchfiles: pip install 'kennel-coordinator[reload]'"
        ) from error
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    found = watchfiles.watch(
        folder,
        watch_filter=watchfiles.PythonFilter(ignore_paths=[folder / ".kennel"]),
        stop_event=stop,
        yield_on_timeout=True,
        rust_timeout=int(LOOK_SECONDS * 1000),
        debounce=400,
        raise_interrupt=False,
    )
    for changes in found:
        yield sorted({str(Path(path).relative_to(folder)) for _, path in changes})
