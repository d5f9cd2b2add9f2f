"""The demo without a person: through the real page, to the last order, with a verdict."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from html.parser import HTMLParser
from typing import Any, TypeVar
from urllib.parse import urljoin

import msgspec
import requests

from dashboard.demo.parts import DemoProcess
from dashboard.demo.stack import GATE, PROJECT, SEQUENCE, DemoFailed, Stack

T = TypeVar("T")
READY_SECONDS = 120.0
RELEASE_SECONDS = 15.0


class _Forms(HTMLParser):
    """The forms of a page: action and fields."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attributes}
        if tag == "form":
            self.forms.append((given.get("action", ""), {}))
        elif tag in ("input", "button") and self.forms and given.get("name"):
            self.forms[-1][1][given["name"]] = given.get("value", "")


class Person:
    """An operator with a browser that knows forms, cookies and CSRF tokens, and nothing of the code behind."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = requests.Session()

    def sign_in(self, name: str, password: str) -> None:
        page = self._session.get(urljoin(self._url, "/accounts/login/"), timeout=30)
        action, fields = self._form(page, "login")
        fields |= {"username": name, "password": password}
        answer = self._submit(page, action, fields)
        if "/login" in answer.url:
            raise DemoFailed(f"{name} could not sign in at {answer.url}")

    def press_unleash(self, gate: str) -> float:
        """Press the button; returns the moment of the press (wall clock)."""
        page = self._session.get(urljoin(self._url, "/gates/"), timeout=30)
        action, fields = self._form(page, f"/gates/{gate}/unleash")
        pressed = time.time()
        self._submit(page, action, fields)
        return pressed

    def _form(self, page: requests.Response, action_part: str) -> tuple[str, dict[str, str]]:
        page.raise_for_status()
        parser = _Forms()
        parser.feed(page.text)
        for action, fields in parser.forms:
            if action_part in (action or page.url):
                return action, dict(fields)
        raise DemoFailed(f"the page {page.url} has no form for {action_part}")

    def _submit(self, page: requests.Response, action: str, fields: dict[str, str]) -> requests.Response:
        answer = self._session.post(
            urljoin(page.url, action), data=fields, headers={"Referer": page.url}, timeout=30
        )
        if not answer.ok:
            raise DemoFailed(f"POST {action} answered {answer.status_code}")
        return answer


def run(stack: Stack, *, workers: int, orders: int, seconds: float) -> dict[str, Any]:
    """Release a fleet and let it drain; returns the verdict (`ok` and the figures of the last line)."""
    stack.start(workers=workers)
    stack.say(f"Filling the queue with {orders} orders …")
    producer = stack.start_producer(orders=orders)
    _wait(
        lambda: len(list(_passages(stack, "wait"))) >= workers,
        READY_SECONDS,
        "the workers wait at the gate",
        stack,
    )
    if producer.process.wait(READY_SECONDS) != 0:
        raise DemoFailed(f"the producer failed:\n{producer.tail()}")
    person = Person(stack.url)
    operator = next(user for user in stack.credentials.users if user.role == "operator")
    person.sign_in(operator.name, operator.password)
    stack.say("All workers wait at the gate. Pressing Unleash …")
    pressed = person.press_unleash(GATE)
    started = time.monotonic()
    passes = _wait(
        lambda: _complete(list(_passages(stack, "pass")), workers),
        RELEASE_SECONDS,
        "all workers passed",
        stack,
    )
    delays = sorted((line["at"] - pressed) * 1000 for line in passes)
    stack.say(f"{len(delays)} of {workers} released, the last after {delays[-1]:.0f} ms. Draining …")
    _wait(lambda: _count(stack)[0] >= orders, seconds, "every order is in the table", stack)
    elapsed = time.monotonic() - started
    for part in stack.workers:
        part.process.terminate()
    for part in stack.workers:
        part.process.wait(60)
    done, distinct = _count(stack)
    accounts = list(_passages(stack, "stop"))
    ledger = _verify(stack)
    verdict: dict[str, Any] = {
        "orders": done,
        "distinct": distinct,
        "workers": workers,
        "released": len(delays),
        "release_ms": {"p50": round(_quantile(delays, 0.5), 1), "p99": round(_quantile(delays, 0.99), 1)},
        "release_sources": sorted({str(line.get("source")) for line in passes}),
        "seconds": round(elapsed, 2),
        "conflicts": sum(int(line["conflicts"]) for line in accounts),
        "requests": sum(sum(line["requests"].values()) for line in accounts),
        "ledger": ledger,
    }
    verdict["ok"] = done == distinct == orders and len(delays) == workers == len(accounts) and ledger == "ok"
    return verdict


def _wait(ready: Callable[[], T], seconds: float, what: str, stack: Stack) -> T:
    deadline = time.monotonic() + seconds
    while not (result := ready()):
        for part in stack.workers:
            if not part.is_running:
                raise DemoFailed(f"{part.name} ended before {what}:\n{part.tail()}")
        if time.monotonic() > deadline:
            raise DemoFailed(f"after {seconds:.0f} s it is still not true that {what}")
        time.sleep(0.05)
    return result


def _complete(lines: list[dict[str, Any]], workers: int) -> list[dict[str, Any]]:
    return lines if len({line["part"] for line in lines}) >= workers else []


def _passages(stack: Stack, action: str) -> Iterator[dict[str, Any]]:
    """What workers said about themselves in their logs; the first line of that action of each."""
    for part in stack.workers:
        for line in _lines(part):
            if line.get("action") == action and (action == "stop" or line.get("resource") == GATE):
                yield line | {"part": part.name}
                break


def _lines(part: DemoProcess) -> Iterator[dict[str, Any]]:
    for text in part.log.read_text(errors="replace").splitlines():
        if text.startswith("{"):
            try:
                yield msgspec.json.decode(text, type=dict[str, Any])
            except msgspec.DecodeError:
                return  # the last line is still being written


def _count(stack: Stack) -> tuple[int, int]:
    if not stack.orders_database.exists():
        return 0, 0
    with closing(sqlite3.connect(stack.orders_database, timeout=30)) as connection:
        try:
            row = connection.execute(
                "SELECT count(DISTINCT order_id), count(DISTINCT number) FROM orders"
            ).fetchone()
        except sqlite3.OperationalError:  # the first worker has not made the table yet
            return 0, 0
    return int(row[0]), int(row[1])


def _verify(stack: Stack) -> str:
    """What ``ids verify`` says: "ok", or its last line."""
    command = [sys.executable, "-m", "coordinator", "ids", "verify", SEQUENCE]
    result = subprocess.run(
        command,
        env=stack.environment(worker="verify"),
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if result.returncode == 0:
        return "ok"
    said = [line for line in re.split(r"\n+", result.stdout + result.stderr) if line.strip()]
    return said[-1] if said else f"ids verify exited {result.returncode}"


def _quantile(ordered: list[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]
