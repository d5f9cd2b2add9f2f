"""The dequeue tasks of a listener, the buffer that they share, and how fast they work."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from coordinator.clock import Clock
from coordinator.queues.delivery import Delivery, Outcome, WorkItem
from coordinator.queues.handlers import Runner

_log = logging.getLogger("coordinator.queues")
_LOW = 16
OBEY_SECONDS = 10.0
"""How long a handler that was cancelled may take to end."""


class TaskPool:
    """Starts and ends dequeue tasks, hands them work, reports outcomes.

    `wanted` tasks of `slots` handlers each; what is too many ends when it has finished its work. `hungry` is called when
    the buffer runs low, `begin` before an item of a suspect message is run (False: it is not), `expired` for a message
    whose time ran out before its turn came, `dropped` for an item that is not run.
    """

    def __init__(
        self,
        name: str,
        runner: Runner,
        pace: ThroughputEstimator,
        *,
        slots: int,
        batch: int,
        clock: Clock,
        settle: Callable[[WorkItem, Outcome], None],
        hungry: Callable[[], None],
        begin: Callable[[WorkItem], Awaitable[bool]],
        expired: Callable[[Delivery], None],
        dropped: Callable[[WorkItem], None],
    ) -> None:
        self.name = name
        self.buffer: deque[WorkItem] = deque()
        self.busy = 0
        self.wanted = 0
        self.slots = slots
        self._runner, self._pace, self._clock = runner, pace, clock
        self._most = max(1, batch)
        self._settle, self._hungry = settle, hungry
        self._begin, self._expired, self._dropped = begin, expired, dropped
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

    def add(self, unit: WorkItem) -> None:
        self.buffer.append(unit)
        self._wake(1)

    async def _dequeue(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        while True:
            units, started = await self._next(me)
            if not units:
                return
            self.busy += 1
            try:
                if units[0].delivery.suspect and not await self._begin(units[0]):
                    self._drop(units)
                    continue
                outcomes = await self._runner.run(units, me, started)
            except BaseException:
                self._drop(units)
                raise
            finally:
                self.busy -= 1
            self._pace.handled(len(units), self._clock.monotonic() - started)
            for unit, outcome in zip(units, outcomes, strict=True):
                unit.running = False
                self._settle(unit, outcome)

    def _drop(self, units: list[WorkItem]) -> None:
        for unit in units:
            unit.drop()
            self._dropped(unit)

    async def _next(self, me: asyncio.Task[None]) -> tuple[list[WorkItem], float]:
        """The next work, and the moment; nothing when this task is one too many."""
        while True:
            if self._dismissed or len(self._tasks) > self.wanted * self.slots:
                self._tasks.discard(me)
                return [], 0.0
            units: list[WorkItem] = []
            now = self._clock.monotonic()
            while self.buffer and len(units) < self._most:
                delivery = self.buffer[0].delivery
                if delivery.suspect and units:
                    break
                unit = self.buffer.popleft()
                if delivery.until <= now and delivery.held:
                    self._expired(delivery)
                if not delivery.held:
                    self._drop([unit])
                    continue
                delivery.started = unit.running = True
                units.append(unit)
                if delivery.suspect:
                    break
            if len(self.buffer) <= _LOW:
                self._hungry()
            if units:
                return units, now
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

    async def dismiss(self, timeout: float, linger: float) -> set[Delivery]:
        """End all tasks: those that wait at once, those that work within `timeout` seconds, then by cancelling them.

        Nothing can end a thread: those that run a `def` handler are waited for, `linger` seconds more. A coroutine that ignores its cancellation
        is waited for 10 s. Returns the messages of those that run even then.
        """
        self._dismissed = True
        self._wake(len(self._waiters))
        running = set(self._tasks)
        await self._until_done(running, timeout)
        threads = {run.task for run in self._runner.running if run.waiting is not None}
        unfinished = {task for task in running if not task.done()}
        self._runner.stopping = True
        stubborn = await self._cancel(unfinished - threads)
        if unfinished & threads:
            _log.warning(
                "%d handlers of %s run in threads, which nothing can stop: their messages are kept until they end, "
                "%.0f s at the most",
                len(unfinished & threads),
                self.name,
                linger,
                extra={"action": "stop", "resource": self.name},
            )
            await self._until_done(unfinished & threads, linger)
        left = {
            unit.delivery
            for run in self._runner.running
            if run.waiting is not None or run.task in stubborn
            for unit in run.units
        }
        await self._cancel({task for task in running - stubborn if not task.done()})
        self._tasks.clear()
        return left

    async def _until_done(self, tasks: set[asyncio.Task[None]], timeout: float) -> None:
        if not tasks:
            return
        ended = asyncio.Event()
        waiting = asyncio.gather(*tasks, return_exceptions=True)
        waiting.add_done_callback(lambda _: ended.set())
        await self._clock.wait(ended, max(0.0, timeout))

    async def _cancel(self, tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        """Cancel them; those that still run `OBEY_SECONDS` later."""
        for task in tasks:
            task.cancel()
        await self._until_done(tasks, OBEY_SECONDS)
        return {task for task in tasks if not task.done()}

    def assemble(self) -> None:
        """Ready for `scale` again after `dismiss`."""
        self._dismissed = self._runner.stopping = False


_WINDOW_SECONDS = 0.25
_WEIGHT = 0.4


class ThroughputEstimator:
    """Running averages of one listener, over about the last second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self._done = 0
        self._rate = 0.0
        self.service_seconds: float | None = None
        self.items_per_message = 1.0
        self._depth_at: tuple[float, int, int] | None = None
        self._total = 0
        self._arrival = 0.0

    @property
    def per_second(self) -> float:
        """Items done a second, lately."""
        elapsed = self._clock.monotonic() - self._since
        if elapsed >= _WINDOW_SECONDS:
            weight = 1.0 - (1.0 - _WEIGHT) ** (elapsed / _WINDOW_SECONDS)
            self._rate += weight * (self._done / elapsed - self._rate)
            self._since, self._done = self._clock.monotonic(), 0
        return self._rate

    def handled(self, items: int, seconds: float) -> None:
        self._done += items
        self._total += items
        each = seconds / items
        known = self.service_seconds
        self.service_seconds = each if known is None else known + 0.1 * (each - known)

    def unpacked(self, items: int) -> None:
        self.items_per_message += 0.1 * (max(1, items) - self.items_per_message)

    def found(self) -> None:
        """Work was found after a pause: idle time says nothing about speed."""
        if not self._done:
            self._since = self._clock.monotonic()

    def arrival_per_second(self, depth: int | None) -> float:
        """What arrives a second, from two depths and what this listener did between: a lower bound if others work too."""
        now = self._clock.monotonic()
        if depth is None:
            return self._arrival
        if self._depth_at is not None:
            at, before, total = self._depth_at
            if now - at < 1.0:
                return self._arrival
            arrived = max(0.0, depth - before + self._total - total) / (now - at)
            self._arrival += 0.5 * (arrived - self._arrival)
        self._depth_at = (now, depth, self._total)
        return self._arrival
