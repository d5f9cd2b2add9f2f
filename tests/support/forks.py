"""Python programs that begin with their libraries imported already: more than a second of each start of a dashboard saved.

A process that has imported them, and nothing of the dashboard, forks for each program. That has arguments, environment, session
and log of its own, imports the dashboard's modules itself, and is a child of the tests as if they had started it. Where forking is not
to be had, what is to be started is no Python module, or a benchmark starts it, it is started as usual.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_asking = threading.Lock()

# What a dashboard and a worker import; none of these reads settings or the environment, or starts a thread. Of Kennel only the
# library that users import, which does neither, and makes no name or random number before it is used.
LIBRARIES = """
    aiohttp annotated_types anyio.from_thread asgiref.sync azure.core.pipeline.policies
    azure.core.tracing.decorator azure.data.tables.aio azure.identity azure.storage.blob.aio
    azure.storage.queue.aio channels.consumer channels.layers channels.routing click coordinator.public
    croniter cryptography.fernet django.conf.urls django.contrib.sessions.backends.base
    django.contrib.staticfiles django.core.asgi django.core.cache django.core.management django.core.paginator
    django.core.serializers django.core.signing django.db.backends.base.schema django.db.backends.sqlite3.base
    django.db.migrations.autodetector django.db.migrations.executor django.db.models django.forms django.http
    django.middleware.csrf django.template.backends.django django.template.loader_tags
    django.templatetags.i18n django.urls django.utils.autoreload django.views.debug django.views.generic
    fido2.server jinja2 msgspec prometheus_client psutil pydantic.dataclasses pydantic.json_schema
    pydantic.networks pydantic_core.core_schema redis.asyncio requests sqlparse unittest.mock
    uvicorn.lifespan.on uvicorn.logging uvicorn.loops.auto uvicorn.main uvicorn.protocols.http.auto
    uvicorn.protocols.http.h11_impl uvicorn.protocols.http.httptools_impl uvicorn.protocols.websockets.auto
    uvicorn.protocols.websockets.websockets_sansio_impl websockets.asyncio.client websockets.asyncio.server
    whitenoise xml.dom.minidom
"""


class Forked(subprocess.Popen[bytes]):
    """What `subprocess.Popen` is for a process that was started by it."""

    def __init__(self, command: Sequence[str], pid: int) -> None:
        self._waitpid_lock = threading.Lock()
        self._input: None = None
        self._child_created = True
        self._communication_started = False
        self.args, self.pid = command, pid
        self.stdin = self.stdout = self.stderr = None
        self.returncode: int | None = None  # type: ignore[assignment]
        self._sigint_wait_secs = 0.25


def start_forked(
    command: Sequence[str], *, output: Path, errors: Path, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts `python -m module …` or `python -c code` in a new session; its words go to the ends of these files."""
    what = {"command": [*command[1:]], "output": str(output), "errors": str(errors), "env": dict(env)}
    # What Python reads when it starts cannot be told to a process that runs.
    python = tuple(sorted((name, value) for name, value in env.items() if name.startswith("PYTHON")))
    with _asking:
        forker = _forker(python)
        assert forker.stdin is not None and forker.stdout is not None
        # The first process forks one that forks the program and ends, so that the program becomes ours.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            forker.stdin.write(
                json.dumps(what | {"cwd": os.getcwd(), "parent": os.getpid()}).encode() + b"\n"
            )
            forker.stdin.flush()
            pid = int(forker.stdout.readline())
        finally:
            _prctl(_PR_SET_CHILD_SUBREAPER, 0)
    return Forked(command, pid)


def can_fork(command: Sequence[str | Path]) -> bool:
    """Whether `start_forked` takes that command."""
    return (
        sys.platform == "linux"
        and "PYTEST_VERSION" in os.environ
        and len(command) > 2
        and command[0] == sys.executable
        and command[1] in ("-m", "-c")
        and "COVERAGE_PROCESS_CONFIG" not in os.environ
    )


@functools.cache
def _forker(python: tuple[tuple[str, str], ...]) -> subprocess.Popen[bytes]:
    # Without settings: a library that read some would fail, and not hand them down.
    own = ("PYTHON", "DJANGO", "KENNEL", "AZURE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    forker = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forks"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=kept | dict(python),
        start_new_session=True,
    )
    atexit.register(_end, forker)
    return forker


def _end(forker: subprocess.Popen[bytes]) -> None:
    with forker:
        forker.kill()


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


def _fork_for_each_line() -> dict[str, Any]:
    """Returns in each program's process, with what it is to run. Ends with whoever asks."""
    for line in sys.stdin.buffer:
        told, tell = os.pipe()
        if (between := os.fork()) == 0:
            if pid := os.fork():
                os.write(tell, b"%d\n" % pid)
                os._exit(0)
            os.close(told)
            os.close(tell)
            what: dict[str, Any] = json.loads(line)
            return what
        os.close(tell)
        os.waitpid(between, 0)
        os.write(1, os.read(told, 20))
        os.close(told)
    sys.exit()


def _become(what: dict[str, Any]) -> None:
    """The program's own session, words and environment."""
    os.setsid()
    for place, (path, how) in enumerate(
        [
            (os.devnull, os.O_RDONLY),
            *((what[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("output", "errors")),
        ]
    ):
        opened = os.open(path, how, 0o666)
        os.dup2(opened, place)
        os.close(opened)
    while os.getppid() != what["parent"]:  # until the one between has ended
        time.sleep(0.001)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.environ.clear()
    os.environ.update(what["env"])
    os.chdir(what["cwd"])


def _run(command: list[str]) -> None:
    how, program, *arguments = command
    sys.argv = [program if how == "-m" else "-c", *arguments]
    if how == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - `python -c`


if __name__ == "__main__":
    for library in LIBRARIES.split():
        importlib.import_module(library)
    gc.collect()
    gc.freeze()
    asked = _fork_for_each_line()
    _become(asked)
    _run(asked["command"])
