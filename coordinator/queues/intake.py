"""From the answer of a get to work for the tasks, and from their outcomes to deletes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from coordinator.clock import Clock
from coordinator.errors import MessageUndecodable, StorageError
from coordinator.queues.delivery import Delivery, Unit
from coordinator.queues.leases import LeaseManager
from coordinator.queues.outcomes import Outcome
from coordinator.queues.pace import Pace
from coordinator.queues.queue import Queue
from coordinator.queues.sources import Source

_log = logging.getLogger("coordinator.queues")
_MAX_UNDELETED = 256


class Intake:
    """Holds, decodes and hands out what was taken; settles messages beside the handlers, so deletes are pipelined.

    `add` gets each item that was decoded; what was not goes straight to its settler. `relieved` is called when there is
    room again after too many messages waited for their delete.
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
        deliveries = [
            Delivery(message, source.queue.transport, source.settler, taken_at=sent, until=sent + seconds)
            for message in messages
            if not self._leases.taken_again(message, taken_at=sent, until=sent + seconds)
        ]
        for delivery in deliveries:
            self._leases.hold(delivery)
        for delivery in deliveries:
            if source.settler.is_done_already(delivery):
                self._end(source.settler.delete(delivery))
            else:
                await self._unwrap(source.queue, delivery)
        newest = max((each.inserted_at for each in messages if each.dequeue_count <= 1), default=0.0)
        return len(messages), newest

    async def _unwrap(self, queue: Queue[Any], delivery: Delivery) -> None:
        items: list[tuple[int, Any]]
        try:
            delivery.envelope = queue.decode(delivery.message.text)
            items = await queue.items(delivery.envelope)
        except MessageUndecodable as error:
            items = [(0, error)]
        except StorageError as error:  # its claim cannot be had just now
            _log.info("A message of %s waits for its payload: %s", queue.name, error)
            self._end(delivery.settler.give_back(delivery, after_seconds=self._rng.uniform(5, 30)))
            return
        except Exception as error:
            items = [
                (0, MessageUndecodable(f"the message could not be read: {type(error).__name__}: {error}"))
            ]
        delivery.indexes = [index for index, _ in items]
        delivery.pending = len(items)
        self._pace.unpacked(len(items))
        for index, item in items:
            if isinstance(item, Exception):
                self.settle(Unit(delivery, index, None), item)
            else:
                self._add(Unit(delivery, index, item))

    def settle(self, unit: Unit, outcome: Outcome) -> None:
        """Note an item's outcome; with the last one the message is deleted, shown again or poisoned."""
        delivery = unit.delivery
        if delivery.settle(unit.index, outcome):
            self._end(delivery.settler.settle(delivery))

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        """Deletes and the like run beside the handlers."""
        task = asyncio.create_task(work, name="settle")
        self._ending.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if len(self._ending) == _MAX_UNDELETED:
            self._relieved()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("A message could not be settled", exc_info=error)

    def give_back(self, deliveries: list[Delivery]) -> None:
        """Let others have messages that no handler here has seen."""
        for delivery in deliveries:
            self._end(delivery.settler.give_back(delivery))

    async def finish(self) -> None:
        """Wait until everything on its way has ended."""
        while self._ending:
            await asyncio.wait(set(self._ending))
