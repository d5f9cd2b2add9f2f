"""Child processes that never outlive the demo."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1


@dataclass
class DemoProcess:
    """One process of the demo; its output goes to `log`."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def stop(self, seconds: float = 20.0) -> None:
        """Ask, wait, then kill. Harmless if it has ended."""
        if self.is_running:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def tail(self, lines: int = 15) -> str:
        """The last lines of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def start(
    name: str, command: Sequence[str], *, env: Mapping[str, str], folder: Path, cwd: Path
) -> DemoProcess:
    """Start a process that ends when this one does, however this one ends."""
    log = folder / f"{name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the demo, which then ends its parts in order
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    return DemoProcess(name, process, log)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        os._exit(1)
