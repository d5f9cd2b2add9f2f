"""Queues, large payloads, rules and shards in an Azure storage account."""

from __future__ import annotations

import asyncio
import html
import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, TypedDict, Unpack
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import msgspec
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError

from coordinator.azure.account import Account, ensure_container
from coordinator.azure.errors import translated
from coordinator.azure.metering import Request
from coordinator.azure.rest import SignedRest
from coordinator.errors import AlreadyExists, ConfigurationError, NotFound
from coordinator.queues.envelope import SUFFIX, Schema, Upcaster
from coordinator.queues.large_payloads import LargePayloads, check_length
from coordinator.queues.protocols import NEVER, ReceivedMessage, SendReceipt, ShardLayout
from coordinator.queues.queue import Queue, QueueConfig
from coordinator.queues.rules import ScalingRule, decode_rule, encode_rule
from coordinator.queues.sweeping import OldClaim
from coordinator.realtime.bus import Notification

_CARRIAGE_RETURN = {"\r": "&#13;"}  # XML readers would make a line feed of it
_MESSAGE = re.compile("<QueueMessage>(.*?)</QueueMessage>", re.DOTALL)
_FIELD = re.compile("<([A-Za-z]+)>(.*?)</[A-Za-z]+>", re.DOTALL)


class AzureQueue:
    """`QueueTransport` over Azure's queue service. Does no I/O when built; uses the connections of the running loop."""

    def __init__(self, storage: Account, name: str) -> None:
        self.name = name
        self._storage = storage
        self._rest = SignedRest(storage, storage.endpoints.queue)
        self._path = f"/{name}/messages"

    async def put(self, text: str, *, delay_seconds: float = 0, ttl_seconds: float = NEVER) -> SendReceipt:
        ttl = NEVER if ttl_seconds == NEVER else math.ceil(ttl_seconds)
        query = {"messagettl": str(ttl)}
        if delay_seconds > 0:
            query["visibilitytimeout"] = str(math.ceil(delay_seconds))
        _, body = await self._send("PutMessage", "POST", self._path, query, text)
        fields = _fields(body)[0]
        return SendReceipt(fields["MessageId"], fields["PopReceipt"])

    async def get(self, count: int, *, visibility_seconds: float) -> list[ReceivedMessage]:
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

    async def peek(self, count: int) -> list[ReceivedMessage]:
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


def _received(fields: dict[str, str]) -> ReceivedMessage:
    return ReceivedMessage(
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


_READ_SECONDS = 60.0
_PAGE = 5000
_OFF_LOOP_BYTES = 1024 * 1024


async def old_claims(
    storage: Account, *, before: float, start: str = "", pages: int = 10, page: int = _PAGE
) -> tuple[list[OldClaim], str]:
    """The claims of all queues that expired, or were last written if they never do, before that moment.

    Asks for at most so many pages, a request each; returns also where the next call starts, "" after the last page.
    """
    found: list[OldClaim] = []
    container = storage.aio.blobs.get_container_client(storage.config.container("claims"))
    try:
        with translated("list the claims of", "all queues"):
            listing: Any = container.list_blobs(include=["metadata"], results_per_page=page).by_page(
                start or None
            )
            async for blobs in listing:
                async for blob in blobs:
                    queue, _, name = blob.name.partition("/")
                    expires = (blob.metadata or {}).get("expires", "")
                    if not expires.isdigit():
                        continue  # not ours
                    lasts = int(expires) == 0
                    if (blob.last_modified.timestamp() if lasts else int(expires)) < before:
                        found.append(OldClaim(queue, name, lasts))
                start, pages = listing.continuation_token or "", pages - 1
                if not start or not pages:
                    break
    except NotFound:
        return [], ""
    return found, start


class BlobClaims:
    """`ClaimStore` of one queue. The container is made on first use."""

    def __init__(self, storage: Account, queue: str) -> None:
        self._storage = storage
        self._queue = queue
        self._container = storage.config.container("claims")

    def _blob(self, name: str) -> Any:
        return self._storage.aio.blobs.get_blob_client(self._container, f"{self._queue}/{name}")

    async def put(self, name: str, content: bytes, *, expires_at: float) -> None:
        options: dict[str, Any] = {
            "overwrite": True,
            "metadata": {"expires": str(int(expires_at))},
            "read_timeout": _READ_SECONDS,
        }

        async def upload() -> None:
            with translated("write the claim", name):
                if len(content) <= _OFF_LOOP_BYTES:
                    await self._blob(name).upload_blob(content, **options)
                else:  # sending this much at once would hold up the event loop
                    blocking: Any = self._storage.blocking.blobs.get_blob_client(
                        self._container, f"{self._queue}/{name}"
                    )
                    await asyncio.to_thread(blocking.upload_blob, content, **options)

        await ensure_container(self._storage, self._container, upload)

    async def get(self, name: str, *, at_most: int) -> bytes:
        with translated("read the claim", name):
            download = await self._blob(name).download_blob(read_timeout=_READ_SECONDS)
            check_length(name, download.size, at_most)
            content: bytes = await download.readall()
        return content

    async def keep(self, name: str) -> None:
        with translated("keep the claim", name):
            await self._blob(name).set_blob_metadata({"expires": "0"})

    async def delete(self, name: str) -> None:
        try:
            with translated("delete the claim", name):
                await self._blob(name).delete_blob()
        except NotFound:
            return

    async def expired(self, before: float) -> list[str]:
        return [name for name, expires, _ in await self._all() if 0 < expires < before]

    async def lasting(self, before: float) -> list[str]:
        return [name for name, expires, written in await self._all() if not expires and written < before]

    async def _all(self) -> list[tuple[str, int, float]]:
        """Name, when it expires (0: never), when it was last written."""
        found = []
        container = self._storage.aio.blobs.get_container_client(self._container)
        try:
            with translated("list the claims of", self._queue):
                async for blob in container.list_blobs(
                    name_starts_with=f"{self._queue}/", include=["metadata"]
                ):
                    expires = (blob.metadata or {}).get("expires", "")
                    if expires.isdigit():
                        name = blob.name.removeprefix(f"{self._queue}/")
                        found.append((name, int(expires), blob.last_modified.timestamp()))
        except NotFound:
            return []
        return found


class BlobRules:
    """`RuleStore` in the account. A read of an unchanged rule carries no body; all are one request."""

    def __init__(self, storage: Account) -> None:
        self._storage = storage
        self._container = storage.config.container("rules")

    def _blob(self, queue: str) -> Any:
        return self._storage.aio.blobs.get_blob_client(self._container, queue)

    async def read(self, queue: str, etag: str) -> tuple[ScalingRule | None, str] | None:
        condition: dict[str, Any] = (
            {"etag": etag, "match_condition": MatchConditions.IfModified} if etag else {}
        )
        try:
            with translated("read the scaling rule of", queue):
                try:
                    download = await self._blob(queue).download_blob(**condition)
                    content = await download.readall()
                except HttpResponseError as error:
                    if error.status_code == 304:
                        return None
                    raise
        except NotFound:
            return None if not etag else (None, "")
        return decode_rule(content), download.properties.etag

    async def write(self, queue: str, rule: ScalingRule, *, by: str) -> None:
        async def upload() -> None:
            with translated("write the scaling rule of", queue):
                await self._blob(queue).upload_blob(encode_rule(rule), overwrite=True)

        await ensure_container(self._storage, self._container, upload)
        await self._storage.bus.publish(Notification(topic=f"rule:{queue}", origin=by))

    async def remove(self, queue: str) -> None:
        try:
            with translated("remove the scaling rule of", queue):
                await self._blob(queue).delete_blob()
        except NotFound:
            return
        await self._storage.bus.publish(Notification(topic=f"rule:{queue}"))


class BlobShards:
    """`ShardStore` in the account; each call is one request."""

    def __init__(self, storage: Account) -> None:
        self._storage = storage
        self._container = storage.config.container("rules")

    def _blob(self, name: str) -> Any:
        return self._storage.aio.blobs.get_blob_client(self._container, f"shards/{name}")

    async def read(self, name: str) -> tuple[ShardLayout | None, str]:
        try:
            with translated("read the shards of", name):
                download = await self._blob(name).download_blob()
                content = await download.readall()
        except NotFound:
            return None, ""
        try:
            return msgspec.json.decode(content, type=ShardLayout), download.properties.etag
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f"what is stored for the shards of {name} is damaged: {error}"
            ) from error

    async def write(self, name: str, layout: ShardLayout, etag: str) -> None:
        condition: dict[str, Any] = (
            {"etag": etag, "match_condition": MatchConditions.IfNotModified, "overwrite": True}
            if etag
            else {"overwrite": False}
        )

        async def upload() -> None:
            with translated("write the shards of", name):
                await self._blob(name).upload_blob(msgspec.json.encode(layout), **condition)

        await ensure_container(self._storage, self._container, upload)


class QueueOptions(TypedDict, total=False):
    """What `storage.queue` and `storage.sharded_queue` take beside name and type.

    `version` of the item's schema, and `upcasters` that bring items of older versions up to it; `config` of the queue.
    `envelope=False`: each item is a message of its own, without Kennel's envelope, for queues that other programs read: a
    `str` is the text itself, `bytes` are base64, everything else is JSON. It must fit 64 KiB, and carries no trace context.
    `base64=True`: such texts are in base64, as Azure Functions expects them; a `str` is read from base64, too.
    """

    version: int
    upcasters: Mapping[int, Upcaster] | None
    config: QueueConfig | None
    envelope: bool
    base64: bool


def make_queue(
    storage: Account,
    name: str,
    *,
    type: Any = Any,
    **options: Unpack[QueueOptions],
) -> Queue[Any]:
    """The queue of that name; no request is made."""
    config = options.get("config") or QueueConfig()
    version, upcasters = options.get("version", 0), options.get("upcasters")
    return Queue(
        AzureQueue(storage, name),
        # A poison queue shares its queue's claims: its records name them.
        LargePayloads(
            BlobClaims(storage, name.removesuffix(SUFFIX) or name),
            clock=storage.clock,
            max_payload_bytes=config.max_payload_bytes,
        ),
        schema=Schema(
            type=type,
            version=version,
            upcasters=dict(upcasters or {}),
            envelope=options.get("envelope", True),
            base64=options.get("base64", False),
        ),
        bus=lambda: storage.bus,
        transport_of=lambda other: AzureQueue(storage, other),
        identity=lambda: storage.identity,
        clock=storage.clock,
        config=config,
        rules=BlobRules(storage),
        portal=lambda: storage.portal,
    )


async def list_queues(storage: Account) -> list[str]:
    """The names of all queues of the account, poison queues included; one request for each 5,000."""
    with translated("list", "the queues"):
        return [queue.name async for queue in storage.aio.queues.list_queues()]
