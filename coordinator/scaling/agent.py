"""The scaling agent: observe, decide, record, act; one process of the fleet at a time."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import ConfigurationError, KennelError, LeadershipLost
from coordinator.queues.notifications import Subscriptions
from coordinator.realtime.bus import Bus, Hint
from coordinator.scaling.decision import AgentState, Decision, Observation, decide
from coordinator.scaling.drivers import Driver
from coordinator.scaling.history import ScalingHistory
from coordinator.scaling.policy import ScalingPolicy
from coordinator.scaling.usage import WEEK_SECONDS, Usage, count_usage, day_of, expected_per_second
from coordinator.scaling.waking import SHORTEST_SECONDS, is_surprise, wakes_above

_log = logging.getLogger("coordinator.scaling")

Observe = Callable[[int], Awaitable[Observation]]
PolicySource = Callable[[], Awaitable[ScalingPolicy]]


class FencedTerm(Protocol):
    """What the agent needs of a `Term`."""

    @property
    def epoch(self) -> int: ...

    def check(self, *, needs_seconds: float = 0.0) -> None: ...


class ScalingAgent:
    """Keeps a pool as large as its policy asks for; run it as the task of an election.

    Guarantees that every change is recorded with its reason before it is made, under the epoch of the term. An agent
    that takes over goes on from that record (the same number, the same cool-down), so a crash neither loses a change
    nor makes the pool flap. A failed observation changes nothing; what storage or the driver could not do is repeated
    at the next turn.

    Does not guarantee that the pool has the desired size at any moment: instances take time to start, and die; each
    turn asks again.

    Args:
        pool: The name of the pool.
        driver: Starts and stops instances, such as `LocalProcessDriver` or `DryRunDriver`.
        policy: A `ScalingPolicy`, or a coroutine function that reads the current one (operators may edit it).
        observe: Gets the number of instances and returns an `Observation`.
        history: Where decisions are stored.
        identity: What this process is called in records.
        every_seconds: Seconds between two turns (default 15). Each costs a request for the record and those of
            `observe`. A turn comes sooner if the decision asks for one, and when more messages are announced than the
            pool was sized for.
        bus: Where messages are announced (default: nowhere).
        topics: The topics of those announcements.
        clock: The clock, for tests.

    Raises:
        ConfigurationError: `every_seconds` is not positive.

    Examples:
        >>> await storage.election("scale-billing").run(agent.lead)
    """

    def __init__(
        self,
        pool: str,
        driver: Driver,
        *,
        policy: ScalingPolicy | PolicySource,
        observe: Observe,
        history: ScalingHistory,
        identity: str = "",
        every_seconds: float = 15.0,
        bus: Callable[[], Bus] | None = None,
        topics: Sequence[str] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if every_seconds <= 0:
            raise ConfigurationError(f"every_seconds must be positive, got {every_seconds}")
        self.pool = pool
        self.driver = driver
        self.history = history
        self.every_seconds = every_seconds
        self._policy = policy
        self._observe = observe
        self._identity = identity
        self._clock = clock
        self._memory: AgentState | None = None
        self._usage: Usage | None = None
        self._days: dict[float, Usage | None] = {}
        self._signal = asyncio.Event()
        self._bus, self._topics = bus, topics
        self._announced: float = 0
        self._above, self._looked_at = 0.0, clock.monotonic()

    async def lead(self, term: FencedTerm) -> None:
        """Turn after turn until cancelled; the task of an election.

        Args:
            term: The term.
        """
        self._memory = None
        hints = Subscriptions()
        try:
            if self._bus is not None:
                for topic in self._topics:
                    hear = self._hear_gate if topic.startswith("gate:") else self._hear
                    hints.on(self._bus(), topic, hear)
            while True:
                await self._rest(await self._turn(term))
        finally:
            hints.close()

    async def _turn(self, term: FencedTerm) -> float:
        """A turn that survives what storage or the driver cannot do; returns when the next is due, in seconds."""
        try:
            decision = await self.step(term)
        except LeadershipLost:
            raise
        except (KennelError, OSError) as error:
            _log.warning("Scaling %s: %s; asked again next turn", self.pool, error)
            return self.every_seconds
        return min(self.every_seconds, decision.next_seconds or self.every_seconds)

    def _hear(self, hint: Hint) -> None:
        if hint.due <= self._clock.time():
            self._announced += max(1, hint.size)
            self._signal.set()

    def _hear_gate(self, hint: Hint) -> None:
        """A gate has opened or closed: that is always worth a look."""
        self._announced = math.inf
        self._signal.set()

    async def _rest(self, seconds: float) -> None:
        """Until the next turn is due, or more was announced than the pool is made for."""
        until = self._clock.monotonic() + seconds
        while (now := self._clock.monotonic()) < until:
            elapsed = now - self._looked_at
            if is_surprise(self._announced, self._above, elapsed):
                return
            self._signal.clear()
            early = SHORTEST_SECONDS - elapsed if self._announced else 0.0
            await self._clock.wait(self._signal, early if early > 0 else until - now)

    async def step(self, term: FencedTerm) -> Decision:
        """One turn.

        Args:
            term: The term.

        Returns:
            What was decided, and why.

        Raises:
            LeadershipLost: The term is over.
            StorageError: `observe`, the record or the driver failed; the driver may raise errors of its own.
        """
        self._announced, self._looked_at = 0, self._clock.monotonic()
        if self._memory is None:
            latest = await self.history.latest()
            self._memory, self._usage = (latest.memory, latest.usage) if latest else (AgentState(), None)
        policy = self._policy if isinstance(self._policy, ScalingPolicy) else await self._policy()
        seen = await self._observe(await self.driver.actual())
        if policy.forecast:
            expected = await self._expected(seen.at, policy.boot_seconds + self.every_seconds)
            seen = msgspec.structs.replace(seen, expected_per_second=expected)
        usage, ended = count_usage(self._usage, policy, seen)
        previous = seen.actual if self._memory.wanted is None else self._memory.wanted
        decision = decide(policy, seen, self._memory)
        self._above = wakes_above(policy, seen, decision.wanted)
        term.check()
        await self.history.record(
            decision, seen, previous=previous, by=self._identity, epoch=term.epoch, usage=usage, ended=ended
        )
        self._memory, self._usage = decision.memory, usage
        if decision.wanted != seen.actual:
            term.check()
            await self.driver.scale(decision.wanted)
            _log.info(
                "Scaled %s from %d to %s",
                self.pool,
                seen.actual,
                decision.reason,
                extra={"action": "scale", "resource": self.pool, "epoch": term.epoch},
            )
        return decision

    async def _expected(self, at: float, ahead_seconds: float) -> float | None:
        """What arrived a week before; a request for each day that is not known yet."""
        days = {day_of(at - WEEK_SECONDS), day_of(at - WEEK_SECONDS + ahead_seconds)}
        self._days = {
            day: self._days[day] if day in self._days else await self.history.day(day) for day in days
        }
        return expected_per_second(self._days, at, ahead_seconds)
