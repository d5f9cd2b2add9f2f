"""How many messages to ask for, and taking them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from coordinator.clock import Clock
from coordinator.errors import MessageUndecodable, StorageError
from coordinator.queues.concurrency import ConcurrencyController
from coordinator.queues.delivery import DONE, Delivery, Outcome, ProcessKilled, WorkItem
from coordinator.queues.leases import End, LeaseManager
from coordinator.queues.polling import Source
from coordinator.queues.protocols import MAX_BATCH, ListenedQueue, ReceivedMessage
from coordinator.queues.quarantine import Quarantine, killed, recalled
from coordinator.queues.task_pool import TaskPool, ThroughputEstimator

_SLOW_SECONDS = 0.2
_SOON_SECONDS = 1.0


def fetch_size(*, waiting: int, buffered: int, per_second: float, ahead_seconds: float = 0.5) -> int:
    """How many messages to ask for: enough for the waiting tasks and for what is done in the next half second.

    Slow handlers thus take one message a task and leave the rest to others; fast ones take 32.
    """
    return max(0, min(MAX_BATCH, waiting + round(per_second * ahead_seconds) - buffered))


class PrefetchPolicy:
    """As much as the free tasks and the next half second can use, so that slow handlers leave the rest to others.

    Before a rate is known it doubles with each full answer that is done already.
    """

    def __init__(
        self,
        pool: TaskPool,
        controller: ConcurrencyController,
        throughput: ThroughputEstimator,
        *,
        batch: int,
    ) -> None:
        self._pool, self._controller, self._throughput = pool, controller, throughput
        self._batch = max(1, batch)
        self._asked = 0
        self._full = False

    def answered(self, found: int) -> None:
        """Note how many messages the last get brought."""
        self._full = found >= self._asked

    def ask(self) -> int:
        """The messages to ask for now; 0 for none."""
        pool = self._pool
        tasks = max(pool.active, self._controller.decision.tasks)
        if pool.is_idle:
            # A whole batch costs what one message costs; what turns out to be too much goes back, see `surplus`.
            slow = (self._throughput.service_seconds or 0.0) > _SLOW_SECONDS
            tasks = max(
                tasks, self._controller.first_step() if slow else self._controller.allowed.stop - 1, 1
            )
        free = (tasks * pool.slots - pool.busy) * self._batch
        work_items, rate = len(pool.buffer), self._throughput.per_second
        if work_items and work_items >= free and work_items > min(16.0, rate * 0.25):
            return 0
        per_message = max(1.0, self._throughput.items_per_message)
        ask = fetch_size(
            waiting=-(-max(0, free) // round(per_message)),
            buffered=round(work_items / per_message),
            per_second=rate / per_message,
        )
        if self._full and free > 0 and not work_items:
            ask = max(ask, min(MAX_BATCH, 2 * self._asked))
        self._asked = ask
        return ask

    def surplus(self, now: float) -> list[Delivery]:
        """Messages that no handler here will come to soon, although others might; they leave the buffer."""
        pool = self._pool
        if not pool.buffer or pool.busy < pool.active * pool.slots:
            return []
        keep = round(self._throughput.per_second * _SOON_SECONDS)
        given: dict[Delivery, None] = {}
        for work_item in list(pool.buffer)[keep:]:
            delivery = work_item.delivery
            # That it was given back unseen can only be noted on a message of ours: one of others would look suspect.
            again = not delivery.envelope.kennel and delivery.message.dequeue_count > 1
            if delivery.started or delivery.suspect or again or not delivery.held:
                continue
            if now - delivery.taken_at > _SOON_SECONDS:
                given[delivery] = None
        if given:
            kept = [work_item for work_item in pool.buffer if work_item.delivery not in given]
            for work_item in pool.buffer:
                if work_item.delivery in given:
                    work_item.drop()
            pool.buffer.clear()
            pool.buffer.extend(kept)
        return list(given)


_log = logging.getLogger("coordinator.queues")
_MAX_UNDELETED = 256
_MAX_SUSPECT = 32
_NOTHING: frozenset[int] = frozenset()


class MessageFetcher:
    """Holds, decodes and hands out what was taken; settles messages beside the handlers, so deletes are pipelined.

    `add` gets each item that was decoded; what was not goes straight to its settler, what may have killed a process to the
    quarantine. `on_capacity` is called when there is room again after too many messages waited for their delete.
    """

    def __init__(
        self,
        leases: LeaseManager,
        throughput: ThroughputEstimator,
        *,
        clock: Clock,
        rng: random.Random,
        add: Callable[[WorkItem], None],
        on_capacity: Callable[[], None],
    ) -> None:
        self._leases, self._throughput, self._clock, self._rng = leases, throughput, clock, rng
        self._add, self._on_capacity = add, on_capacity
        self._ending: set[asyncio.Task[None]] = set()
        self.quarantine = Quarantine(leases, clock=clock, add=add)

    @property
    def is_full(self) -> bool:
        """Whether so many deletes are on their way that nothing more should be taken."""
        return len(self._ending) > _MAX_UNDELETED

    async def take(self, source: Source, ask: int) -> tuple[int, float]:
        """One get; what it brings is held, decoded and buffered.

        How many messages it brought, and when the newest of those that nobody took before was put.
        """
        sent, seconds = self._clock.monotonic(), self._leases.visibility_seconds
        messages = await source.queue.transport.get(ask, visibility_seconds=seconds)
        taken: list[tuple[Delivery, frozenset[int]]] = []
        for message in messages:
            known = self._leases.returned(message, taken_at=sent, until=sent + seconds)
            if known is not None and known.held:
                self._go_on(source.queue, known)
                continue
            delivery = Delivery(
                message,
                source.queue.transport,
                source.settler,
                taken_at=sent,
                until=sent + seconds,
                clock=self._clock,
            )
            self._leases.hold(delivery)
            taken.append((delivery, _NOTHING if known is None else known.done))
        for delivery, done in taken:
            try:
                if source.settler.is_done_already(delivery):
                    self._end(delivery, source.settler.delete(delivery))
                else:
                    await self._unwrap(source, delivery, done)
            finally:
                delivery.holders -= 1
        newest = max((each.inserted_at for each in messages if each.dequeue_count <= 1), default=0.0)
        return len(messages), newest

    async def _unwrap(self, source: Source, delivery: Delivery, done: frozenset[int]) -> None:
        """Hand out its items, but for those that were done here by a delivery that was lost."""
        queue = source.queue
        items: Sequence[tuple[int, Any]]
        try:
            delivery.envelope = source.settler.remembered(
                delivery, recalled(queue.decode(delivery.message.text))
            )
            items = await queue.items(delivery.envelope)
        except MessageUndecodable as error:
            items = [(0, error)]
        except StorageError as error:  # its claim cannot be had just now
            _log.info("A message of %s waits for its payload: %s", queue.name, error)
            self._end(delivery, delivery.settler.abandon(delivery, after_seconds=self._rng.uniform(5, 30)))
            return
        except Exception as error:
            items = [
                (0, MessageUndecodable(f"the message could not be read: {type(error).__name__}: {error}"))
            ]
        if done:
            delivery.skipped = any(index in done for index, _ in items)
            items = [(index, item) for index, item in items if index not in done]
        work_items = delivery.work_items = [WorkItem(delivery, index, item) for index, item in items]
        self._throughput.unpacked(len(items))
        if not work_items:
            self._end(delivery, delivery.settler.delete(delivery))
        elif delivery.message.dequeue_count > 1 and delivery.unreported > (not delivery.envelope.kennel):
            self._suspect(source.settler.policy.attempts, delivery)
        else:
            for work_item in work_items:
                if isinstance(work_item.item, Exception):
                    self.settle(work_item, work_item.item)
                else:
                    self._add(work_item)

    def _suspect(self, attempts: int, delivery: Delivery) -> None:
        """A message whose earlier delivery never reported: look at its dequeue count before anything of it runs."""
        verdicts: list[tuple[WorkItem, Exception]] = []
        for work_item in delivery.work_items:
            if isinstance(work_item.item, Exception):
                verdicts.append((work_item, work_item.item))
            elif number := killed(delivery, work_item.index, attempts):
                said = f"killed {number} process{'es' if number > 1 else ''}"
                verdicts.append((work_item, ProcessKilled(said)))
        for work_item, verdict in verdicts:
            self.settle(work_item, verdict)
        if not delivery.pending:
            return
        if len(self.quarantine) >= _MAX_SUSPECT and delivery.envelope.kennel and not verdicts:
            for work_item in delivery.work_items:
                work_item.drop()
            self._end(delivery, delivery.settler.abandon(delivery, after_seconds=self._rng.uniform(5, 30)))
            return
        delivery.suspect = True
        self.quarantine.admit(delivery)

    def _go_on(self, queue: ListenedQueue[Any], delivery: Delivery) -> None:
        """A lost message came back while a handler of it runs here: what was dropped of it is run after all."""
        left = _left_of(queue, delivery.message)
        for work_item in delivery.work_items:
            if not work_item.dropped or work_item.index in delivery.outcomes:
                continue
            if left is not None and work_item.index not in left:
                delivery.outcomes[work_item.index] = DONE  # by another process, which had it in between
                continue
            work_item.restore()
            if not delivery.suspect:
                self._add(work_item)
        if delivery.suspect:
            self.quarantine.admit(delivery)

    def settle(self, work_item: WorkItem, outcome: Outcome) -> None:
        """Note an item's outcome; with the last one the message is deleted, shown again or poisoned."""
        delivery = work_item.delivery
        if delivery.suspect:
            self.quarantine.ended(work_item)
        if delivery.settle(work_item.index, outcome):
            self._end(delivery, delivery.settler.settle(delivery))

    def _end(self, delivery: Delivery, work: Coroutine[Any, Any, None]) -> None:
        """Deletes and the like run beside the handlers."""
        delivery.holders += 1
        task = asyncio.create_task(work, name="settle")
        self._ending.add(task)
        task.add_done_callback(partial(self._ended, delivery))

    def _ended(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        """Whatever happened to a settlement, its message is not held much longer."""
        self._ending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("A message could not be settled and is abandoned", exc_info=error)
            self._end(delivery, self._give_up(delivery))
        delivery.holders -= 1
        if len(self._ending) == _MAX_UNDELETED:
            self._on_capacity()

    async def _give_up(self, delivery: Delivery) -> None:
        try:
            await delivery.settler.abandon(delivery, after_seconds=self._rng.uniform(5, 30))
        except Exception:
            _log.exception("A message could not be abandoned; it reappears when its visibility ends")
            self._leases.drop(delivery, End.ABANDONED)

    def abandon(self, deliveries: list[Delivery]) -> None:
        """Let others have messages that no handler here has seen."""
        for delivery in deliveries:
            self._end(delivery, delivery.settler.abandon(delivery))

    async def finish(self) -> None:
        """Wait until everything on its way has ended."""
        while self._ending:
            await asyncio.wait(set(self._ending))


def _left_of(queue: ListenedQueue[Any], message: ReceivedMessage) -> list[int] | None:
    """The items of a message that are left according to its text; None for all, or if it cannot be read."""
    try:
        return queue.decode(message.text).left
    except MessageUndecodable:
        return None
