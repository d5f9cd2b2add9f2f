"""The message calls of the queue service as plain signed REST (the hot path), and the rest through the SDK."""

from __future__ import annotations

import html
import math
import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from coordinator.errors import AlreadyExists
from coordinator.meter import Request
from coordinator.queues.transport import NEVER, Received, Stored
from coordinator.service_errors import translated
from coordinator.signed import SignedRest

if TYPE_CHECKING:
    from coordinator.storage import Storage

_CARRIAGE_RETURN = {"\r": "&#13;"}  # XML readers would make a line feed of it
_MESSAGE = re.compile("<QueueMessage>(.*?)</QueueMessage>", re.DOTALL)
_FIELD = re.compile("<([A-Za-z]+)>(.*?)</[A-Za-z]+>", re.DOTALL)


class AzureQueue:
    """`QueueTransport` over Azure's queue service. Does no I/O when built; uses the connections of the running loop."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.name = name
        self._storage = storage
        self._rest = SignedRest(storage, storage.endpoints.queue)
        self._path = f"/{name}/messages"

    async def put(self, text: str, *, delay_seconds: float = 0, ttl_seconds: float = NEVER) -> Stored:
        ttl = NEVER if ttl_seconds == NEVER else math.ceil(ttl_seconds)
        query = {"messagettl": str(ttl)}
        if delay_seconds > 0:
            query["visibilitytimeout"] = str(math.ceil(delay_seconds))
        _, body = await self._send("PutMessage", "POST", self._path, query, text)
        fields = _fields(body)[0]
        return Stored(fields["MessageId"], fields["PopReceipt"])

    async def get(self, count: int, *, visibility_seconds: float) -> list[Received]:
        query = {"numofmessages": str(count), "visibilitytimeout": str(math.ceil(visibility_seconds))}
        _, body = await self._send("GetMessages", "GET", self._path, query)
        return [_received(fields) for fields in _fields(body)]

    async def update(
        self, id: str, receipt: str, *, visibility_seconds: float, text: str | None = None
    ) -> str:
        query = {"popreceipt": receipt, "visibilitytimeout": str(math.ceil(visibility_seconds))}
        headers, _ = await self._send("UpdateMessage", "PUT", f"{self._path}/{id}", query, text)
        return str(headers["x-ms-popreceipt"])

    async def delete(self, id: str, receipt: str) -> None:
        await self._send("DeleteMessage", "DELETE", f"{self._path}/{id}", {"popreceipt": receipt})

    async def peek(self, count: int) -> list[Received]:
        query = {"numofmessages": str(count), "peekonly": "true"}
        _, body = await self._send("PeekMessages", "GET", self._path, query)
        return [_received(fields) for fields in _fields(body)]

    async def count(self) -> int:
        counted = Request("queue", "GetQueueMetadata", self.name)
        answer = await self._rest.send(
            "read the depth of", self.name, counted, "GET", f"/{self.name}", query={"comp": "metadata"}
        )
        return int(answer.headers["x-ms-approximate-messages-count"])

    async def clear(self) -> None:
        with translated("clear", self.name):
            await self._client.clear_messages()

    async def create(self) -> bool:
        try:
            with translated("create", self.name):
                await self._client.create_queue()
        except AlreadyExists:
            return False
        return True

    async def delete_queue(self) -> None:
        with translated("delete", self.name):
            await self._client.delete_queue()

    @property
    def _client(self) -> Any:
        return self._storage.aio.queues.get_queue_client(self.name)

    async def _send(
        self, operation: str, method: str, path: str, query: dict[str, str], text: str | None = None
    ) -> tuple[Any, bytes]:
        """One request, counted and never repeated; its headers and body."""
        body, headers = b"", {}
        if text is not None:
            body = f"<QueueMessage><MessageText>{escape(text, _CARRIAGE_RETURN)}</MessageText></QueueMessage>".encode()
            headers["Content-Type"] = "application/xml"
        counted = Request("queue", operation, self.name)
        answer = await self._rest.send(
            operation, self.name, counted, method, path, query=query, headers=headers, body=body
        )
        return answer.headers, answer.content


def _fields(body: bytes) -> list[dict[str, str]]:
    """The fields of each message. A message with characters that XML forbids must not hold up the others."""
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        text = body.decode("utf-8", "replace")
        return [
            {name: html.unescape(value) for name, value in _FIELD.findall(message)}
            for message in _MESSAGE.findall(text)
        ]
    return [{field.tag: field.text or "" for field in message} for message in root]


def _received(fields: dict[str, str]) -> Received:
    return Received(
        id=fields["MessageId"],
        receipt=fields.get("PopReceipt", ""),
        text=fields.get("MessageText", ""),
        dequeue_count=int(fields.get("DequeueCount", 0)),
        inserted_at=_seconds(fields.get("InsertionTime", "")),
        expires_at=_seconds(fields.get("ExpirationTime", "")),
    )


def _seconds(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0.0
