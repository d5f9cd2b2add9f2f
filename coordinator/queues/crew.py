"""The dequeue tasks of a listener and the buffer that they share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from coordinator.clock import Clock
from coordinator.queues.delivery import Unit
from coordinator.queues.outcomes import Outcome
from coordinator.queues.pace import Pace
from coordinator.queues.running import Runner

_LOW = 16


class Crew:
    """Starts and ends dequeue tasks, hands them work, reports outcomes.

    `wanted` tasks of `slots` handlers each; what is too many ends when it has finished its work. `hungry` is called when
    the buffer runs low.
    """

    def __init__(
        self,
        name: str,
        runner: Runner,
        pace: Pace,
        *,
        slots: int,
        batch: int,
        clock: Clock,
        settle: Callable[[Unit, Outcome], None],
        hungry: Callable[[], None],
    ) -> None:
        self.name = name
        self.buffer: deque[Unit] = deque()
        self.busy = 0
        self.wanted = 0
        self.slots = slots
        self._runner, self._pace, self._clock = runner, pace, clock
        self._batch = batch
        self._settle, self._hungry = settle, hungry
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._dismissed = False

    @property
    def active(self) -> int:
        """Dequeue tasks that run."""
        return -(-len(self._tasks) // self.slots)

    @property
    def is_resting(self) -> bool:
        return not self.busy and not self.buffer

    def scale(self, wanted: int) -> int:
        """Have that many tasks; by how many that changes them."""
        before, self.wanted = self.active, wanted
        for _ in range(wanted * self.slots - len(self._tasks)):
            task = asyncio.create_task(self._dequeue(), name=f"dequeue {self.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if len(self._tasks) > wanted * self.slots:
            self._wake(len(self._waiters))
        return wanted - before

    def add(self, unit: Unit) -> None:
        self.buffer.append(unit)
        self._wake(1)

    async def _dequeue(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        while units := await self._next(me):
            self.busy += 1
            started = self._clock.monotonic()
            try:
                outcomes = await self._runner.run(units)
            finally:
                self.busy -= 1
            self._pace.handled(len(units), self._clock.monotonic() - started)
            for unit, outcome in zip(units, outcomes, strict=True):
                self._settle(unit, outcome)

    async def _next(self, me: asyncio.Task[None]) -> list[Unit]:
        """The next work; nothing when this task is one too many."""
        while True:
            if self._dismissed or len(self._tasks) > self.wanted * self.slots:
                self._tasks.discard(me)
                return []
            units: list[Unit] = []
            while self.buffer and len(units) < max(1, self._batch):
                unit = self.buffer.popleft()
                if unit.delivery.held:
                    unit.delivery.started = True
                    units.append(unit)
            if len(self.buffer) <= _LOW:
                self._hungry()
            if units:
                return units
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                with suppress(ValueError):
                    self._waiters.remove(waiter)
                raise

    def _wake(self, number: int) -> None:
        while number > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                number -= 1

    async def dismiss(self, timeout: float) -> bool:
        """End all tasks: those that wait at once, those that work within `timeout` seconds, then by cancelling them.

        False if threads still run, which nothing can stop.
        """
        self._dismissed = True
        self._wake(len(self._waiters))
        running = set(self._tasks)
        if running:
            ended = asyncio.Event()
            waiting = asyncio.gather(*running, return_exceptions=True)
            waiting.add_done_callback(lambda _: ended.set())
            await self._clock.wait(ended, max(0.0, timeout))
        unfinished = {task for task in running if not task.done()}
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        self._tasks.clear()
        return not unfinished or self._runner.is_async

    def assemble(self) -> None:
        """Ready for `scale` again after `dismiss`."""
        self._dismissed = False
