"""Django's ASGI handler, with one visit to a thread for a whole request instead of one for each middleware."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix

MOST_FREE = 8
_REFER_BACK = ("user", "auser", "_messages", "htmx", "csp_nonce", "_csp_nonce")
"""What middleware puts on a request and refers to it in turn."""


class Handler(ASGIHandler):
    """Answers requests, each in a thread that no other request uses meanwhile.

    Guarantees that middleware and view run in one thread without a return to the event loop: each return waits behind workers'
    frames, and each way out for the interpreter's lock. A thread and its database connection serve further requests
    (`CONN_MAX_AGE`); `MOST_FREE` of them are kept. There is no bound for how many requests run at once.

    Guarantees, too, that nothing of an answered request waits for the garbage collector, which stops all threads: Django keeps
    the exception that ends its watch for a client that leaves, and with it the request, what it read and what it drew.
    """

    def __init__(self) -> None:
        super().__init__()
        self._free: list[ThreadPoolExecutor] = []

    def load_middleware(self, is_async: bool = False) -> None:
        """Django would load it for the event loop, and visit a thread for each that is not written for it."""
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        """All of the middleware, and the view."""
        return await sync_to_async(self._respond)(request)

    def _respond(self, request: HttpRequest) -> HttpResponseBase:
        signals.request_started.send(sender=self.__class__, scope=getattr(request, "scope", None))
        return self.get_response(request)

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """As Django's: a client that leaves cancels what is under way, and is nobody's error."""
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        set_script_prefix(get_script_prefix(scope))
        request, refusal = self.create_request(scope, body)
        if request is None and refusal is not None:
            body.close()
            await self.send_response(refusal, send)
            await sync_to_async(refusal.close)()
            return
        leaving = asyncio.create_task(receive())
        answering = asyncio.create_task(self._answer(request, send))
        await asyncio.wait((leaving, answering), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        answering.cancel()  # an answered one is not
        await asyncio.wait((leaving, answering))
        body.close()
        if answering.cancelled():
            await signals.request_finished.asend(sender=self.__class__)
            return
        await sync_to_async(answering.result().close)()
        for name in _REFER_BACK:
            vars(request).pop(name, None)

    async def _answer(self, request: Any, send: Any) -> HttpResponseBase:
        response = await self.run_get_response(request)
        # A client that leaves meanwhile cancels this: there is a response to close all the same.
        with suppress(asyncio.CancelledError):
            await self.send_response(response, send)
        return response

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._lent_thread() as executor:
            async with ThreadSensitiveContext(executor=executor):
                await self.handle(scope, receive, send)

    @contextmanager
    def _lent_thread(self) -> Iterator[ThreadPoolExecutor]:
        # The one used last first: its connection knows the newest pages of the database.
        executor = self._free.pop() if self._free else ThreadPoolExecutor(1, thread_name_prefix="request")
        is_idle = False
        try:
            yield executor
            is_idle = True
        finally:
            # After a request that was cut off it may be at work still.
            if is_idle and len(self._free) < MOST_FREE:
                self._free.append(executor)
            else:
                executor.submit(connections.close_all)
                executor.shutdown(wait=False)
