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
        self, crew: TaskPool, growth: ConcurrencyController, pace: ThroughputEstimator, *, batch: int
    ) -> None:
        self._crew, self._growth, self._pace = crew, growth, pace
        self._batch = max(1, batch)
        self._asked = 0
        self._full = False

    def answered(self, found: int) -> None:
        """Note how many messages the last get brought."""
        self._full = found >= self._asked

    def ask(self) -> int:
        """The messages to ask for now; 0 for none."""
        crew = self._crew
        tasks = max(crew.active, self._growth.decision.tasks)
        if crew.is_resting:
            # A whole batch costs what one message costs; what turns out to be too much goes back, see `surplus`.
            slow = (self._pace.service_seconds or 0.0) > _SLOW_SECONDS
            tasks = max(tasks, self._growth.first_step() if slow else self._growth.allowed.stop - 1, 1)
        free = (tasks * crew.slots - crew.busy) * self._batch
        units, rate = len(crew.buffer), self._pace.per_second
        if units and units >= free and units > min(16.0, rate * 0.25):
            return 0
        per_message = max(1.0, self._pace.items_per_message)
        ask = fetch_size(
            waiting=-(-max(0, free) // round(per_message)),
            buffered=round(units / per_message),
            per_second=rate / per_message,
        )
        if self._full and free > 0 and not units:
            ask = max(ask, min(MAX_BATCH, 2 * self._asked))
        self._asked = ask
        return ask

    def surplus(self, now: float) -> list[Delivery]:
        """Messages that no handler here will come to soon, although others might; they leave the buffer."""
        crew = self._crew
        if not crew.buffer or crew.busy < crew.active * crew.slots:
            return []
        keep = round(self._pace.per_second * _SOON_SECONDS)
        given: dict[Delivery, None] = {}
        for unit in list(crew.buffer)[keep:]:
            delivery = unit.delivery
            # That it was given back unseen can only be noted on a message of ours: one of others would look suspect.
            again = not delivery.envelope.kennel and delivery.message.dequeue_count > 1
            if delivery.started or delivery.suspect or again or not delivery.held:
                continue
            if now - delivery.taken_at > _SOON_SECONDS:
                given[delivery] = None
        if given:
            kept = [unit for unit in crew.buffer if unit.delivery not in given]
            for unit in crew.buffer:
                if unit.delivery in given:
                    unit.drop()
            crew.buffer.clear()
            crew.buffer.extend(kept)
        return list(given)


_log = logging.getLogger("coordinator.queues")
_MAX_UNDELETED = 256
_MAX_SUSPECT = 32
_NOTHING: frozenset[int] = frozenset()


class MessageFetcher:
    """Holds, decodes and hands out what was taken; settles messages beside the handlers, so deletes are pipelined.

    `add` gets each item that was decoded; what was not goes straight to its settler, what may have killed a process to the
    quarantine. `relieved` is called when there is room again after too many messages waited for their delete.
    """

    def __init__(
        self,
        leases: LeaseManager,
        pace: ThroughputEstimator,
        *,
        clock: Clock,
        rng: random.Random,
        add: Callable[[WorkItem], None],
        relieved: Callable[[], None],
    ) -> None:
        self._leases, self._pace, self._clock, self._rng = leases, pace, clock, rng
        self._add, self._relieved = add, relieved
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
                delivery.hands -= 1
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
            self._end(delivery, delivery.settler.give_back(delivery, after_seconds=self._rng.uniform(5, 30)))
            return
        except Exception as error:
            items = [
                (0, MessageUndecodable(f"the message could not be read: {type(error).__name__}: {error}"))
            ]
        if done:
            delivery.skipped = any(index in done for index, _ in items)
            items = [(index, item) for index, item in items if index not in done]
        units = delivery.units = [WorkItem(delivery, index, item) for index, item in items]
        self._pace.unpacked(len(items))
        if not units:
            self._end(delivery, delivery.settler.delete(delivery))
        elif delivery.message.dequeue_count > 1 and delivery.unreported > (not delivery.envelope.kennel):
            self._suspect(source.settler.policy.attempts, delivery)
        else:
            for unit in units:
                if isinstance(unit.item, Exception):
                    self.settle(unit, unit.item)
                else:
                    self._add(unit)

    def _suspect(self, attempts: int, delivery: Delivery) -> None:
        """A message whose earlier delivery never reported: look at its dequeue count before anything of it runs."""
        verdicts: list[tuple[WorkItem, Exception]] = []
        for unit in delivery.units:
            if isinstance(unit.item, Exception):
                verdicts.append((unit, unit.item))
            elif number := killed(delivery, unit.index, attempts):
                said = f"killed {number} process{'es' if number > 1 else ''}"
                verdicts.append((unit, ProcessKilled(said)))
        for unit, verdict in verdicts:
            self.settle(unit, verdict)
        if not delivery.pending:
            return
        if len(self.quarantine) >= _MAX_SUSPECT and delivery.envelope.kennel and not verdicts:
            for unit in delivery.units:
                unit.drop()
            self._end(delivery, delivery.settler.give_back(delivery, after_seconds=self._rng.uniform(5, 30)))
            return
        delivery.suspect = True
        self.quarantine.admit(delivery)

    def _go_on(self, queue: ListenedQueue[Any], delivery: Delivery) -> None:
        """A lost message came back while a handler of it runs here: what was dropped of it is run after all."""
        left = _left_of(queue, delivery.message)
        for unit in delivery.units:
            if not unit.dropped or unit.index in delivery.outcomes:
                continue
            if left is not None and unit.index not in left:
                delivery.outcomes[unit.index] = DONE  # by another process, which had it in between
                continue
            unit.restore()
            if not delivery.suspect:
                self._add(unit)
        if delivery.suspect:
            self.quarantine.admit(delivery)

    def settle(self, unit: WorkItem, outcome: Outcome) -> None:
        """Note an item's outcome; with the last one the message is deleted, shown again or poisoned."""
        delivery = unit.delivery
        if delivery.suspect:
            self.quarantine.ended(unit)
        if delivery.settle(unit.index, outcome):
            self._end(delivery, delivery.settler.settle(delivery))

    def _end(self, delivery: Delivery, work: Coroutine[Any, Any, None]) -> None:
        """Deletes and the like run beside the handlers."""
        delivery.hands += 1
        task = asyncio.create_task(work, name="settle")
        self._ending.add(task)
        task.add_done_callback(partial(self._ended, delivery))

    def _ended(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        """Whatever happened to a settlement, its message is not held much longer."""
        self._ending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("A message could not be settled; it is given back", exc_info=error)
            self._end(delivery, self._give_up(delivery))
        delivery.hands -= 1
        if len(self._ending) == _MAX_UNDELETED:
            self._relieved()

    async def _give_up(self, delivery: Delivery) -> None:
        try:
            await delivery.settler.give_back(delivery, after_seconds=self._rng.uniform(5, 30))
        except Exception:
            _log.exception("A message could not be given back; it appears by itself when its visibility ends")
            self._leases.drop(delivery, End.ABANDONED)

    def give_back(self, deliveries: list[Delivery]) -> None:
        """Let others have messages that no handler here has seen."""
        for delivery in deliveries:
            self._end(delivery, delivery.settler.give_back(delivery))

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
