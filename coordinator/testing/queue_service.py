"""A queue service over HTTP that stays fast however deep its queues are: for benchmarks, where Azurite would be measured.

    python -m coordinator.testing.queue_service --port 0        prints the connection string as its first line

It speaks the queue part of Azure's wire protocol as far as Kennel and the SDKs use it, keeps everything in memory, and
checks no signature. Not for the wild.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from email.utils import formatdate
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from aiohttp import web

from coordinator.errors import InvalidRequest, StorageError
from coordinator.queues.protocols import NEVER, ReceivedMessage
from coordinator.testing.azurite import ACCOUNT, KEY
from coordinator.testing.queues import MemoryQueueTransport

_XML = "application/xml"
_DEFAULT_TTL_SECONDS = 7 * 24 * 3600
_DEFAULT_VISIBILITY_SECONDS = 30


class QueueService:
    """Any number of queues. `start()` returns the connection string; `close()` ends it. Lives on the running loop."""

    def __init__(self) -> None:
        self.queues: dict[str, MemoryQueueTransport] = {}
        self._request_ids = itertools.count(1)
        self._runner: web.ServerRunner | None = None

    async def start(self, port: int = 0) -> str:
        """Listen on 127.0.0.1; port 0 takes a free one."""
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None))
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        address = self._runner.addresses[0]
        base = f"http://127.0.0.1:{address[1]}/{ACCOUNT}"
        return (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint={base};QueueEndpoint={base};TableEndpoint={base};"
        )

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = await self._routed(request)
        answer.headers["x-ms-request-id"] = f"{next(self._request_ids):032x}"
        return answer

    async def _routed(self, request: web.BaseRequest) -> web.StreamResponse:
        parts = [unquote(part) for part in request.rel_url.raw_path.split("/")[2:]]
        name, rest = (parts[0] if parts else ""), parts[1:]
        try:
            if request.query.get("comp") == "requests":  # ours: how many there were so far
                return web.Response(text=str(sum(queue.requests for queue in self.queues.values())))
            if not name:
                return self._list(request)
            queue = self.queues.setdefault(name, MemoryQueueTransport(name))
            if not rest:
                return await self._queue(queue, request)
            if len(rest) == 1 or not rest[1]:
                return await self._messages(queue, request)
            return await self._message(queue, rest[1], request)
        except StorageError as error:
            status, code = error.status or 400, error.code or "InvalidInput"
            body = f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>{escape(str(error))}</Message></Error>'
            return web.Response(
                status=status, text=body, content_type=_XML, headers={"x-ms-error-code": code}
            )

    def _list(self, request: web.BaseRequest) -> web.Response:
        prefix = request.query.get("prefix", "")
        names = sorted(
            name for name, queue in self.queues.items() if queue.exists and name.startswith(prefix)
        )
        rows = "".join(f"<Queue><Name>{escape(name)}</Name></Queue>" for name in names)
        return _xml(f"<EnumerationResults><Queues>{rows}</Queues><NextMarker/></EnumerationResults>")

    async def _queue(self, queue: MemoryQueueTransport, request: web.BaseRequest) -> web.Response:
        if request.query.get("comp") == "metadata" and request.method in ("GET", "HEAD"):
            count = await queue.count()
            return web.Response(headers={"x-ms-approximate-messages-count": str(count)})
        if request.method == "PUT":
            return web.Response(status=201 if await queue.create() else 204)
        if request.method == "DELETE":
            await queue.delete_queue()
            return web.Response(status=204)
        raise InvalidRequest("unknown operation", status=400, code="UnsupportedHttpVerb")

    async def _messages(self, queue: MemoryQueueTransport, request: web.BaseRequest) -> web.Response:
        query = request.query
        if request.method == "GET":
            number = int(query.get("numofmessages", 1))
            if query.get("peekonly") == "true":
                found = await queue.peek(number)
            else:
                seconds = int(query.get("visibilitytimeout", _DEFAULT_VISIBILITY_SECONDS))
                found = await queue.get(number, visibility_seconds=seconds)
            return _xml(f"<QueueMessagesList>{''.join(map(_row, found))}</QueueMessagesList>")
        if request.method == "POST":
            ttl = int(query.get("messagettl", _DEFAULT_TTL_SECONDS))
            stored = await queue.put(
                await _text(request),
                delay_seconds=int(query.get("visibilitytimeout", 0)),
                ttl_seconds=ttl if ttl > 0 else NEVER,
            )
            row = _row(ReceivedMessage(stored.id, stored.receipt, "", 0, 0.0, 0.0), text=False)
            return _xml(f"<QueueMessagesList>{row}</QueueMessagesList>", status=201)
        await queue.clear()
        return web.Response(status=204)

    async def _message(self, queue: MemoryQueueTransport, id: str, request: web.BaseRequest) -> web.Response:
        receipt = request.query.get("popreceipt", "")
        if request.method == "DELETE":
            await queue.delete(id, receipt)
            return web.Response(status=204)
        text = await _text(request) if request.can_read_body else None
        seconds = int(request.query.get("visibilitytimeout", 0))
        renewed = await queue.update(id, receipt, visibility_seconds=seconds, text=text)
        visible = formatdate(seconds, usegmt=True)
        return web.Response(
            status=204, headers={"x-ms-popreceipt": renewed, "x-ms-time-next-visible": visible}
        )


def _xml(body: str, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=f'<?xml version="1.0" encoding="utf-8"?>{body}'.encode(), content_type=_XML
    )


def _row(message: ReceivedMessage, *, text: bool = True) -> str:
    def date(seconds: float) -> str:
        return formatdate(min(seconds, 253_402_300_799), usegmt=True)

    receipt = (
        f"<PopReceipt>{message.receipt}</PopReceipt><TimeNextVisible>{date(0)}</TimeNextVisible>"
        if message.receipt
        else ""
    )
    body = (
        f"<DequeueCount>{message.dequeue_count}</DequeueCount>"
        f"<MessageText>{escape(message.text, {chr(13): '&#13;'})}</MessageText>"
        if text
        else ""
    )
    return (
        f"<QueueMessage><MessageId>{message.id}</MessageId><InsertionTime>{date(message.inserted_at)}</InsertionTime>"
        f"<ExpirationTime>{date(message.expires_at)}</ExpirationTime>{receipt}{body}</QueueMessage>"
    )


async def _text(request: web.BaseRequest) -> str:
    try:
        root: Any = ElementTree.fromstring(await request.read())
    except ElementTree.ParseError as error:
        raise InvalidRequest("the body is not XML", status=400, code="InvalidXmlDocument") from error
    return root.findtext("MessageText") or ""


async def _serve(port: int) -> None:
    service = QueueService()
    sys.stdout.write(await service.start(port) + "\n")
    sys.stdout.flush()
    # Ends with whoever started it: the pipe on standard input closes.
    await asyncio.to_thread(sys.stdin.read)
    await service.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    asyncio.run(_serve(parser.parse_args().port))
