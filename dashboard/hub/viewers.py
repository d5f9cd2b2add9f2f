"""Pushes to browsers: each region of a page is rendered once for each role, only if somebody looks and only if changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from asgiref.sync import sync_to_async
from django.db import close_old_connections

from dashboard.core import permissions as teams
from dashboard.hub.socket import SendQueue
from dashboard.live.fleet_state import FleetState
from dashboard.live.fragments import render_each

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
QUIET_SECONDS = 1.0


class View(NamedTuple):
    """What sockets with the same view see is the same."""

    page: str
    query: str
    role: str
    teams: frozenset[str] = frozenset()


class Viewer(Protocol):
    """An operator's socket."""

    view: View
    send_queue: SendQueue

    async def go_away(self, code: int, reason: str) -> None: ...


class Viewers:
    """The operators' sockets of this process, and the loop that keeps them current."""

    def __init__(self, fleet_state: FleetState) -> None:
        self.fleet_state = fleet_state
        self.sockets: set[Viewer] = set()
        self._sent: dict[View, dict[str, str]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._wake = asyncio.Event()
        self.turned: Callable[[], None] = lambda: None
        self.rested: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self.sockets)

    def leave(self, viewer: Viewer) -> None:
        self.sockets.discard(viewer)
        if not any(other.view == viewer.view for other in self.sockets):
            self._sent.pop(viewer.view, None)

    async def join(self, viewer: Viewer) -> None:
        """Add a socket and send it the full state of its page. Raises `LookupError` if there is no such page."""
        fragments = await self._render(viewer.view)
        self._sent.setdefault(viewer.view, {}).update(fragments)
        viewer.send_queue.put("\n".join(fragments.values()))
        self.sockets.add(viewer)
        self._wake.set()

    async def run(self) -> None:
        """Four looks a second while somebody is there."""
        clock = self.fleet_state.clock
        drawn: tuple[int, int] | None = None
        drawn_at = 0.0
        try:
            while True:
                await asyncio.sleep(TICK_SECONDS)
                if not self.sockets:
                    self.rested()
                    self._wake.clear()
                    if not self.sockets:
                        await self._wake.wait()
                self.turned()
                now = clock.monotonic()
                if self.fleet_state.releases.holds_pages or (
                    self.fleet_state.stamp == drawn and now - drawn_at < QUIET_SECONDS
                ):
                    continue
                drawn, drawn_at = self.fleet_state.stamp, now
                for view in {viewer.view for viewer in self.sockets}:
                    try:
                        await self._refresh(view)
                    except Exception:
                        # One page that cannot be drawn must not stop the others.
                        log.exception("The page %s could not be drawn", view.page)
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=False)
                self._pool = None

    async def _refresh(self, view: View) -> None:
        fragments = await self._render(view)
        before = self._sent.get(view, {})
        changed = [html for name, html in fragments.items() if before.get(name) != html]
        self._sent[view] = fragments
        if changed:
            frame = "\n".join(changed)
            for viewer in list(self.sockets):
                if viewer.view == view:
                    viewer.send_queue.put(frame)

    async def _render(self, view: View) -> dict[str, str]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="draw")
        return await sync_to_async(self._draw, thread_sensitive=False, executor=self._pool)(view)

    def _draw(self, view: View) -> dict[str, str]:
        close_old_connections()
        try:
            permissions = teams.permissions_of(view.role, view.teams)
            return render_each(view.page, self.fleet_state.fleet(), view.role, view.query, permissions)
        finally:
            close_old_connections()
