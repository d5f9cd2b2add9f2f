"""From the answer of a get to work for the tasks, and from their outcomes to deletes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from coordinator.clock import Clock
from coordinator.errors import MessageUndecodable, StorageError
from coordinator.queues.delivery import Delivery, Unit
from coordinator.queues.leases import End, LeaseManager
from coordinator.queues.outcomes import DONE, Outcome, ProcessKilled
from coordinator.queues.pace import Pace
from coordinator.queues.quarantine import Quarantine, killed, recalled
from coordinator.queues.queue import Queue
from coordinator.queues.sources import Source
from coordinator.queues.transport import Received

_log = logging.getLogger("coordinator.queues")
_MAX_UNDELETED = 256
_MAX_SUSPECT = 32
_NOTHING: frozenset[int] = frozenset()


class Intake:
    """Holds, decodes and hands out what was taken; settles messages beside the handlers, so deletes are pipelined.

    `add` gets each item that was decoded; what was not goes straight to its settler, what may have killed a process to the
    quarantine. `relieved` is called when there is room again after too many messages waited for their delete.
    """

    def __init__(
        self,
        leases: LeaseManager,
        pace: Pace,
        *,
        clock: Clock,
        rng: random.Random,
        add: Callable[[Unit], None],
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
                    await self._unwrap(source.queue, delivery, done)
            finally:
                delivery.hands -= 1
        newest = max((each.inserted_at for each in messages if each.dequeue_count <= 1), default=0.0)
        return len(messages), newest

    async def _unwrap(self, queue: Queue[Any], delivery: Delivery, done: frozenset[int]) -> None:
        """Hand out its items, but for those that were done here by a delivery that was lost."""
        items: list[tuple[int, Any]]
        try:
            delivery.envelope = delivery.settler.remembered(
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
        units = delivery.units = [Unit(delivery, index, item) for index, item in items]
        self._pace.unpacked(len(items))
        if not units:
            self._end(delivery, delivery.settler.delete(delivery))
        elif delivery.message.dequeue_count > 1 and delivery.unreported > (not delivery.envelope.kennel):
            self._suspect(queue, delivery)
        else:
            for unit in units:
                if isinstance(unit.item, Exception):
                    self.settle(unit, unit.item)
                else:
                    self._add(unit)

    def _suspect(self, queue: Queue[Any], delivery: Delivery) -> None:
        """A message whose earlier delivery never reported: look at its dequeue count before anything of it runs."""
        verdicts: list[tuple[Unit, Exception]] = []
        attempts = delivery.settler.policy.attempts
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

    def _go_on(self, queue: Queue[Any], delivery: Delivery) -> None:
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

    def settle(self, unit: Unit, outcome: Outcome) -> None:
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


def _left_of(queue: Queue[Any], message: Received) -> list[int] | None:
    """The items of a message that are left according to its text; None for all, or if it cannot be read."""
    try:
        return queue.decode(message.text).left
    except MessageUndecodable:
        return None
