"""What a gate needs of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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
