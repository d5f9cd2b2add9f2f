"""The message calls of the queue service as plain signed REST (the hot path), and the rest through the SDK.

The SDK's pipeline costs about five times the processor time of the request itself, and a queue makes two requests a
message: see decision 0010.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import html
import math
import re
import time
from email.utils import formatdate, parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import aiohttp
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from yarl import URL

from coordinator.errors import AlreadyExists, StorageUnreachable
from coordinator.meter import Request
from coordinator.queues.transport import NEVER, Received, Stored
from coordinator.service_errors import refused, translated

if TYPE_CHECKING:
    from coordinator.storage import Storage

VERSION = "2023-11-03"
_SCOPE = "https://storage.azure.com/.default"
_CARRIAGE_RETURN = {"\r": "&#13;"}  # XML readers would make a line feed of it
_UNSIGNED = ("Content-Type", "Accept-Encoding", "User-Agent")
_REFRESH_SECONDS = 300.0
_MESSAGE = re.compile("<QueueMessage>(.*?)</QueueMessage>", re.DOTALL)
_FIELD = re.compile("<([A-Za-z]+)>(.*?)</[A-Za-z]+>", re.DOTALL)


class AzureQueue:
    """`QueueTransport` over Azure's queue service. Does no I/O when built; uses the connections of the running loop."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.name = name
        self._storage = storage
        self._signer = signer_for(storage)
        base = urlsplit(storage.endpoints.queue)
        self._origin = f"{base.scheme}://{base.netloc}"
        self._path = f"{base.path}/{name}/messages"
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=storage.config.connect_seconds, sock_read=storage.config.read_seconds
        )

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
        with translated("read the depth of", self.name):
            properties = await self._client.get_queue_properties()
        return properties.approximate_message_count or 0

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
        body = b""
        headers = {"x-ms-date": _date(int(time.time())), "x-ms-version": VERSION}
        if text is not None:
            body = f"<QueueMessage><MessageText>{escape(text, _CARRIAGE_RETURN)}</MessageText></QueueMessage>".encode()
            headers["Content-Type"] = "application/xml"
        parameters = "&".join([f"{name}={quote(value, safe='')}" for name, value in query.items()])
        parameters = await self._signer.sign(method, path, query, headers, len(body), parameters)
        url = URL(f"{self._origin}{path}?{parameters}", encoded=True)
        counted = Request("queue", operation, self.name)
        self._storage.meter.count(counted, bytes_sent=len(body))
        try:
            async with self._storage.aio.session.request(
                method,
                url,
                data=body or None,
                headers=headers,
                timeout=self._timeout,
                allow_redirects=False,
                skip_auto_headers=_UNSIGNED,
            ) as answer:
                content = await answer.read()
                self._storage.meter.answered(counted, len(content))
        except (aiohttp.ClientError, TimeoutError) as error:
            # Only a connection that was never made proves that nothing was done.
            unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            raise StorageUnreachable(
                f"{operation} {self.name}: the storage service gave no answer ({type(error).__name__})",
                resource=self.name,
                maybe_done=not unsent,
            ) from error
        if answer.status >= 300:
            code = answer.headers.get("x-ms-error-code") or _error_code(content)
            raise refused(answer.status, code, answer.reason or "", operation, self.name)
        return answer.headers, content


class _SharedKey:
    """HMAC over the request as the service defines it."""

    def __init__(self, credential: AzureNamedKeyCredential) -> None:
        self._credential = credential
        self._key: tuple[str, bytes] = ("", b"")

    async def sign(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        headers: dict[str, str],
        length: int,
        parameters: str,
    ) -> str:
        account, key = self._credential.named_key
        if self._key[0] != key:
            self._key = (key, base64.b64decode(key))
        resource = "".join([f"\n{name}:{query[name]}" for name in sorted(query)])
        text = (
            f"{method}\n\n\n{length or ''}\n\n{headers.get('Content-Type', '')}\n\n\n\n\n\n\n"
            f"x-ms-date:{headers['x-ms-date']}\nx-ms-version:{headers['x-ms-version']}\n/{account}{path}{resource}"
        )
        digest = hmac.digest(self._key[1], text.encode(), "sha256")
        headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
        return parameters


class _Sas:
    """A signature that is part of the address."""

    def __init__(self, credential: AzureSasCredential) -> None:
        self._credential = credential

    async def sign(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        headers: dict[str, str],
        length: int,
        parameters: str,
    ) -> str:
        return f"{parameters}&{self._credential.signature.lstrip('?')}"


class _Bearer:
    """A token of the machine's or user's identity, renewed before it ends, once for all who wait."""

    def __init__(self, credential: TokenCredential) -> None:
        self._credential = credential
        self._token = ""
        self._renew_at = 0.0

    async def sign(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        headers: dict[str, str],
        length: int,
        parameters: str,
    ) -> str:
        if time.time() >= self._renew_at:
            with translated("get a token for", "the queue service"):
                token = await asyncio.to_thread(self._credential.get_token, _SCOPE)
            self._token = token.token
            self._renew_at = token.expires_on - _REFRESH_SECONDS
        headers["Authorization"] = f"Bearer {self._token}"
        return parameters


def signer_for(storage: Storage) -> _SharedKey | _Sas | _Bearer:
    credential = storage.endpoints.credential
    if isinstance(credential, AzureNamedKeyCredential):
        return _SharedKey(credential)
    if isinstance(credential, AzureSasCredential):
        return _Sas(credential)
    return _Bearer(credential)


_last_date: tuple[int, str] = (0, "")


def _date(second: int) -> str:
    global _last_date
    if _last_date[0] != second:
        _last_date = (second, formatdate(second, usegmt=True))
    return _last_date[1]


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


def _error_code(content: bytes) -> str:
    found = re.search(rb"<Code>([^<]*)</Code>", content)
    return found.group(1).decode() if found else ""
