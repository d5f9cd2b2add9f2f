"""Every storage request is billed, so every storage request is counted."""

from __future__ import annotations

import threading
from collections import Counter
from typing import NamedTuple


class Request(NamedTuple):
    """What is counted together: the service, the operation in the service's own words, and the thing it was about."""

    service: str
    operation: str
    resource: str


class Meter:
    """Counts requests by service, operation and resource. Thread-safe; counts survive until the process ends.

    Guarantees one count for each HTTP request sent, whether or not an answer came. Does not count what other
    processes send.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[Request] = Counter()
        self._bytes_sent = 0

    def count(self, request: Request, *, bytes_sent: int = 0) -> None:
        with self._lock:
            self._requests[request] += 1
            self._bytes_sent += bytes_sent

    def snapshot(self) -> dict[Request, int]:
        """A copy of all counts so far."""
        with self._lock:
            return dict(self._requests)

    @property
    def total(self) -> int:
        """All requests so far."""
        with self._lock:
            return sum(self._requests.values())

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
