"""HTTP transports for the SDK: pooled connections, and every request counted where it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import getproxies

import aiohttp
import requests
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from requests.adapters import HTTPAdapter

from coordinator.azure.metering import Meter, Request

POOL_SIZE = 100

_OPERATIONS = {
    ("blob", "GET", ""): "GetBlob",
    ("blob", "HEAD", ""): "GetBlobProperties",
    ("blob", "PUT", ""): "PutBlob",
    ("blob", "DELETE", ""): "DeleteBlob",
    ("blob", "PUT", "metadata"): "SetBlobMetadata",
    ("blob", "PUT", "lease"): "LeaseBlob",
    ("blob", "PUT", "tags"): "SetBlobTags",
    ("blob", "GET", "tags"): "GetBlobTags",
    ("blob", "PUT", "appendblock"): "AppendBlock",
    ("blob", "PUT", "block"): "PutBlock",
    ("blob", "PUT", "blocklist"): "PutBlockList",
    ("blob", "GET", "list"): "ListBlobs",
    ("blob", "PUT", "container"): "CreateContainer",
    ("blob", "GET", "container"): "GetContainerProperties",
    ("blob", "DELETE", "container"): "DeleteContainer",
    ("queue", "GET", ""): "GetMessages",
    ("queue", "GET", "peek"): "PeekMessages",
    ("queue", "POST", ""): "PutMessage",
    ("queue", "PUT", ""): "UpdateMessage",
    ("queue", "DELETE", ""): "DeleteMessage",
    ("queue", "DELETE", "messages"): "ClearMessages",
    ("queue", "GET", "metadata"): "GetQueueMetadata",
    ("queue", "PUT", "metadata"): "SetQueueMetadata",
    ("queue", "GET", "list"): "ListQueues",
    ("queue", "PUT", "queue"): "CreateQueue",
    ("queue", "DELETE", "queue"): "DeleteQueue",
    ("table", "GET", ""): "QueryEntities",
    ("table", "POST", ""): "InsertEntity",
    ("table", "PUT", ""): "UpdateEntity",
    ("table", "PATCH", ""): "MergeEntity",
    ("table", "MERGE", ""): "MergeEntity",
    ("table", "DELETE", ""): "DeleteEntity",
    ("table", "POST", "batch"): "EntityGroupTransaction",
    ("table", "POST", "tables"): "CreateTable",
    ("table", "GET", "tables"): "QueryTables",
    ("table", "DELETE", "tables"): "DeleteTable",
}


def classify(service: str, method: str, url: str, base_path: str, claims: str = "") -> Request:
    """What a request is counted as: the service's name for the operation, and the container, queue or table.

    `claims` is the container whose blobs are ``{queue}/{claim}``.
    """
    parts = urlsplit(url)
    path = parts.path.removeprefix(base_path).lstrip("/")
    query = parse_qs(parts.query, keep_blank_values=True)
    kind = query.get("comp", [""])[0]
    names = path.split("/")
    resource, claims_of = names[0], ""
    if service == "queue":
        if not kind and len(names) == 1:
            kind = "queue"
        elif not kind and method == "DELETE" and names[-1] == "messages":
            kind = "messages"
        elif "peekonly" in query:
            kind = "peek"
    elif service == "blob":
        if not kind and query.get("restype") == ["container"]:
            kind = "container"
        if resource == claims and len(names) > 2:
            claims_of = names[1]
    else:
        resource = names[0].split("(")[0]
        if resource == "$batch":
            kind = "batch"
        elif resource == "Tables":
            kind = "tables"
        else:
            kind = ""
    operation = _OPERATIONS.get((service, method, kind), f"{method} {kind}".strip())
    return Request(service, operation, resource, claims_of)


def _length(headers: Mapping[str, str] | None) -> int:
    """As told; 0 if it is not."""
    told = (headers or {}).get("Content-Length", "")
    return int(told) if told.isdigit() else 0


class CountingAioTransport(AioHttpTransport):  # type: ignore[misc,unused-ignore]
    """The SDK's asyncio transport over a shared session; counts each request as it is sent."""

    def __init__(
        self, session: aiohttp.ClientSession, *, service: str, base_path: str, meter: Meter, claims: str = "", **config: Any
    ):  # fmt: skip
        super().__init__(session=session, session_owner=False, **config)
        self._service, self._base_path, self._claims, self._meter = service, base_path, claims, meter

    async def send(self, request: Any, **kwargs: Any) -> Any:
        counted = classify(self._service, request.method, request.url, self._base_path, self._claims)
        self._meter.count(counted, bytes_sent=_length(request.headers))
        answer = await super().send(request, **kwargs)
        if request.method != "HEAD" and answer is not None:
            self._meter.answered(counted, _length(answer.headers))
        return answer


class CountingRequestsTransport(RequestsTransport):  # type: ignore[misc,unused-ignore]
    """The SDK's blocking transport over a shared session; counts each request as it is sent."""

    def __init__(
        self, session: requests.Session, *, service: str, base_path: str, meter: Meter, claims: str = "", **config: Any
    ):  # fmt: skip
        super().__init__(session=session, session_owner=False, **config)
        self._service, self._base_path, self._claims, self._meter = service, base_path, claims, meter

    def send(self, request: Any, **kwargs: Any) -> Any:
        counted = classify(self._service, request.method, request.url, self._base_path, self._claims)
        self._meter.count(counted, bytes_sent=_length(request.headers))
        answer = super().send(request, **kwargs)
        if request.method != "HEAD" and answer is not None:
            self._meter.answered(counted, _length(answer.headers))
        return answer


def blocking_session() -> requests.Session:
    """A session that several threads may share, without retries of its own."""
    session = requests.Session()
    adapter = HTTPAdapter(pool_connections=8, pool_maxsize=POOL_SIZE, max_retries=0)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def aio_session() -> aiohttp.ClientSession:
    """A session for the running event loop; bodies are left compressed, as the SDK expects."""
    connector = aiohttp.TCPConnector(limit=POOL_SIZE, keepalive_timeout=60)
    # Asking for the proxy of each request hops through a thread: only where there is one at all.
    session = aiohttp.ClientSession(connector=connector, auto_decompress=False, trust_env=bool(getproxies()))
    # Otherwise a PUT or DELETE whose connection broke is sent again unseen, and meets its own effect.
    session._retry_connection = False
    return session
