"""The scaling agent (S13): observe, decide, record, act; one process of the fleet at a time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import ConfigurationError, KennelError, LeadershipLost
from coordinator.scaling.decision import Decision, Memory, Observation, decide
from coordinator.scaling.drivers import Driver
from coordinator.scaling.history import ScalingHistory
from coordinator.scaling.policy import ScalingPolicy

_log = logging.getLogger("coordinator.scaling")

Observe = Callable[[int], Awaitable[Observation]]
PolicySource = Callable[[], Awaitable[ScalingPolicy]]


class Tenure(Protocol):
    """What the agent needs of a `Term`."""

    @property
    def epoch(self) -> int: ...

    def check(self, *, needs_seconds: float = 0.0) -> None: ...


class ScalingAgent:
    """Keeps a pool as large as its policy asks for; run it as the task of an election.

        await storage.election("scale-billing").run(agent.lead)

    Guarantees: every change is recorded with its reason before it is made, under the epoch of the term; an agent
    that takes over goes on from that record (the same number, the same cool-down), so that a crash in the middle
    neither loses a change nor makes it flap. A failed observation changes nothing. Does not guarantee that the pool has
    the size wanted at any moment: instances take their time, and die; each turn asks again.

    `observe` gets the number of instances there are and returns an `Observation`. `policy` is one, or a coroutine function
    that fetches the one in force (operators may edit it while the agent runs). `every_seconds` between two turns: each
    costs a request for the record and those of `observe`.
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
        self._memory: Memory | None = None

    async def lead(self, term: Tenure) -> None:
        """Turn after turn until cancelled; the task of an election."""
        self._memory = None
        while True:
            try:
                await self.step(term)
            except LeadershipLost:
                raise
            except KennelError as error:
                _log.warning("Scaling %s: %s; nothing is changed", self.pool, error)
            await self._clock.sleep(self.every_seconds)

    async def step(self, term: Tenure) -> Decision:
        """One turn. Raises `LeadershipLost` if the term is over, and what `observe` or the driver could not do."""
        if self._memory is None:
            latest = await self.history.latest()
            self._memory = latest.memory if latest else Memory()
        policy = self._policy if isinstance(self._policy, ScalingPolicy) else await self._policy()
        seen = await self._observe(await self.driver.actual())
        previous = seen.actual if self._memory.wanted is None else self._memory.wanted
        decision = decide(policy, seen, self._memory)
        term.check()
        await self.history.record(decision, seen, previous=previous, by=self._identity, epoch=term.epoch)
        self._memory = decision.memory
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
