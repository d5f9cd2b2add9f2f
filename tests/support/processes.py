"""Server processes that end with the tests, however those end."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

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


def stop_server(process: subprocess.Popen[bytes], *, signal_number: int = signal.SIGTERM) -> None:
    """Asks it to end, then kills it. Harmless if it has ended."""
    if process.poll() is None:
        process.send_signal(signal_number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
