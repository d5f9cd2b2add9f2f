"""A dashboard as a process of its own, people who sign in to it, and bare workers on its socket."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import requests
import websockets
from requests.adapters import HTTPAdapter
from urllib3.util import Retry
from websockets.asyncio.client import ClientConnection, connect

from coordinator.realtime import protocol
from coordinator.realtime.bus import Notification
from coordinator.realtime.protocol import FromHub, FromWorker, GateStatus, Hello, State, WorkerState

from .ports import free_port, wait_until_listening
from .processes import run_program, start_server, stop_server

PROJECT = Path(__file__).resolve().parents[2]
TOKEN = "kw_test_0123456789_0123456789_0123456789"
PASSWORD = "correct horse battery"
USERS = {"vera": "viewer", "olga": "operator", "otto": "operator", "adam": "admin"}
START_SECONDS = 40.0
OPEN_SECONDS = 60.0

T = TypeVar("T")


@dataclass
class Dashboard:
    """One dashboard process (or several on one database, made with `sibling`)."""

    folder: Path
    connection_string: str
    prefix: str
    extra: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    server: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def hub_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws/workers/"

    @property
    def log(self) -> Path:
        return self.folder / f"dashboard-{self.port}.log"

    @property
    def env(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("KENNEL_", "AZURE_"))}
        return {
            **kept,
            "AZURE_STORAGE_CONNECTION_STRING": self.connection_string,
            "KENNEL_PREFIX": self.prefix,
            "KENNEL_SECRET_KEY": "a key of the tests " * 3,
            "DATABASE_URL": f"sqlite:///{self.folder / 'dashboard.sqlite3'}",
            "PYTHONPATH": str(PROJECT),
            "PYTHONWARNINGS": "default",
            "DJANGO_SETTINGS_MODULE": "tests.support.quick_settings",
            **self.extra,
        }

    def manage(self, *arguments: str, code: str = "", seconds: float = 90) -> str:
        """Run manage.py, or Python code with Django set up; returns what it printed."""
        command = [sys.executable, "-m", "manage", *arguments]
        if code:
            command = [sys.executable, "-c", f"import django; django.setup()\n{code}"]
        done = run_program(command, env=self.env, seconds=seconds)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def prepare(self) -> Self:
        """The database with users and a worker token."""
        if "DATABASE_URL" in self.extra:
            self.manage(code=_PREPARE)
        else:
            shutil.copyfile(_prepared(), self.folder / "dashboard.sqlite3")
        return self

    def start(self) -> Self:
        command = [sys.executable, "-m", "uvicorn", "dashboard.asgi:application", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--lifespan", "on", "--no-access-log"]
        command += self.server
        self.process = start_server(command, log=self.log, env=self.env)
        if not wait_until_listening(self.port, timeout_seconds=START_SECONDS):
            self.stop()
            raise AssertionError(f"the dashboard did not start:\n{self.said()[-4000:]}")
        return self

    def stop(self, *, kill: bool = False) -> None:
        process, self.process = self.process, None
        if process is not None:
            if kill:
                process.kill()
            stop_server(process)

    def sibling(self, **extra: str) -> Dashboard:
        """Another process on the same database, not yet started."""
        return Dashboard(self.folder, self.connection_string, self.prefix, self.extra | extra)

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def ready(self) -> dict[str, Any]:
        answer: dict[str, Any] = requests.get(f"{self.url}/readyz", timeout=10).json()
        return answer

    def __enter__(self) -> Self:
        return self.prepare().start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is not None and self.log.exists():
            print(self.said()[-6000:])


_PREPARE = f"""
from django.core.management import call_command
from django.contrib.auth.models import Group, User
from django.contrib.auth.hashers import make_password
from dashboard.core import tokens
call_command("migrate", verbosity=0)
secret = make_password({PASSWORD!r})
for name, role in {USERS!r}.items():
    user, _ = User.objects.get_or_create(username=name, defaults={{"password": secret}})
    user.groups.set([Group.objects.get(name=role)])
tokens.create("tests", token={TOKEN!r})
"""


@functools.cache
def _prepared() -> Path:
    """A database as `prepare` leaves it, made once."""
    folder = Path(tempfile.mkdtemp(prefix="kennel-prepared-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = Dashboard(folder, "UseDevelopmentStorage=true", "prepared-")
    made.manage(code=_PREPARE)
    made.manage(
        code="from django.db import connection\nconnection.cursor().execute('PRAGMA wal_checkpoint(TRUNCATE)')"
    )
    return folder / "dashboard.sqlite3"


class Person:
    """Somebody signed in, with a browser's manners and no scripts."""

    def __init__(self, dashboard: Dashboard, name: str) -> None:
        self.dashboard, self.name = dashboard, name
        self.http = requests.Session()
        # As a browser does: a kept connection that the server has closed meanwhile is opened again.
        self.http.mount(dashboard.url, HTTPAdapter(max_retries=Retry(total=2, allowed_methods=["GET"])))

    def __enter__(self) -> Self:
        answer = self.post(
            "/accounts/login/", {"username": self.name, "password": PASSWORD}, page="/accounts/login/"
        )
        assert "sessionid" in self.http.cookies, answer.text[:2000]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    def get(self, path: str) -> requests.Response:
        return self.http.get(self.dashboard.url + path, timeout=20)

    def post(
        self, path: str, data: dict[str, str] | None = None, *, page: str = "/gates/"
    ) -> requests.Response:
        """Post with the token of the page's form."""
        return self.send(path, self.form(page), data, page=page)

    def form(self, page: str) -> str:
        """The token of the page's form."""
        found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', self.get(page).text)
        return found[1] if found else self.http.cookies.get("csrftoken", "")

    def send(
        self, path: str, token: str, data: dict[str, str] | None = None, *, page: str = "/gates/"
    ) -> requests.Response:
        """Post with a form's token."""
        fields = {**(data or {}), "csrfmiddlewaretoken": token}
        headers = {"Referer": self.dashboard.url + page}
        return self.http.post(self.dashboard.url + path, data=fields, headers=headers, timeout=20)

    def frame(self, action: str, target: str, **more: Any) -> str:
        """An act as the page's socket takes it."""
        token = self.http.cookies.get("csrftoken", "")
        return json.dumps({"action": action, "target": target, "csrf": token, **more})

    def socket(self, page: str = "overview", *, origin: str = "", query: str = "") -> connect:
        """The page's socket."""
        cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in self.http.cookies)
        url = f"{self.dashboard.url.replace('http', 'ws')}/ws/operators/?page={page}{query}"
        return connect(
            url,
            origin=websockets.Origin(origin or self.dashboard.url),
            additional_headers={"Cookie": cookies},
            max_size=2**24,
            open_timeout=OPEN_SECONDS,
        )


class BareWorker:
    """A worker's end of the socket and nothing behind it: says exactly what a test lets it say."""

    def __init__(self, dashboard: Dashboard, name: str, *, prefix: str = "", token: str = TOKEN) -> None:
        self.dashboard, self.name, self.token = dashboard, name, token
        self.instance, self.secret = uuid.uuid4().hex, uuid.uuid4().hex
        self.prefix = prefix or dashboard.prefix
        self.state = WorkerState()
        self.heard: list[FromHub] = []
        self.heard_at: list[float] = []
        self.closed: tuple[int, str] | None = None
        self._socket: ClientConnection | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def hello(self) -> Hello:
        return Hello(
            version=protocol.VERSION,
            worker=self.name,
            instance=self.instance,
            host="test",
            pid=os.getpid(),
            started_at=time.time(),
            software="kennel tests",
            prefix=self.prefix,
            state=self.state,
            secret=self.secret,
        )

    async def __aenter__(self) -> Self:
        self._socket = await connect(
            self.dashboard.hub_url,
            additional_headers={"Authorization": f"Bearer {self.token}"},
            subprotocols=[websockets.Subprotocol(protocol.SUBPROTOCOL)],
            compression=None,
            open_timeout=OPEN_SECONDS,
            ping_interval=None,
        )
        await self.send(self.hello())
        self._tasks = [asyncio.create_task(self._listen())]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self._socket is not None
        await self._socket.close()

    def stop_reading(self) -> None:
        """Take nothing any more, and let the kernel take little."""
        assert self._socket is not None
        own: socket.socket = self._socket.transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.transport.pause_reading()

    def beat(self, every_seconds: float = 0.5) -> None:
        """Send heartbeats from now on."""

        async def run() -> None:
            while True:
                await self.send(State(self.state))
                await asyncio.sleep(every_seconds)

        self._tasks.append(asyncio.create_task(run()))

    async def wait_at(self, gate: str) -> None:
        self.state = WorkerState(gates=(GateStatus(gate, "closed", waiting=True),))
        await self.send(State(self.state))

    async def send(self, message: FromWorker | str) -> None:
        assert self._socket is not None
        await self._socket.send(message if isinstance(message, str) else protocol.encode(message))

    async def _listen(self) -> None:
        assert self._socket is not None
        try:
            async for frame in self._socket:
                # The time first: whoever looks from another thread finds one for each that was heard.
                self.heard_at.append(time.perf_counter())
                self.heard.append(protocol.decode_from_hub(frame))
        except websockets.ConnectionClosed:
            pass
        self.closed = (self._socket.close_code or 0, self._socket.close_reason or "")

    def hints(self, topic: str) -> list[Notification]:
        """What it was told of that topic. Of others it hears, too: queues of other tests in the same account."""
        told = (message.hint for message in self.heard if isinstance(message, protocol.Hinted))
        return [hint for hint in told if hint.topic == topic]

    def opened_at(self, gate: str, since: float) -> float | None:
        """When it heard first that the gate is open, after `since` (both of `time.perf_counter`)."""
        opened = None
        for number in range(len(self.heard) - 1, -1, -1):
            at, message = self.heard_at[number], self.heard[number]
            if at < since:
                break
            if isinstance(message, protocol.Hinted) and message.hint.topic == f"gate:{gate}":
                opened = at if '"open"' in message.hint.state else opened
        return opened


async def until(condition: Callable[[], T], *, seconds: float = 60.0, what: str = "") -> T:
    """Look until it is true; fails after a while, saying what was last seen."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, what or f"did not become true in {seconds} s: {value!r}"
        await asyncio.sleep(0.05)


def audit_of(dashboard: Dashboard) -> list[dict[str, Any]]:
    """All rows of the audit, oldest first."""
    out = dashboard.manage(
        code="import json\nfrom dashboard.models import AuditRow\n"
        "print(json.dumps(list(AuditRow.objects.order_by('id').values())))"
    )
    rows: list[dict[str, Any]] = json.loads(out)
    return rows
