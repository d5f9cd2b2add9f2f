"""What a gate needs of a store, and one request for all who ask at the same time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from coordinator.errors import KennelError
from coordinator.gates.state import GateState


@dataclass(frozen=True)
class Answer:
    """One answer of the store. `state` is None if nothing changed since the ETag that was sent.

    `etag` is "" for a gate that does not exist yet; its state is closed, epoch 0. `date` is the service's clock in
    seconds since 1970, None if it does not tell.
    """

    state: GateState | None
    etag: str
    date: float | None = None


class GateStore(Protocol):
    """Keeps one gate, with a version that changes with every write."""

    @property
    def name(self) -> str: ...

    async def read(self, etag: str) -> Answer:
        """The gate, or the news that it is still the one of that ETag ("" asks for the gate itself)."""

    async def write(self, state: GateState, etag: str) -> str:
        """Replace the gate of that ETag ("" creates it) and return the new ETag.

        Raises `PreconditionFailed` if somebody wrote in between; then nothing changed.
        """


class SharedReads:
    """Reads of one gate, joined.

    Guarantees that an answer belongs to a request that was sent after `read` was called: a caller never joins a request
    that is on its way already, but the one after it. So any number of callers costs at most two requests in a row.
    """

    def __init__(self, store: GateStore) -> None:
        self._store = store
        self._flying: asyncio.Task[Answer] | None = None
        self._next: asyncio.Task[Answer] | None = None
        self._etag = ""
        self._state: GateState | None = None

    async def read(self, etag: str) -> Answer:
        if self._next is None:
            self._next = asyncio.create_task(self._ask(self._flying), name=f"read gate {self._store.name}")
            self._next.add_done_callback(_retrieve)
        answer = await asyncio.shield(self._next)
        return Answer(None, etag, answer.date) if etag and etag == answer.etag else answer

    async def _ask(self, before: asyncio.Task[Answer] | None) -> Answer:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._flying, self._next = self._next, None
        answer = await self._store.read(self._etag)
        if answer.state is None:
            return Answer(self._state, self._etag, answer.date)
        self._state, self._etag = answer.state, answer.etag
        return answer


def _retrieve(task: asyncio.Task[Answer]) -> None:
    # Whoever asked may be gone; then nobody else takes the error.
    if not task.cancelled() and isinstance(task.exception(), KennelError):
        return
