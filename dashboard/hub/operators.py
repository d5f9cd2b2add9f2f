"""The browsers' socket: pushes regions; takes actions too, through the same permissions and actions as the pages.

An act needs the CSRF token of the page besides the cookie, as a form does. Acts have threads of their own: one that waits
for storage must not keep workers out, whose tokens are looked up in the database's one thread.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any
from urllib.parse import parse_qsl, urlencode

from channels.db import database_sync_to_async
from django.http import HttpRequest
from ninja.utils import check_csrf

from coordinator.bounds import is_storable
from coordinator.realtime import protocol
from dashboard.accounts import kiosks
from dashboard.core.audit import ActionFailed
from dashboard.core.dispatch import by_name
from dashboard.core.middleware import new_request_id, request_id_var
from dashboard.core.permissions import Actor, is_fresh
from dashboard.hub.background import current_permissions
from dashboard.hub.runtime import current
from dashboard.hub.socket import RateLimit, SendQueue, Socket
from dashboard.hub.viewers import View

log = logging.getLogger(__name__)

MAX_BYTES = 16 * 1024
MAX_QUERY = 2000
PER_SECOND = 10
WALLBOARD_PAGE = "tv"


class OperatorConsumer(Socket):
    """One browser's socket. `/ws/operators/?page=overview&q=…`: the rest of the query is the page's own."""

    view: View
    send_queue: SendQueue
    joined = False
    user: Any = None
    is_screen = False

    async def connect(self) -> None:
        self.user = self.scope["user"]
        role, teams = await database_sync_to_async(_permissions_now)(self)
        if not role or not current().is_running:
            await self.refuse(protocol.CLOSE_UNAUTHORIZED)
            return
        given = dict(parse_qsl(self.scope["query_string"].decode("latin-1")[:MAX_QUERY]))
        if self.is_screen and given.get("page") != WALLBOARD_PAGE:
            await self.refuse(protocol.CLOSE_UNAUTHORIZED)
            return
        self.view = View(given.pop("page", "other"), urlencode(sorted(given.items())), role, teams)
        self.rate = RateLimit(PER_SECOND, PER_SECOND * 2, time.monotonic())
        await self.welcome()
        self.send_queue = SendQueue(self.send_text, self.go_away, name="browser")
        self.joined = True
        try:
            await current().viewers.join(self)
        except LookupError as error:
            await self.go_away(protocol.CLOSE_MALFORMED, str(error))

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.is_going:
            return
        if self.is_screen:
            await self.go_away(protocol.CLOSE_FORBIDDEN, "a screen shows the wallboard and does nothing")
            return
        if not self.rate.allows(time.monotonic()):
            await self.go_away(protocol.CLOSE_TOO_FAST, f"over {PER_SECOND} frames a second")
            return
        request = _decode(text_data)
        if isinstance(request, str):
            await self.go_away(protocol.CLOSE_MALFORMED, request)
            return
        request_id_var.set(new_request_id())
        acts = current().act_threads
        with current().turns.goes_first():
            answer = await database_sync_to_async(self._act, thread_sensitive=False, executor=acts)(request)
        self.send_queue.put(json.dumps(answer))

    def _act(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what was asked, with the rights that the user has now, not those of when the socket was opened."""
        if not _has_csrf_token(self.scope, request):
            message = "the CSRF token of the page is missing: send it as csrf"
            return {"ok": False, "action": request["action"], "error": message}
        role, teams = current_permissions([self])[0]
        fresh = is_fresh(self.scope["session"])
        client = self.scope.get("client") or ("",)
        name, address = self.user.get_username(), str(client[0])
        actor = Actor(name, role, address, request_id_var.get(), teams, fresh=fresh)
        try:
            done = by_name(actor, str(request["action"]), str(request.get("target", "")), request)
        except ActionFailed as error:
            return {"ok": False, "action": request["action"], "error": str(error)}
        return {"ok": True, "action": request["action"], "result": done}

    def __str__(self) -> str:
        return "a screen" if self.is_screen else f"browser of {self.user}"

    async def disconnect(self, code: int) -> None:
        if self.joined:
            current().viewers.leave(self)
            await self.send_queue.stop()


def _permissions_now(consumer: OperatorConsumer) -> tuple[str, frozenset[str]]:
    is_known: bool = consumer.user.is_authenticated
    consumer.is_screen = not is_known and kiosks.token_of(consumer.scope["session"]) is not None
    return current_permissions([consumer])[0] if is_known or consumer.is_screen else ("", frozenset())


def _has_csrf_token(scope: dict[str, Any], request: dict[str, Any]) -> bool:
    """As Django checks it for a request that brings the token in a header."""
    asked = HttpRequest()
    asked.method, asked.COOKIES = "POST", scope.get("cookies", {})
    asked.META["HTTP_X_CSRFTOKEN"] = str(request.get("csrf", ""))
    return check_csrf(asked) is None


def _is_storable(value: Any) -> bool:
    """Whether every text within can be kept by every database. Not deep: what is decoded has passed a recursion limit."""
    if isinstance(value, str):
        return is_storable(value)
    if isinstance(value, dict):
        return all(is_storable(key) and _is_storable(each) for key, each in value.items())
    return all(_is_storable(each) for each in value) if isinstance(value, list) else True


def _decode(text: str | None) -> dict[str, Any] | str:
    """The request, or what is wrong with it."""
    if text is None:
        return "send text, not bytes"
    if len(text) > MAX_BYTES:
        return f"frame of {len(text)} characters; at most {MAX_BYTES} are allowed"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "the frame is not JSON"
    if not is_storable(text) or not _is_storable(value):
        return "the frame holds NUL or half a character"
    if not isinstance(value, dict) or not isinstance(value.get("action"), str):
        return 'send {"action": …, "target": …}'
    return value
