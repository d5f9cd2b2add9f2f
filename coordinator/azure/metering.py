"""Every storage request is billed, so every one is counted where it is sent, with the bytes of its body and of its answer's.

The SDK's transports over pooled connections count by themselves; what sends plain requests calls `Meter`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit
from urllib.request import getproxies

import aiohttp
import requests
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from requests.adapters import HTTPAdapter

# What is reported of a queue besides its requests; `claim_*` are requests for payloads in blobs, whose bytes are in the sums.
TRAFFIC = ("bytes_sent", "bytes_received", "claim_writes", "claim_reads", "claim_deletes")


class Request(NamedTuple):
    """What is counted together: the service, the operation in the service's own words, and the thing it was about.

    `claims_of` is the queue whose payload a blob holds, "" for all others.
    """

    service: str
    operation: str
    resource: str
    claims_of: str = ""


class Meter:
    """Counts requests by service, operation and resource. Thread-safe; counts survive until the process ends.

    Guarantees one count for each HTTP request sent, whether or not an answer came. Bytes are those of bodies as their
    Content-Length says; headers are not counted. Does not count what other processes send.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Request, list[int]] = {}  # requests, bytes sent, bytes received

    def count(self, request: Request, *, bytes_sent: int = 0) -> None:
        """A request is being sent."""
        with self._lock:
            counts = self._counts.get(request)
            if counts is None:
                counts = self._counts[request] = [0, 0, 0]
            counts[0] += 1
            counts[1] += bytes_sent

    def answered(self, request: Request, bytes_received: int) -> None:
        """The answer to a request that was counted has so many bytes."""
        with self._lock:
            self._counts[request][2] += bytes_received

    def snapshot(self) -> dict[Request, int]:
        """A copy of all counts so far."""
        with self._lock:
            return {request: counts[0] for request, counts in self._counts.items()}

    @property
    def total(self) -> int:
        """All requests so far."""
        with self._lock:
            return sum(counts[0] for counts in self._counts.values())

    def by_operation(self) -> dict[str, int]:
        """Counts added up to ``service.Operation``."""
        totals: Counter[str] = Counter()
        for request, number in self.snapshot().items():
            totals[f"{request.service}.{request.operation}"] += number
        return dict(totals)

    def by_queue(self, most: int = 100) -> dict[str, int]:
        """Requests to the queue service by queue, the `most` busiest; those of all others under ""."""
        totals: Counter[str] = Counter()
        for request, number in self.snapshot().items():
            if request.service == "queue":
                totals[request.resource] += number
        ranked = totals.most_common()
        found = dict(ranked[:most])
        if rest := sum(number for _, number in ranked[most:]):
            found[""] = found.get("", 0) + rest
        return found

    def traffic(self, most: int = 100) -> dict[str, int]:
        """``QUEUE/WHAT`` for each of `TRAFFIC` that is not 0, of the queues that `by_queue` names; of all others ``/WHAT``."""
        named = self.by_queue(most)
        with self._lock:
            rows = [(request, tuple(counts)) for request, counts in self._counts.items()]
        totals: Counter[str] = Counter()
        for request, (number, sent, received) in rows:
            queue = request.claims_of if request.service == "blob" else request.resource
            if request.service not in ("queue", "blob") or not queue:
                continue
            at = queue if queue in named else ""
            totals[f"{at}/bytes_sent"] += sent
            totals[f"{at}/bytes_received"] += received
            if request.claims_of:
                totals[f"{at}/{_claim(request.operation)}"] += number
        return {key: number for key, number in totals.items() if number}


def _claim(operation: str) -> str:
    if operation == "DeleteBlob":
        return "claim_deletes"
    return "claim_reads" if operation.startswith("Get") else "claim_writes"


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
    """As the header says; 0 without one."""
    length = (headers or {}).get("Content-Length", "")
    return int(length) if length.isdigit() else 0


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
