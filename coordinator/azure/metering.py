"""Every storage request is billed, so every storage request is counted, with the bytes of its body and of its answer's."""

from __future__ import annotations

import threading
from collections import Counter
from typing import NamedTuple

# What is told of a queue besides its requests; `claim_*` are requests for payloads in blobs, whose bytes are in the sums.
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
    lengths were told; headers are not in them. Does not count what other processes send.
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
