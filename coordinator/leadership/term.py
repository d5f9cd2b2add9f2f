"""A term of leadership: how long it may last, and how everybody in it learns of its end."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from coordinator.clock import Clock
from coordinator.errors import ConfigurationError, LeadershipLost


@dataclass(frozen=True)
class LeaseConfig:
    """The one figure that decides how fast the loss of a leader is noticed; all others follow from it.

    `lease_seconds`: 15-60, whole; 15 by default. A shorter lease fails over sooner, a longer one survives longer
    hiccups of the network and of the leader. All candidates of one election must agree on it.
    """

    lease_seconds: int = 15

    def __post_init__(self) -> None:
        if self.lease_seconds != int(self.lease_seconds) or not 15 <= self.lease_seconds <= 60:
            raise ConfigurationError(
                f"lease_seconds must be a whole number from 15 to 60 (the service's bounds), got {self.lease_seconds}"
            )

    @property
    def renew_seconds(self) -> float:
        """From one renewal to the next, and from one look of a standby to the next: a third of the lease."""
        return self.lease_seconds / 3

    @property
    def request_seconds(self) -> float:
        """How long one request may take: two tries fit between two renewals."""
        return self.lease_seconds / 6

    @property
    def margin_seconds(self) -> float:
        """How long before its lease can have expired a leader stops: for the work to end, and for clocks that drift."""
        return self.lease_seconds / 10

    @property
    def term_seconds(self) -> float:
        """How long a term lasts from the moment its newest confirmed renewal was *sent*."""
        return self.lease_seconds - self.margin_seconds

    @property
    def hand_over_seconds(self) -> float:
        """How long a nominated successor has to begin its term."""
        return self.lease_seconds / 7.5

    def next_look(self, since: float, now: float, lag: float) -> float:
        """Seconds until a standby looks again. `lag` must stay the same from look to look.

        The leader renews at `since` + k × `renew_seconds`, so its lease can only run out at such a moment: looking
        `lag` seconds after each costs one request a `renew_seconds` and yet finds the end of the lease at once.
        """
        pause = self.renew_seconds - (now - since - lag) % self.renew_seconds
        return (
            pause if pause > 0.1 else pause + self.renew_seconds
        )  # woken a hair early: that look was this one


class Term:
    """The right to act as leader, for as long as `held`.

    Guarantees that `held` is False before the lease can have expired, whatever happened to the event loop or the
    network, because it is computed from the monotonic clock; and that a higher `epoch` has acted before never means
    that this one may. Does not guarantee that a write that was already sent arrives in time: fence it with `epoch`
    (see `coordinator.leadership.fencing`). Does not notice time during which the whole machine was suspended, where
    the system's monotonic clock does not count it.

    `epoch` is the fencing token: larger than that of every earlier term of this name. `since` is when the term began,
    in seconds since 1970 by the storage service's clock; `asked_at` is when the lease was asked for (monotonic), `etag` the version of the record. May be read from any thread.
    """

    def __init__(
        self,
        name: str,
        *,
        holder: str,
        epoch: int,
        lease_id: str,
        since: float,
        asked_at: float,
        deadline: float,
        clock: Clock,
        etag: str = "",
    ) -> None:
        self.name = name
        self.holder = holder
        self.epoch = epoch
        self.since = since
        self.lease_id = lease_id
        self.asked_at = asked_at
        self.etag = etag
        self._deadline = deadline
        self._clock = clock
        self._ended = ""
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    @property
    def held(self) -> bool:
        """Whether this node may act now."""
        return not self._ended and self._clock.monotonic() < self._deadline

    @property
    def remaining_seconds(self) -> float:
        """How long `held` stays true without another renewal."""
        return 0.0 if self._ended else max(0.0, self._deadline - self._clock.monotonic())

    def lease_left(self, margin_seconds: float) -> float:
        """Seconds until the service frees the lease by itself, the margin after `held` has become False; at least 0."""
        return max(0.0, self._deadline + margin_seconds - self._clock.monotonic())

    @property
    def overdue_seconds(self) -> float:
        """How long ago the deadline passed; 0 before it."""
        return max(0.0, self._clock.monotonic() - self._deadline)

    @property
    def is_ended(self) -> bool:
        """Whether somebody has said that the term is over; after a missed deadline nobody may have yet."""
        return bool(self._ended)

    @property
    def lost(self) -> Lost:
        """`await term.lost` returns, with the reason, when the term is over."""
        return Lost(self._event, self)

    @property
    def reason(self) -> str:
        """Why the term is over; "" while it is held."""
        return self._ended or ("" if self.held else "its lease could not be renewed in time")

    def check(self, *, needs_seconds: float = 0.0) -> None:
        """Raise `LeadershipLost` unless the term is held, and will be for `needs_seconds`: call before each effect."""
        if not self.held:
            raise LeadershipLost(f"{self.name}: term {self.epoch} of {self.holder} is over: {self.reason}")
        if self.remaining_seconds < needs_seconds:
            raise LeadershipLost(
                f"{self.name}: term {self.epoch} has {self.remaining_seconds:.1f} s left; {needs_seconds:g} s are needed"
            )

    def extend(self, deadline: float) -> bool:
        """Take over a later deadline; False if the term was over already: what was seen as lost stays lost."""
        if not self.held:
            return False
        self._deadline = max(self._deadline, deadline)
        return True

    def end(self, reason: str) -> None:
        """The term is over, for the first reason given. From any thread."""
        if not self._ended:
            self._ended = reason
        with suppress(RuntimeError):  # the loop is gone, and everybody who waited with it
            self._loop.call_soon_threadsafe(self._event.set)

    def __repr__(self) -> str:
        return f"Term({self.name!r}, epoch={self.epoch}, holder={self.holder!r}, held={self.held})"


class Lost:
    """The end of a term, to be awaited, by any number of tasks."""

    def __init__(self, event: asyncio.Event, term: Term) -> None:
        self._event = event
        self._term = term

    def __await__(self) -> Generator[Any, None, str]:
        yield from self._event.wait().__await__()
        return self._term.reason
