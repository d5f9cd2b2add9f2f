"""Handing out with care what may have killed a process."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import msgspec

from coordinator.clock import Clock
from coordinator.errors import NotFound, ReceiptStale, StorageError
from coordinator.queues import envelope as wire
from coordinator.queues.delivery import Delivery, WorkItem
from coordinator.queues.envelope import Envelope
from coordinator.queues.leases import LeaseManager

_log = logging.getLogger("coordinator.queues")
_STAGGER_SECONDS = 5.0
_ALONE_SECONDS = 60.0


def recalled(envelope: Envelope) -> Envelope:
    """The envelope of a delivery that follows one that never reported: the item that ran then is charged with it."""
    if envelope.begun is None:
        return envelope
    kills = {**envelope.kills, envelope.begun: envelope.kills.get(envelope.begun, 0) + 1}
    return msgspec.structs.replace(envelope, begun=None, kills=kills)


def killed(delivery: Delivery, index: int, attempts: int) -> int:
    """How many processes this item has killed if they are too many, else 0. Looked at before its handler runs.

    An item that was marked when it began is judged by its marks, and by the delivery before the first mark. A message of
    one item without a mark, and one that has no room for marks, is judged by its dequeue count: but not before three
    deliveries, because one that only waited beside a killer is delivered again, too.
    """
    marked = delivery.envelope.kills.get(index, 0)
    if marked:
        total = marked + (
            1 if delivery.message.text.startswith(wire.START) and delivery.envelope.raw is None else 2
        )
        return total if total >= attempts else 0
    if (
        len(delivery.work_items) == 1
        and not delivery.envelope.kills
        and delivery.unreported >= max(attempts, 3)
    ):
        return delivery.unreported
    return (
        delivery.unreported if delivery.unreported >= max(3, 2 * attempts) and not _markable(delivery) else 0
    )


def _marked(delivery: Delivery, index: int) -> Envelope:
    envelope = delivery.envelope
    if not envelope.kennel:  # a foreign message is wrapped, or nothing could be noted on it
        envelope = msgspec.structs.replace(envelope, kennel=wire.VERSION)
    return msgspec.structs.replace(
        envelope, begun=index, left=delivery.left if delivery.is_partly_done else envelope.left
    )


def _markable(delivery: Delivery) -> bool:
    return wire.fits(wire.encode(_marked(delivery, 100)))


class Quarantine:
    """Messages whose earlier delivery never reported: their process died, or lost them.

    Their items are handed out one at a time, what was done is noted on the message before the next begins, and so is
    which one begins: so a killer is found, and its neighbours run at most twice, unless it takes longer than 5 s
    to kill. Of several messages one begins every 5 s, or when the one before has ended; one that was running when a
    process died runs after all others, and for its first minute alone among them. Costs one request an item.
    """

    def __init__(self, leases: LeaseManager, *, clock: Clock, add: Callable[[WorkItem], None]) -> None:
        self._leases, self._clock, self._add = leases, clock, add
        self._waiting: dict[Delivery, deque[WorkItem]] = {}
        self._active: set[WorkItem] = set()
        self._ended = asyncio.Event()
        self._alone_until = 0.0
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def admit(self, delivery: Delivery) -> None:
        """Hand out its items in their turn."""
        kills = delivery.envelope.kills
        work_items = sorted(delivery.work_items, key=lambda work_item: kills.get(work_item.index, 0))
        self._waiting[delivery] = deque(
            work_item
            for work_item in work_items
            if work_item.index not in delivery.outcomes
            and not work_item.running
            and work_item not in self._active
        )
        if not self._waiting[delivery]:
            del self._waiting[delivery]
            return
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="quarantine")
        self._ended.set()

    def ended(self, work_item: WorkItem) -> None:
        """One that was handed out has its outcome, or was dropped."""
        self._active.discard(work_item)
        self._ended.set()

    async def begin(self, work_item: WorkItem) -> bool:
        """Note on the message that this item begins; False if it is not held any more. Called right before its handler."""
        delivery = work_item.delivery
        changed = _marked(delivery, work_item.index)
        text = wire.encode(changed)
        if not wire.fits(text):
            return delivery.held
        try:
            if not await self._leases.renew(delivery, text):
                return False
        except (ReceiptStale, NotFound):
            return False
        except StorageError as error:
            _log.info(
                "A message that may have killed a process was not run: it could not be marked: %s", error
            )
            self._leases.lose(delivery, "it could not be marked")
            return False
        delivery.envelope = changed
        return True

    def close(self) -> list[Delivery]:
        """Hand out nothing more; what waited and was never started."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        left = list(self._waiting)
        for work_items in self._waiting.values():
            for work_item in work_items:
                work_item.drop()
        self._waiting.clear()
        self._active.clear()
        return left

    async def _run(self) -> None:
        while self._waiting:
            self._ended.clear()
            work_item = self._next()
            if work_item is not None:
                self._alone_until = self._clock.monotonic() + _ALONE_SECONDS
                self._active.add(work_item)
                self._add(work_item)
            await self._clock.wait(self._ended, _STAGGER_SECONDS)

    def _next(self) -> WorkItem | None:
        """The next unit that may begin now: the least suspect one; one that may have killed only when nothing else runs."""
        for delivery in [each for each in self._waiting if not each.held]:
            for work_item in self._waiting.pop(delivery):
                work_item.drop()
        busy = {work_item.delivery for work_item in self._active}
        free = [delivery for delivery in self._waiting if delivery not in busy]
        if not free:
            return None

        def suspicion(delivery: Delivery) -> int:
            return delivery.envelope.kills.get(self._waiting[delivery][0].index, 0)

        delivery = min(free, key=suspicion)
        alone = suspicion(delivery) or any(
            work_item.delivery.envelope.kills.get(work_item.index) for work_item in self._active
        )
        if alone and self._active and self._clock.monotonic() < self._alone_until:
            return None
        work_item = self._waiting[delivery].popleft()
        if not self._waiting[delivery]:
            del self._waiting[delivery]
        return work_item
