"""The whole product as a user starts it, for tests: ``make demo`` with ``--json`` and what its line of JSON tells."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
import requests

from dashboard.demo.stack import Stack

PROJECT = Path(__file__).resolve().parents[2]
# No process of the demo speaks TLS: none need read all authorities of this machine, twice, when it starts.
QUICK = {"DJANGO_SETTINGS_MODULE": "tests.support.quick_settings", "SSL_CERT_FILE": os.devnull}
T = TypeVar("T")


def wait_until(ready: Callable[[], T], what: str, seconds: float = 60.0) -> T:
    """Poll a condition of other processes; fails naming what did not come true."""
    deadline = time.monotonic() + seconds
    while not (result := ready()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:.0f} s it is still not true that {what}")
        time.sleep(0.05)
    return result


class LiveStack:
    """A running demo. Its parts are real processes that a test may kill or stop."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.url: str = told["url"]
        self.users: dict[str, dict[str, str]] = {user["role"]: user for user in told["users"]}
        self.connection_string: str = told["connection_string"]
        self.worker_pids: list[int] = told["pids"]["workers"]
        self.azurite_pid: int = told["pids"]["azurite"]
        self.dashboard_pid: int = told["pids"]["dashboard"]
        self.hub_url: str = told["hub_url"]
        self.worker_token: str = told["worker_token"]
        self.folder = Path(told["folder"])
        self.pids: dict[str, Any] = told["pids"]
        self.stopped: list[int] = []

    def sign_in(self, role: str = "operator") -> Visitor:
        """A signed-in visitor without JavaScript."""
        return Visitor(self.url, self.users[role]["name"], self.users[role]["password"])

    def orders(self) -> tuple[int, int]:
        """How many different orders and numbers are in the table."""
        with closing(sqlite3.connect(self.folder / "orders.sqlite3", timeout=30)) as connection:
            try:
                row = connection.execute(
                    "SELECT count(DISTINCT order_id), count(DISTINCT number) FROM orders"
                ).fetchone()
            except sqlite3.OperationalError:
                return 0, 0
        return int(row[0]), int(row[1])

    def said(self, part: str, action: str) -> list[dict[str, Any]]:
        """The log lines of a worker with that action."""
        lines = []
        for text in (self.folder / f"{part}.log").read_text(errors="replace").splitlines():
            if text.startswith("{") and text.endswith("}"):
                line = json.loads(text)
                if line.get("action") == action:
                    lines.append(line)
        return lines

    def wait_for_workers(self, count: int) -> None:
        """Return when that many workers wait at the gate."""
        names = [f"orders-{n + 1}" for n in range(count)]
        wait_until(lambda: all(self.said(name, "wait") for name in names), "all workers wait at the gate")

    def wait_for_orders(self, count: int, seconds: float = 120.0) -> None:
        """Return when that many orders are in the table."""
        wait_until(lambda: self.orders()[0] >= count, f"{count} orders are in the table", seconds)

    def verify_ledger(self, *options: str) -> subprocess.CompletedProcess[str]:
        """What ``ids verify`` says."""
        return subprocess.run(
            [sys.executable, "-m", "coordinator", "ids", "verify", "orders", *options],
            env=os.environ | {"AZURE_STORAGE_CONNECTION_STRING": self.connection_string},
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def kill(self, pid: int) -> None:
        """kill -9."""
        os.kill(pid, signal.SIGKILL)

    @contextmanager
    def suspended(self, pid: int) -> Iterator[None]:
        """Stop a process for a while, as a machine that hangs."""
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


class Visitor:
    """Cookies, forms and CSRF tokens, as a browser without JavaScript has them."""

    def __init__(self, url: str, name: str, password: str) -> None:
        self.url = url
        self.session = requests.Session()
        self.session.get(f"{url}/accounts/login/", timeout=10)
        self.post("/accounts/login/", username=name, password=password)

    def get(self, path: str) -> requests.Response:
        return self.session.get(self.url + path, timeout=10)

    def post(self, path: str, **fields: str) -> requests.Response:
        token = self.session.cookies.get("csrftoken", "")
        return self.session.post(
            self.url + path,
            data=fields | {"csrfmiddlewaretoken": token},
            headers={"Referer": self.url + path},
            timeout=20,
        )


@contextmanager
def live_stack(
    *options: str, workers: int = 4, orders: int = 2000, hub: bool = True, scale_to: int = 0
) -> Iterator[LiveStack]:
    """Start the demo with these options, too, and end it; fails if any of its processes is left behind."""
    command = [
        sys.executable,
        "-m",
        "dashboard.demo",
        "--json",
        "--workers",
        str(workers),
        "--orders",
        str(orders),
        *options,
    ]
    if scale_to:
        command += ["--scale-to", str(scale_to)]
    process = subprocess.Popen(
        command + ([] if hub else ["--without-hub"]),
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | QUICK,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"the demo did not start: {process.stderr.read()[-3000:]}")
        children = psutil.Process(process.pid).children(recursive=True)
        yield LiveStack(json.loads(line))
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            process.stdout.close()
            process.stderr.close()
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def empty_stack() -> Iterator[LiveStack]:
    """A dashboard and its storage in which nothing was ever done: one closed gate, no worker, no order."""
    with tempfile.TemporaryDirectory(prefix="kennel-") as folder:
        stack = Stack(Path(folder), lambda *_: None)
        try:
            stack.start(workers=0)
            yield LiveStack(stack.describe())
        finally:
            stack.stop()
