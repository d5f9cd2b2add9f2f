"""What a request may cost before anybody has looked at it: a head in time and of bounded size, a body likewise.

Guarantees for every address, that of strangers too: a body larger than `DATA_UPLOAD_MAX_MEMORY_SIZE` is refused (413) by
its length before a byte is read, or at the byte that is one too many; no body reaches a file. A head that is not whole
after `HEAD_SECONDS` ends the connection; a body that is not after `BODY_SECONDS` is answered with 408.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from typing import Any

from django.conf import settings
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 10.0
MAX_HEAD_BYTES = 64 * 1024
BODY_SECONDS = 20.0

_TITLES = {408: "Request timeout", 413: "Too large"}


class _Refused(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def bounded(inner: Any) -> Any:
    """The application within, for requests whose bodies are small enough and come in time."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        if not length and b"transfer-encoding" not in headers:
            await inner(scope, receive, send)
            return
        most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        try:
            if length.isdigit() and int(length[:20]) > most:
                raise _too_large(most)
            await inner(scope, _CountedBody(receive, most), send)
        except _Refused as refused:
            await _answer(scope, send, refused)

    return application


class _CountedBody:
    """Hands on the body, counting; what comes after it (that the caller went away) may take as long as it takes."""

    def __init__(self, receive: Any, most: int) -> None:
        self._receive, self._most = receive, most
        self._is_whole, self._bytes = False, 0
        self._until = asyncio.get_running_loop().time() + BODY_SECONDS

    async def __call__(self) -> Any:
        if self._is_whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise _Refused(408, f"the body did not come within {BODY_SECONDS:g} s") from None
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._most:
            raise _too_large(self._most)
        self._is_whole = not message.get("more_body", False)
        return message


def _too_large(most: int) -> _Refused:
    return _Refused(413, f"the body is too large; at most {most // 1024} KiB are read")


async def _answer(scope: Any, send: Any, refused: _Refused) -> None:
    status, text = refused.status, refused.detail
    kind = b"text/plain; charset=utf-8"
    if scope["path"].startswith("/api/"):
        kind = b"application/problem+json"
        text = json.dumps({"type": "about:blank", "title": _TITLES[status], "status": status, "detail": text})
    # What is still to come is not read: the connection cannot be used again.
    headers = [(b"content-type", kind), (b"cache-control", b"no-store"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


def guard_heads() -> None:
    """Give uvicorn's protocols a deadline for a head, and a bound for its size: they have none of their own.

    uvicorn takes a class of one's own only from a program, not from the command line that every deployment uses; so its
    classes are extended in place. Harmless when repeated.
    """
    for protocol in (HttpToolsProtocol, H11Protocol):
        if not hasattr(protocol, "kennel_head_bytes"):
            _extend(protocol)


def _extend(protocol: Any) -> None:
    made, received, lost = protocol.connection_made, protocol.data_received, protocol.connection_lost

    def connection_made(self: Any, transport: Any) -> None:
        made(self, transport)
        _watch(self)

    def data_received(self: Any, data: bytes) -> None:
        if not _is_serving(self):
            end = data.find(b"\r\n\r\n")
            self.kennel_head_bytes += len(data) if end < 0 else end
            if self.kennel_head_bytes > MAX_HEAD_BYTES:
                self.transport.abort()
                return
        received(self, data)
        if _is_serving(self):
            _unwatch(self)
        elif self.kennel_head_due is None and not self.transport.is_closing():
            _watch(self)

    def connection_lost(self: Any, error: Exception | None) -> None:
        _unwatch(self)
        lost(self, error)

    protocol.kennel_head_bytes, protocol.kennel_head_due = 0, None
    protocol.connection_made, protocol.data_received = connection_made, data_received
    protocol.connection_lost = connection_lost


def _watch(connection: Any) -> None:
    connection.kennel_head_due = connection.loop.call_later(HEAD_SECONDS, _late, weakref.ref(connection))


def _unwatch(connection: Any) -> None:
    connection.kennel_head_bytes = 0
    if connection.kennel_head_due is not None:
        connection.kennel_head_due.cancel()
        connection.kennel_head_due = None


def _late(reference: Any) -> None:
    connection = reference()
    if connection is None:
        return
    connection.kennel_head_due = None
    # A socket that was upgraded has another protocol by now.
    if connection.transport.get_protocol() is connection and not _is_serving(connection):
        connection.transport.abort()


def _is_serving(connection: Any) -> bool:
    return connection.cycle is not None and not connection.cycle.response_complete
