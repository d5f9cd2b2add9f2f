"""How many dequeue tasks a listener has, and why: the rule, the figures it decides from, and the rule stored for a queue."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from coordinator.bus import Bus
from coordinator.clock import Clock
from coordinator.errors import ConfigurationError, StorageError
from coordinator.queues.pace import Pace
from coordinator.queues.rules import Decision, Measured, ScalingRule, decide

_log = logging.getLogger("coordinator.queues")
DECIDE_SECONDS = 2.0
_POLL_SECONDS = 2.5
_PUSH_POLL_SECONDS = 60.0


class RuleStore(Protocol):
    """Scaling rules by queue, where operators change them."""

    async def read(self, queue: str, etag: str) -> tuple[ScalingRule | None, str] | None:
        """The rule of a queue (None: none is stored) and its ETag; None if it is still the one of `etag`."""

    async def write(self, queue: str, rule: ScalingRule, *, by: str) -> None:
        """Store."""

    async def remove(self, queue: str) -> None:
        """Fall back to the listeners' own rules; harmless if none is stored."""


class Growth:
    """The rule in force for one listener, and its last decision.

    A stored rule goes before the listener's own. It is looked up when work is found, at once after a hint, else every 2.5 s
    without push and every 60 s with it; a queue without work is not looked after.
    """

    def __init__(
        self, queue: str, allowed: range, own: ScalingRule, *, store: RuleStore | None, clock: Clock
    ) -> None:
        self.queue = queue
        self.allowed = allowed
        self.rule = own
        self.decision = Decision(allowed.start, "nothing was found yet")
        self.stored = False
        self._own, self._store, self._clock = own, store, clock
        self._etag = ""
        self._read_at = float("-inf")
        self._decided_at = float("-inf")
        self._up_at = self._down_at = float("-inf")
        self._reading = asyncio.Lock()

    @property
    def due(self) -> bool:
        """Whether it is time to decide again."""
        return self._clock.monotonic() - self._decided_at >= DECIDE_SECONDS

    def hinted(self) -> None:
        """The stored rule may have changed."""
        self._read_at = self._decided_at = float("-inf")

    def decided(self, wanted: int, step: int) -> None:
        """Note when the last steps were, and an answer that was not this rule's."""
        now = self._clock.monotonic()
        self._decided_at = now
        if step > 0:
            self._up_at = now
        elif step < 0:
            self._down_at = now
        if wanted != self.decision.tasks:
            self.decision = Decision(wanted, f"{wanted} by the work_detected handler")

    def emptied(self, floor: int) -> None:
        self.decision = Decision(floor, f"{floor} because the queue is empty")

    def first_step(self) -> int:
        """What the rule would start for one message."""
        return decide(self.rule, Measured(waiting=1), allowed=self.allowed).tasks

    async def decide(self, *, depth: int | None, held: int, tasks: int, pace: Pace, bus: Bus) -> int:
        """The tasks wanted now. `depth` includes what is in hand."""
        await self.follow(bus)
        now = self._clock.monotonic()
        measured = Measured(
            waiting=None if depth is None else max(0, depth - held),
            in_hand=held,
            tasks=tasks,
            arrival_per_second=pace.arrival_per_second(depth),
            service_seconds=pace.service_seconds,
            since_up_seconds=now - self._up_at,
            since_down_seconds=now - self._down_at,
        )
        self.decision = decide(self.rule, measured, allowed=self.allowed)
        return self.decision.tasks

    async def follow(self, bus: Bus) -> None:
        """Read the stored rule if it is time; trouble keeps the rule in force."""
        if self._store is None:
            return
        pause = _PUSH_POLL_SECONDS if bus.is_connected else _POLL_SECONDS
        async with self._reading:
            now = self._clock.monotonic()
            if now - self._read_at < pause:
                return
            self._read_at = now
            try:
                answer = await self._store.read(self.queue, self._etag)
            except (StorageError, ConfigurationError) as error:
                _log.warning(
                    "The scaling rule of %s cannot be read; the last one stays: %s", self.queue, error
                )
                return
            if answer is None:
                return
            rule, self._etag = answer
            changed = (rule or self._own) != self.rule
            self.rule, self.stored = rule or self._own, rule is not None
            if changed:
                # The operator's word counts at once: no cool-down of the rule before.
                self._up_at = self._down_at = float("-inf")
                _log.info("A new scaling rule for %s: %s", self.queue, self.rule)
