"""What an election needs of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class LeaderInfo:
    """What is stored about one election. `lease_state` is the service's word: available, leased, expired, breaking or
    broken. `holder` is the newest leader, whether or not its lease still runs; `since` is when its term began, in
    seconds since 1970; `date` is the service's clock at this answer, None if it does not tell. `lease_seconds` and
    `renew_seconds` are the newest leader's, 0 if it did not say. `problem` says what of the record could not be read;
    those fields then have their defaults."""

    name: str
    holder: str = ""
    epoch: int = 0
    since: float = 0.0
    nonce: str = ""
    lease_state: str = "available"
    etag: str = ""
    date: float | None = None
    lease_seconds: float = 0.0
    renew_seconds: float = 0.0
    problem: str = ""

    @property
    def is_held(self) -> bool:
        return self.lease_state in ("leased", "breaking")


@dataclass(frozen=True)
class Successor:
    """A standby that asks to be handed the lease, under the lease id that it made for itself."""

    identity: str
    lease_id: str


class LeaseStore(Protocol):
    """One lease, and the record that is written under it.

    Lease ids are strings that the caller makes; an empty one is refused with `ValueError`, because the service would
    take it for no condition at all.
    """

    @property
    def name(self) -> str: ...

    async def acquire(self, lease_id: str, lease_seconds: int) -> None:
        """Take the lease, or renew it if that id has it already. Raises `LeaseHeld` if another id has it."""

    async def renew(self, lease_id: str) -> None:
        """Make the lease last its whole time again. Raises `LeaseNotHeld` if another took it or it was broken."""

    async def change(self, lease_id: str, successor_id: str) -> None:
        """Give the lease to another id, with no moment between. Raises `LeaseNotHeld`."""

    async def release(self, lease_id: str, *, etag: str = "") -> None:
        """Free the lease, if that id has it, and (with `etag`) if nobody wrote since.

        Raises `LeaseNotHeld` or `PreconditionFailed`.
        """

    async def break_now(self) -> None:
        """Free the lease whoever has it; harmless if nobody has."""

    async def read(self) -> LeaderInfo:
        """The record and the state of the lease; epoch 0 if nobody ever led."""

    async def write(self, info: LeaderInfo, *, lease_id: str = "", etag: str = "") -> str:
        """Replace holder, epoch, since and nonce, under the lease or (without `lease_id`) while nobody has it.

        Returns the new ETag.

        Raises `LeaseNotHeld` if that id does not have the lease, `LeaseHeld` if somebody has it and no id was given,
        `PreconditionFailed` if the record is not the one of `etag`.
        """

    async def nominate(self, nominee: Successor) -> None:
        """Say who wants to be next, in place of whoever said so before. Kept apart from the leased record."""

    async def nominee(self) -> Successor | None:
        """Who asked last to be next; None if nobody ever did."""
