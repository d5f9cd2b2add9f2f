"""The dequeue tasks of a listener, the buffer that they share, and how fast they work."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from coordinator.clock import Clock
from coordinator.queues.delivery import Delivery, Outcome, WorkItem
from coordinator.queues.figures import HandlerCounts
from coordinator.queues.handlers import Runner

_log = logging.getLogger("coordinator.queues")
_LOW = 16
OBEY_SECONDS = 10.0
"""How long a handler that was cancelled may take to end."""


class TaskPool:
    """Starts and ends dequeue tasks, hands them work, reports outcomes.

    `desired` tasks of `slots` handlers each; what is too many ends when it has finished its work. `on_low_buffer` is called when
    the buffer runs low, `begin` before an item of a suspect message is run (False: it is not), `expired` for a message
    whose time ran out before its turn came, `dropped` for an item that is not run.
    """

    def __init__(
        self,
        name: str,
        runner: Runner,
        throughput: ThroughputEstimator,
        counts: HandlerCounts,
        *,
        slots: int,
        batch: int,
        clock: Clock,
        settle: Callable[[WorkItem, Outcome], None],
        on_low_buffer: Callable[[], None],
        begin: Callable[[WorkItem], Awaitable[bool]],
        expired: Callable[[Delivery], None],
        dropped: Callable[[WorkItem], None],
    ) -> None:
        self.name = name
        self.buffer: deque[WorkItem] = deque()
        self.busy = 0
        self.desired = 0
        self.slots = slots
        self._runner, self._throughput, self._clock = runner, throughput, clock
        self.counts = counts
        self._most = max(1, batch)
        self._settle, self._on_low_buffer = settle, on_low_buffer
        self._begin, self._expired, self._dropped = begin, expired, dropped
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_shut_down = False

    @property
    def active(self) -> int:
        """Dequeue tasks that run."""
        return -(-len(self._tasks) // self.slots)

    @property
    def is_idle(self) -> bool:
        return not self.busy and not self.buffer

    def scale(self, desired: int) -> int:
        """Have that many tasks; by how many that changes them."""
        before, self.desired = self.active, desired
        for _ in range(desired * self.slots - len(self._tasks)):
            task = asyncio.create_task(self._dequeue(), name=f"dequeue {self.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if len(self._tasks) > desired * self.slots:
            self._wake(len(self._waiters))
        return desired - before

    def add(self, work_item: WorkItem) -> None:
        self.buffer.append(work_item)
        self._wake(1)

    async def _dequeue(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        while True:
            work_items, started = await self._next(me)
            if not work_items:
                return
            self.busy += 1
            try:
                if work_items[0].delivery.suspect and not await self._begin(work_items[0]):
                    self._drop(work_items)
                    continue
                self.counts.began(self._waited(work_items))
                outcomes = await self._runner.run(work_items, me, started)
            except BaseException:
                self._drop(work_items)
                raise
            finally:
                self.busy -= 1
            took = self._clock.monotonic() - started
            self._throughput.handled(len(work_items), took)
            self.counts.ended(outcomes, took)
            for work_item, outcome in zip(work_items, outcomes, strict=True):
                work_item.running = False
                self._settle(work_item, outcome)

    def _waited(self, work_items: list[WorkItem]) -> list[float]:
        """How long those that run for the first time have waited since they were put."""
        now = self._clock.time()
        return [
            now - (delivery.envelope.at or delivery.message.inserted_at)
            for delivery in (work_item.delivery for work_item in work_items)
            if delivery.attempt == 1
        ]

    def _drop(self, work_items: list[WorkItem]) -> None:
        for work_item in work_items:
            work_item.drop()
            self._dropped(work_item)

    async def _next(self, me: asyncio.Task[None]) -> tuple[list[WorkItem], float]:
        """The next work, and the moment; nothing when this task is one too many."""
        while True:
            if self._is_shut_down or len(self._tasks) > self.desired * self.slots:
                self._tasks.discard(me)
                return [], 0.0
            work_items: list[WorkItem] = []
            now = self._clock.monotonic()
            while self.buffer and len(work_items) < self._most:
                delivery = self.buffer[0].delivery
                if delivery.suspect and work_items:
                    break
                work_item = self.buffer.popleft()
                if delivery.until <= now and delivery.held:
                    self._expired(delivery)
                if not delivery.held:
                    self._drop([work_item])
                    continue
                delivery.started = work_item.running = True
                work_items.append(work_item)
                if delivery.suspect:
                    break
            if len(self.buffer) <= _LOW:
                self._on_low_buffer()
            if work_items:
                return work_items, now
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

    async def shutdown(self, timeout: float, linger: float) -> set[Delivery]:
        """End all tasks: those that wait at once, those that work within `timeout` seconds, then by cancelling them.

        Nothing can end a thread: those that run a `def` handler are waited for, `linger` seconds more. A coroutine that ignores its cancellation
        is waited for 10 s. Returns the messages of those that run even then.
        """
        self._is_shut_down = True
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
                "at most %.0f s",
                len(unfinished & threads),
                self.name,
                linger,
                extra={"action": "stop", "resource": self.name},
            )
            await self._until_done(unfinished & threads, linger)
        left = {
            work_item.delivery
            for run in self._runner.running
            if run.waiting is not None or run.task in stubborn
            for work_item in run.work_items
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

    def start(self) -> None:
        """Ready for `scale` again after `shutdown`."""
        self._is_shut_down = self._runner.stopping = False


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

    @property
    def items(self) -> int:
        """How many items handlers have ended with, in all."""
        return self._total

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
