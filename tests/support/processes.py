"""Server processes that end with the tests, however those end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .forks import can_fork, start_forked

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def start_server(
    command: Sequence[str | Path],
    *,
    log: Path,
    user: int | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a server whose words go to `log`, as `user` (an id) if given. Call it from the main thread:
    on Linux the server is told to end when the thread that started it ends."""
    if user is None and can_fork(command):
        log.touch()  # the child opens it, a moment later
        return start_forked(
            [*map(str, command)], output=log, errors=log, env=os.environ if env is None else env
        )
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=env,
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def run_program(
    command: Sequence[str], *, env: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` does with captured words, for a Python program."""
    if not can_fork(command):
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    with tempfile.TemporaryDirectory(prefix="kennel-words-") as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        with start_forked(command, output=output, errors=errors, env=env) as process:
            try:
                process.wait(seconds)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(
            command, process.returncode, output.read_text(), errors.read_text()
        )


def stop_server(process: subprocess.Popen[bytes], *, signal_number: int = signal.SIGTERM) -> None:
    """Asks it to end, then kills it. Harmless if it has ended."""
    if process.poll() is None:
        process.send_signal(signal_number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
