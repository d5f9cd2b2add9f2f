"""Asking how many tasks there should be, beside the work, and having the crew follow."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

from coordinator.errors import StorageError
from coordinator.queues.crew import Crew
from coordinator.queues.growth import Growth
from coordinator.queues.idle import WorkDetected
from coordinator.queues.pace import Pace
from coordinator.queues.queue import Queue
from coordinator.queues.sources import Source

_log = logging.getLogger("coordinator.queues")
_MOMENT_SECONDS = 0.1


class Decider:
    """Has as many tasks as `work_detected` says (S8), by default the rule. A handler that fails leaves it to the rule."""

    def __init__(
        self,
        queue: Queue[Any],
        growth: Growth,
        crew: Crew,
        pace: Pace,
        *,
        in_hand: Callable[[], int],
        sources: Sequence[Source],
    ) -> None:
        self._usual = self._by_rule
        self.work_detected: Callable[[WorkDetected], Any] = self._usual
        self._queue, self._growth, self._crew, self._pace = queue, growth, crew, pace
        self._in_hand, self._sources = in_hand, sources
        self._asking: asyncio.Task[None] | None = None

    async def found(self, idle: int, source: Source) -> None:
        """Have the tasks for it. The rule's question for the depth must not hold up the next get."""
        if self.work_detected is not self._usual:
            await self._ask(idle, source)
            return
        if self._crew.active < (first := self._growth.first_step()):
            self._crew.scale(first)
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
        event = WorkDetected(source.name, idle, self._crew.active, source.depth)
        try:
            wanted = int(await answer_of(self.work_detected(event)))
        except Exception:
            _log.exception("The work_detected handler of %s failed; the rule decides", self._queue.name)
            wanted = await self._usual(event)
        allowed = self._growth.allowed
        wanted = max(1, allowed.start, min(allowed.stop - 1, wanted))
        self._growth.decided(wanted, self._crew.scale(wanted))

    async def _by_rule(self, event: WorkDetected) -> int:
        depths = [await self._known_depth(source) for source in self._sources if not source.idle]
        return await self._growth.decide(
            depth=None if None in depths else sum(depth or 0 for depth in depths),
            held=self._in_hand(),
            tasks=self._crew.active,
            pace=self._pace,
            bus=self._queue.bus(),
        )

    async def _known_depth(self, source: Source) -> int | None:
        """The depth as the last look knew it if that told, else one request."""
        known, source.depth = source.depth, None
        return await depth_of(source) if known is None else known


async def depth_of(source: Source) -> int | None:
    """One request; None if it cannot be told."""
    try:
        return await source.queue.depth()
    except StorageError:
        return None


async def answer_of(value: Any) -> Any:
    """What a handler gave, whether it is `def` or `async def`."""
    return await value if inspect.isawaitable(value) else value
