"""Seeing how a pool keeps up with its queue, from the queue alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from coordinator.gates.gate import Gate
from coordinator.gates.state import phase
from coordinator.queues.protocols import MAX_BATCH
from coordinator.queues.queue import Queue
from coordinator.scaling.decision import Observation


class QueueObserver:
    """Two requests a look: the count (invisible messages included) and a peek (32 visible ones and their age).

    What is visible is exact below 32 and a lower bound of the truth otherwise; the oldest is the oldest of those
    seen. What arrives is told from the change of the count and what the instances did meanwhile at `instance_per_second`
    (None: unknown), smoothed over `smoothing_seconds`. `cpu` and `per_second` may be supplied by whoever has telemetry.
    With the `gate` that the instances wait at, a third request tells whether it holds them: then nothing is late.
    """

    def __init__(
        self,
        queue: Queue[Any],
        *,
        items_per_message: float = 1.0,
        smoothing_seconds: float = 60.0,
        cpu: Callable[[], float | None] = lambda: None,
        per_second: Callable[[], float | None] = lambda: None,
        gate: Gate | None = None,
    ) -> None:
        self._queue = queue
        self._items = items_per_message
        self._cpu, self._per_second = cpu, per_second
        self._gate = gate
        self._last: tuple[float, int] | None = None
        self._smoothing_seconds = smoothing_seconds
        self._arrival: float | None = None

    async def __call__(self, actual: int) -> Observation:
        count = await self._queue.depth()
        peeked = await self._queue.peek(MAX_BATCH) if count else []
        now = self._queue.clock.time()
        visible = min(count, len(peeked)) if len(peeked) < MAX_BATCH else count
        # With 32 and more visible nobody can tell how many are in hand; all count as waiting then.
        in_flight = count - visible
        rate = self._per_second()
        if self._last is not None and now > self._last[0]:
            elapsed = now - self._last[0]
            done = (rate or 0.0) * actual if count else 0.0
            arrived = max(0.0, (count - self._last[1]) * self._items / elapsed + done)
            # A burst is a backlog, not a rate: only what keeps coming counts as one.
            weight = 1 - math.exp(-elapsed / self._smoothing_seconds)
            self._arrival = (1 - weight) * (self._arrival or 0.0) + weight * arrived
        self._last = (now, count)
        oldest = max((now - each.inserted_at for each in peeked), default=0.0)
        return Observation(
            at=now,
            actual=actual,
            visible=visible,
            in_flight=in_flight,
            oldest_seconds=max(0.0, oldest),
            arrival_per_second=self._arrival,
            instance_per_second=rate,
            cpu=self._cpu(),
            items_per_message=self._items,
            held_by=await self._held_by(),
        )

    async def _held_by(self) -> str:
        if self._gate is None:
            return ""
        state = await self._gate.read()
        return "" if phase(state, self._queue.clock.time()) == "open" else self._gate.name
