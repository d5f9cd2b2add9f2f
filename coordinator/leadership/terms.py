"""The history of an election: who led when, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class TermRecord:
    """One term. Times are seconds since 1970; `ended` None means that it lasts, or that its leader died and nobody
    has succeeded it yet. `how` is a phrase for people."""

    name: str
    epoch: int
    holder: str
    since: float
    ended: float | None = None
    how: str = ""


class TermLog(Protocol):
    """Keeps terms. Elections write it beside their work: a term does not wait for its record."""

    async def began(self, record: TermRecord) -> None:
        """Record a new term, and the end of the one before if its leader did not record it."""

    async def ended(self, record: TermRecord) -> None:
        """Record the end of a term, unless a successor has done so already."""

    async def newest(self, name: str, limit: int) -> list[TermRecord]:
        """The newest terms of an election, newest first."""
