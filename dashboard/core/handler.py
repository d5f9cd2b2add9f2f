"""Django's ASGI handler, with one visit to a thread for a whole request instead of one for each middleware."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase

MOST_FREE = 8


class Handler(ASGIHandler):
    """Answers requests, each in a thread that no other request uses meanwhile.

    Guarantees that middleware and view run in one thread without a return to the event loop: each return waits behind workers'
    frames, and each way out for the interpreter's lock. A thread and its database connection serve further requests
    (`CONN_MAX_AGE`); `MOST_FREE` of them are kept. There is no bound for how many requests run at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._free: list[ThreadPoolExecutor] = []

    def load_middleware(self, is_async: bool = False) -> None:
        """Django would load it for the event loop, and visit a thread for each that is not written for it."""
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        """All of the middleware, and the view."""
        return await sync_to_async(self.get_response)(request)

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
