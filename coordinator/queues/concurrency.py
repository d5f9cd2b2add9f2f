"""How many dequeue tasks run: the rule, the growth and the decision."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

from coordinator.clock import Clock
from coordinator.errors import ConfigurationError, StorageError
from coordinator.queues.polling import Source
from coordinator.queues.protocols import ListenedQueue, RuleStore
from coordinator.queues.rules import QueueLoad, ScalingRule, TaskDecision, WorkDetected, decide
from coordinator.queues.task_pool import TaskPool, ThroughputEstimator
from coordinator.realtime.bus import Bus

_log = logging.getLogger("coordinator.queues")
DECIDE_SECONDS = 2.0
_POLL_SECONDS = 2.5
_PUSH_POLL_SECONDS = 60.0


class ConcurrencyController:
    """The current rule of one listener, and its last decision.

    A stored rule goes before the listener's own. It is looked up when work is found, at once after a hint, else every 2.5 s
    without push and every 60 s with it; a queue without work is not looked after.
    """

    def __init__(
        self, queue: str, allowed: range, own: ScalingRule, *, store: RuleStore | None, clock: Clock
    ) -> None:
        self.queue = queue
        self.allowed = allowed
        self.rule = own
        self.decision = TaskDecision(allowed.start, "no message received yet")
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

    def decided(self, desired: int, step: int) -> None:
        """Note when the last steps were, and an answer that was not this rule's."""
        now = self._clock.monotonic()
        self._decided_at = now
        if step > 0:
            self._up_at = now
        elif step < 0:
            self._down_at = now
        if desired != self.decision.tasks:
            self.decision = TaskDecision(desired, f"{desired} tasks: set by the work_detected handler")

    def emptied(self, floor: int) -> None:
        self.decision = TaskDecision(floor, f"{floor} tasks: the queue is empty")

    def first_step(self) -> int:
        """What the rule would start for one message."""
        return decide(self.rule, QueueLoad(waiting=1), allowed=self.allowed).tasks

    async def decide(
        self, *, depth: int | None, held: int, tasks: int, throughput: ThroughputEstimator, bus: Bus
    ) -> int:
        """The tasks wanted now. `depth` includes messages in flight."""
        await self.follow(bus)
        now = self._clock.monotonic()
        measured = QueueLoad(
            waiting=None if depth is None else max(0, depth - held),
            in_flight=held,
            tasks=tasks,
            arrival_per_second=throughput.arrival_per_second(depth),
            service_seconds=throughput.service_seconds,
            since_up_seconds=now - self._up_at,
            since_down_seconds=now - self._down_at,
        )
        self.decision = decide(self.rule, measured, allowed=self.allowed)
        return self.decision.tasks

    async def follow(self, bus: Bus) -> None:
        """Read the stored rule if it is time; trouble keeps the current rule."""
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
                    "The scaling rule of %s cannot be read; the last one stays in effect: %s",
                    self.queue,
                    error,
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
                _log.info("Scaling rule of %s changed: %s", self.queue, self.rule)


_MOMENT_SECONDS = 0.1


class ConcurrencyDecisions:
    """Has as many tasks as `work_detected` says, by default the rule. A handler that fails leaves it to the rule."""

    def __init__(
        self,
        queue: ListenedQueue[Any],
        controller: ConcurrencyController,
        pool: TaskPool,
        throughput: ThroughputEstimator,
        *,
        in_flight: Callable[[], int],
        sources: Sequence[Source],
    ) -> None:
        self._usual = self._by_rule
        self.work_detected: Callable[[WorkDetected], Any] = self._usual
        self._queue, self._controller, self._pool, self._throughput = queue, controller, pool, throughput
        self._in_flight, self._sources = in_flight, sources
        self._asking: asyncio.Task[None] | None = None

    async def found(self, idle: int, source: Source) -> None:
        """Have the tasks for it. The rule's question for the depth must not hold up the next get."""
        if self.work_detected is not self._usual:
            await self._ask(idle, source)
            return
        if self._pool.active < (first := self._controller.first_step()):
            self._pool.scale(first)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(idle, source, _MOMENT_SECONDS), name="decide")

    async def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    async def _ask(self, idle: int, source: Source, after_seconds: float = 0.0) -> None:
        if after_seconds:  # what is done within a moment needs no more tasks, and no request to find that out
            await self._queue.clock.sleep(after_seconds)
        event = WorkDetected(source.name, idle, self._pool.active, source.depth)
        try:
            desired = int(await answer_of(self.work_detected(event)))
        except Exception:
            _log.exception("The work_detected handler of %s failed; using the rule", self._queue.name)
            desired = await self._usual(event)
        allowed = self._controller.allowed
        desired = max(1, allowed.start, min(allowed.stop - 1, desired))
        self._controller.decided(desired, self._pool.scale(desired))

    async def _by_rule(self, event: WorkDetected) -> int:
        depths = [await self._known_depth(source) for source in self._sources if not source.idle]
        return await self._controller.decide(
            depth=None if None in depths else sum(depth or 0 for depth in depths),
            held=self._in_flight(),
            tasks=self._pool.active,
            throughput=self._throughput,
            bus=self._queue.bus(),
        )

    async def _known_depth(self, source: Source) -> int | None:
        """The depth of the last read if it had one, else one request."""
        known, source.depth = source.depth, None
        return await depth_of(source) if known is None else known


async def depth_of(source: Source) -> int | None:
    """One request; None if the depth is unknown."""
    try:
        return await source.queue.depth()
    except StorageError:
        return None


async def answer_of(value: Any) -> Any:
    """What a handler gave, whether it is `def` or `async def`."""
    return await value if inspect.isawaitable(value) else value
