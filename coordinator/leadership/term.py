"""A term of leadership: how long it may last, and how everybody in it learns of its end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from coordinator.clock import Clock
from coordinator.errors import ConfigurationError, LeadershipLost


@dataclass(frozen=True)
class LeaseConfig:
    """How fast the loss of a leader is noticed, and what that costs. The names are client-go's.

    Attributes:
        lease_seconds: LeaseDuration, 15 to 60, whole (default 15). A shorter lease fails over sooner, a longer one
            survives longer hiccups of the network and of the leader.
        renew_seconds: From one renewal to the next (default: two thirds of the lease, 360 requests an hour for 15 s).
            Less costs more and notices a broken lease sooner. A standby that receives no renewals over the bus checks
            as often.
        renew_deadline_seconds: RenewDeadline: how long a term lasts after its newest confirmed renewal was sent
            (default: nine tenths of the lease). The rest is for the work to end, and for clocks that drift.
        retry_seconds: RetryPeriod: the longest pause before a failed request is sent again (default 2).

    Raises:
        ConfigurationError: A time is out of bounds.
    """

    lease_seconds: int = 15
    renew_seconds: float = 0.0
    renew_deadline_seconds: float = 0.0
    retry_seconds: float = 2.0

    def __post_init__(self) -> None:
        if (
            isinstance(self.lease_seconds, bool)
            or self.lease_seconds not in range(15, 61)
            or self.lease_seconds != int(self.lease_seconds)
        ):
            raise ConfigurationError(
                f"lease_seconds must be a whole number from 15 to 60 (the service's bounds), got {self.lease_seconds}"
            )
        lease = int(self.lease_seconds)  # the service takes 15, not 15.0
        object.__setattr__(self, "lease_seconds", lease)
        object.__setattr__(self, "renew_seconds", self.renew_seconds or lease * 2 / 3)
        object.__setattr__(self, "renew_deadline_seconds", self.renew_deadline_seconds or lease * 0.9)
        if not 1 <= self.renew_seconds < self.renew_deadline_seconds <= lease * 0.95:
            raise ConfigurationError(
                f"1 <= renew_seconds < renew_deadline_seconds <= {lease * 0.95:g} (95 % of lease_seconds) is needed, got "
                f"{self.renew_seconds:g} and {self.renew_deadline_seconds:g}"
            )
        if not 0 < self.retry_seconds <= lease:
            raise ConfigurationError(
                f"retry_seconds must be above 0 and at most {lease}, got {self.retry_seconds:g}"
            )

    @property
    def health_seconds(self) -> float:
        """From one health check of a leader to the next: at most a third of the lease, and a whole number of them between
        two renewals."""
        return self.renew_seconds / math.ceil(3 * self.renew_seconds / self.lease_seconds)

    @property
    def request_seconds(self) -> float:
        """How long one request may take."""
        return self.lease_seconds / 6

    @property
    def resend_seconds(self) -> float:
        """How long a renewal may be without an answer before another is sent beside it."""
        return (self.renew_deadline_seconds - self.renew_seconds) / 3

    @property
    def margin_seconds(self) -> float:
        """How long before its lease can have expired a leader stops: for the work to end, and for clocks that drift."""
        return self.lease_seconds - self.renew_deadline_seconds

    @property
    def term_seconds(self) -> float:
        """How long a term lasts from the moment its newest confirmed renewal was *sent*."""
        return self.renew_deadline_seconds

    @property
    def hand_over_seconds(self) -> float:
        """How long a nominated successor has to begin its term."""
        return self.lease_seconds / 7.5

    def next_check(
        self,
        since: float,
        now: float,
        lag: float,
        *,
        lease_seconds: float = 0.0,
        renew_seconds: float = 0.0,
    ) -> float:
        """How long a standby waits before it checks the lease again.

        The leader renews at `since` + k × `renew_seconds`, so its lease can end only a lease after such a moment: a
        check `lag` seconds after it finds the end at once.

        Args:
            since: When the term began.
            now: The time, by the clock of `since`.
            lag: How long after each moment, in seconds; the same from check to check.
            lease_seconds: The leader's (default 0: as configured here).
            renew_seconds: The leader's (default 0: as configured here).

        Returns:
            Seconds.
        """
        lease, renew = lease_seconds or float(self.lease_seconds), renew_seconds or self.renew_seconds
        # Clocks that disagree must not make the wait for the first end longer than a lease.
        after = max(now - (since + lease + lag), -(lease + lag))
        end = max(0, math.ceil((after + 0.1) / renew))  # woken a hair early: that check was this one
        return end * renew - after


WITH_PUSH = LeaseConfig()
"""The default of an election whose bus reaches other processes, and of locks."""
WITHOUT_PUSH = LeaseConfig(20, renew_seconds=16.25, renew_deadline_seconds=18.5)
"""The default of an election without such a bus: leader and standby send 222 requests an hour."""


class Term:
    """The right to act as leader, for as long as `held`. May be read from any thread.

    Guarantees that `held` is False before the lease can have expired, whatever happened to the event loop or the
    network, because it is computed from the monotonic clock.

    Does not guarantee that a write that was already sent arrives in time: fence it with `epoch` (see
    `coordinator.leadership.fencing`). Does not notice time during which the whole machine was suspended, where the
    system's monotonic clock does not count it.

    Args:
        name: The election or lock.
        holder: The identity of the leader.
        epoch: The fencing token: larger than that of every earlier term of this name.
        lease_id: The id of the lease.
        since: When the term began, in seconds since 1970 by the storage service's clock.
        asked_at: When the lease was asked for, by the monotonic clock.
        deadline: Until when `held` is True without another renewal, by the monotonic clock.
        clock: The clock.
        etag: The version of the record.

    Raises:
        LeadershipLost: See `check`.

    Examples:
        >>> async def close_the_books(term: Term) -> None:
        ...     term.check(needs_seconds=5)
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
        self._stopping = ""
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    @property
    def held(self) -> bool:
        """Whether this node may act now."""
        return not self._stopping and self.has_lease

    @property
    def has_lease(self) -> bool:
        """Whether the lease is still this node's; `held` is False before, when a thread was asked to stop."""
        return not self._ended and self._clock.monotonic() < self._deadline

    @property
    def remaining_seconds(self) -> float:
        """How long `held` stays true without another renewal."""
        return 0.0 if self._ended else max(0.0, self._deadline - self._clock.monotonic())

    def lease_left(self, margin_seconds: float) -> float:
        """How long until the service frees the lease by itself.

        Args:
            margin_seconds: The margin by which `held` becomes False earlier.

        Returns:
            Seconds, at least 0.
        """
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
        return self._stopping or self.loss

    @property
    def loss(self) -> str:
        """Why the lease is no longer this node's; "" while it is."""
        return self._ended or ("" if self.has_lease else "its lease could not be renewed in time")

    def check(self, *, needs_seconds: float = 0.0) -> None:
        """Raise unless the term is held: call it before each effect.

        Args:
            needs_seconds: For how long it must be held without another renewal (default 0).

        Raises:
            LeadershipLost: It is not, or will not be.
        """
        if not self.held:
            raise LeadershipLost(f"{self.name}: term {self.epoch} of {self.holder} is over: {self.reason}")
        if self.remaining_seconds < needs_seconds:
            raise LeadershipLost(
                f"{self.name}: term {self.epoch} has {self.remaining_seconds:.1f} s left; {needs_seconds:g} s are needed"
            )

    def extend(self, deadline: float) -> bool:
        """Take over a later deadline, after a renewal.

        Args:
            deadline: The deadline, by the monotonic clock.

        Returns:
            False if the term was over: what was seen as lost stays lost.
        """
        if not self.has_lease:
            return False
        self._deadline = max(self._deadline, deadline)
        return True

    def stop(self, reason: str) -> None:
        """Ask work in a thread, which nobody can cancel, to stop: `held` is False from here on. The lease stays.

        Args:
            reason: Why.
        """
        self._stopping = self._stopping or reason
        self.on_loop(self._event.set)

    def on_loop(self, call: Callable[[], object]) -> None:
        """Call a function on the event loop of this term; from any thread.

        Args:
            call: The function.
        """
        with suppress(RuntimeError):  # the loop is gone, and everybody who waited with it
            self._loop.call_soon_threadsafe(call)

    def end(self, reason: str) -> None:
        """End the term, for the first reason given. From any thread.

        Args:
            reason: Why.
        """
        if not self._ended:
            self._ended = reason
        self.on_loop(self._event.set)

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
