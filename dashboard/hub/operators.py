"""The browsers' socket: pushes regions; takes actions too, through the same permissions and actions as the pages."""

from __future__ import annotations

import json
import logging
import time
from typing import Any
from urllib.parse import parse_qsl, urlencode

from asgiref.sync import sync_to_async
from channels.db import database_sync_to_async

from coordinator import protocol
from dashboard import actions
from dashboard.hub.fanout import Outbox
from dashboard.hub.housekeeping import standings_now
from dashboard.hub.socket import Socket
from dashboard.hub.viewers import View
from dashboard.hub.workers import RateLimit
from dashboard.middleware import new_request_id, request_id_var
from dashboard.permissions import role_of, teams_of
from dashboard.runtime import current

log = logging.getLogger(__name__)

MAX_BYTES = 16 * 1024
MAX_QUERY = 2000
PER_SECOND = 10


class OperatorConsumer(Socket):
    """One browser's socket. `/ws/operators/?page=overview&q=…`: the rest of the query is the page's own."""

    view: View
    outbox: Outbox
    joined = False
    user: Any = None

    async def connect(self) -> None:
        self.user = self.scope["user"]
        role, teams = await database_sync_to_async(_standing)(self.user)
        if not role or not current().is_running:
            await self.refuse(protocol.CLOSE_UNAUTHORIZED)
            return
        given = dict(parse_qsl(self.scope["query_string"].decode("latin-1")[:MAX_QUERY]))
        self.view = View(given.pop("page", "other"), urlencode(sorted(given.items())), role, teams)
        self.rate = RateLimit(PER_SECOND, PER_SECOND * 2, time.monotonic())
        await self.welcome()
        self.outbox = Outbox(self.send_text, self.go_away, name="browser")
        self.joined = True
        try:
            await current().viewers.join(self)
        except LookupError as error:
            await self.go_away(protocol.CLOSE_MALFORMED, str(error))

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if not self.rate.allows(time.monotonic()):
            await self.go_away(protocol.CLOSE_TOO_FAST, f"over {PER_SECOND} frames a second")
            return
        request = _decode(text_data)
        if isinstance(request, str):
            await self.go_away(protocol.CLOSE_MALFORMED, request)
            return
        request_id_var.set(new_request_id())
        answer = await sync_to_async(self._act, thread_sensitive=True)(request)
        self.outbox.put(json.dumps(answer))

    def _act(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what was asked, with the rights that the user has now, not those of when the socket was opened."""
        role, teams = standings_now([self])[0]
        client = self.scope.get("client") or ("",)
        name, address = self.user.get_username(), str(client[0])
        actor = actions.Actor(name, role, address, request_id_var.get(), teams)
        try:
            done = actions.by_name(actor, str(request["action"]), str(request.get("target", "")), request)
        except actions.ActionFailed as error:
            return {"ok": False, "action": request["action"], "error": str(error)}
        return {"ok": True, "action": request["action"], "result": done}

    def __str__(self) -> str:
        return f"browser of {self.user}"

    async def disconnect(self, code: int) -> None:
        if self.joined:
            current().viewers.leave(self)
            await self.outbox.stop()


def _standing(user: Any) -> tuple[str, frozenset[str]]:
    return role_of(user), teams_of(user)


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
    if not isinstance(value, dict) or not isinstance(value.get("action"), str):
        return 'send {"action": …, "target": …}'
    return value
