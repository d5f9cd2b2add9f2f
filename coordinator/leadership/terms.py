"""The history of an election: who led when, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from coordinator.epochs import EpochRecord

RAN_OUT = "its lease ran out"


@dataclass(frozen=True)
class TermRecord:
    """One term. Times are seconds since 1970; `ended` None means that it has not ended, or that its leader died and nobody
    has succeeded it yet. `how` is a phrase for people."""

    name: str
    epoch: int
    holder: str
    since: float
    ended: float | None = None
    how: str = ""


class TermLog(Protocol):
    """Keeps terms, and with them the highest epoch of each election (it is an `EpochLog`, too).

    Elections claim an epoch before its term begins, and write the rest beside their work.
    """

    async def claim(self, record: EpochRecord) -> int:
        """Record a term's epoch before anybody acts in it; see `EpochLog.claim`."""

    async def began(self, record: TermRecord) -> None:
        """Record a new term, and (as `RAN_OUT`) the end of the one before if its leader has not recorded it."""

    async def ended(self, record: TermRecord) -> None:
        """Record the end of a term. A successor's guess (`RAN_OUT`) gives way to the leader's own report, but not
        the moment: a term did not outlast the beginning of the next."""

    async def newest(self, name: str, limit: int) -> list[TermRecord]:
        """The newest terms of an election, newest first."""
