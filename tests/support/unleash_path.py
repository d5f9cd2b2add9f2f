"""Which modules a press of *Unleash* crosses: a dashboard, a worker and a page's socket in one process, every call noted.

    python -m tests.support.unleash_path        (the environment as of a dashboard, with a prepared database)

Prints `{"path": {module: [functions]}, "drawing": {…}}` as JSON: the functions of `coordinator` and `dashboard` that run in any
thread because of the press, from the view on, on a gate that was opened and closed once before. *path* ends when the worker's
receipt is counted; *drawing* is what draws pages meanwhile, until the page's socket was sent "1 of 1".

Left out is what runs without a press: the sampler and the other loops of the background, the worker's heartbeats, logging,
what every request passes before and after its view, the tags of templates, and what an import or a start runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

import django
import requests
import uvicorn
import websockets

ROOT = str(Path(__file__).resolve().parents[2])
GATE = "start"
BACKGROUND = {
    "sampler", "dashboard-sampler", "leader dashboard-sampler", "peaks", "memory", "housekeeping", "claims", "webhooks", "summaries",
    "alerts", "deliveries", "tallies",
}  # fmt: skip
"""Tasks that run without a press, by name."""
WITHOUT_A_PRESS = {
    "Worker._hello", "Presence.report", "Reported.take", "load_peaks", "save_peaks", "LineFormatter.formatMessage", "WithRequestId.filter", "Loops.alive",
    "Loops.resting", "Loops._keep", "Authentication.process_request.<locals>.<lambda>", "bounded.<locals>.application",
    "people_first.<locals>.application", "_CountedBody.__call__", "Compressed.process_response", "Handler.__call__", "Handler.get_response_async", "Handler.handle", "Handler._answer",
    "Handler._lent_thread", "kennel",
}  # fmt: skip
"""Heartbeats, what keeps the highest epochs, logging, the watch over loops, the middleware: left out with all that they call."""
DRAWING = {"Viewers.run", "Viewers._draw", "render_all", "fleet"}
"""What draws pages, with all that it calls."""
VIEW = "requires.<locals>.decorate.<locals>.guarded"


IN_BACKGROUND = ContextVar("in_background", default=False)


class Calls:
    """Notes calls, from the view's first on, once `begin` was called."""

    def __init__(self) -> None:
        self.is_due = self.is_on = False
        self.path: defaultdict[str, set[str]] = defaultdict(set)
        self.drawing: defaultdict[str, set[str]] = defaultdict(set)

    def begin(self) -> None:
        self.path.clear()
        self.drawing.clear()
        self.is_due = True

    def end(self) -> None:
        self.is_due = self.is_on = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_name == "<module>" or not code.co_filename.startswith(ROOT):
            return
        self.is_on = self.is_on or (self.is_due and code.co_qualname == VIEW)
        module = code.co_filename[len(ROOT) + 1 : -3].replace("/", ".")
        if not module.startswith(("coordinator.", "dashboard.")) or module.startswith(
            "dashboard.templatetags"
        ):
            return
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        if task is not None and task.get_name() in BACKGROUND:
            IN_BACKGROUND.set(True)  # what it starts in tasks and threads of its own inherits this
        if IN_BACKGROUND.get() or not self.is_on:
            return
        above = set()
        outer: FrameType | None = frame
        while outer is not None:
            above.add(outer.f_code.co_qualname)
            outer = outer.f_back
        if not above & WITHOUT_A_PRESS:
            (self.drawing if above & DRAWING else self.path)[module].add(code.co_qualname)


calls = Calls()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


class Olga:
    """An operator with a browser."""

    def __init__(self, url: str, password: str) -> None:
        self.url, self.http, self.seen = url, requests.Session(), ""
        self.post("/accounts/login/", "/accounts/login/", username="olga", password=password)

    def post(self, path: str, form: str, **fields: str) -> None:
        shown = self.http.get(self.url + form, timeout=20).text
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', shown)
        assert token, shown
        if path.endswith("/unleash"):
            calls.begin()
        answer = self.http.post(
            self.url + path,
            data={**fields, "csrfmiddlewaretoken": token[1]},
            headers={"Referer": self.url + form, "HX-Request": "true"},
            timeout=20,
        )
        assert answer.status_code < 400, answer.text

    async def watch(self) -> None:
        cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in self.http.cookies)
        async with websockets.connect(
            f"{self.url.replace('http', 'ws')}/ws/operators/?page=gates",
            origin=websockets.Origin(self.url),
            additional_headers={"Cookie": cookies},
            max_size=2**24,
        ) as page:
            async for frame in page:
                self.seen += str(frame)


async def main() -> None:
    django.setup()
    from coordinator.worker import Worker
    from dashboard.asgi import application
    from dashboard.hub.runtime import current
    from tests.support.dashboard import PASSWORD, TOKEN

    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(application, lifespan="on", log_level="warning"))
    serving = asyncio.create_task(server.serve([listening]), name="server")
    await until(lambda: server.started)
    olga = await asyncio.to_thread(Olga, url, PASSWORD)
    hub = {"KENNEL_HUB_URL": f"{url.replace('http', 'ws')}/ws/workers/", "KENNEL_WORKER_TOKEN": TOKEN}
    worker = Worker("worker", environ={**os.environ, **hub})
    gate = worker.gate(GATE)
    working = asyncio.create_task(worker.run(), name="worker")
    page = asyncio.create_task(olga.watch(), name="browser")
    for _ in range(2):
        passing = asyncio.create_task(gate.wait(), name="handler")
        await until(lambda: current().presence.waiting_at(GATE))
        await asyncio.to_thread(olga.post, f"/gates/{GATE}/unleash", "/gates/", page="gates")
        await passing
        await until(
            lambda: (
                (seen := current().releases.views().get(GATE))
                and seen.epoch == gate.passed_epoch
                and seen.passed
            )
        )
        olga.seen = ""
        await until(lambda: "1 of 1" in olga.seen)
        calls.end()
        await asyncio.to_thread(olga.post, f"/gates/{GATE}/leash", "/gates/", reason="again")
        await until(lambda: gate.state is not None and gate.state.state == "closed")
    page.cancel()
    worker.stop()
    await working
    server.should_exit = True
    await serving


if __name__ == "__main__":
    threading.setprofile(calls)
    sys.setprofile(calls)
    asyncio.run(main())
    for found in (calls.path, calls.drawing):
        assert found, "nothing was noted"
    listed = ({name: sorted(found[name]) for name in sorted(found)} for found in (calls.path, calls.drawing))
    print(json.dumps(dict(zip(("path", "drawing"), listed, strict=True))))
