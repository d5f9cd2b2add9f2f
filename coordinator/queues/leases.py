"""Keeps every message in hand invisible to others for as long as it is in hand."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator

from coordinator.backoff import TRANSIENT
from coordinator.clock import Clock
from coordinator.errors import NotFound, ReceiptStale, StorageError
from coordinator.queues.delivery import Delivery
from coordinator.queues.transport import MAX_VISIBILITY_SECONDS, Received

_log = logging.getLogger("coordinator.queues")
_STALE_BEFORE_LENGTHENING = 5
_MAX_LENGTHENED_SECONDS = 600.0


class LeaseManager:
    """Renews the visibility of all held messages of one listener, each well before it ends, jittered.

    Guarantees: while storage answers, a held message stays invisible however long its handler runs; a renewal and a
    delete of the same message never overlap, so the newest receipt is always the one used. When a message can no
    longer be ours, `Delivery.held` turns false. Does not guarantee that no other process has it when storage was away
    for longer than the visibility.

    `visibility_seconds` is lengthened when receipts go stale too often (S20): then work takes longer than it says.
    """

    def __init__(self, *, visibility_seconds: float, clock: Clock, rng: random.Random | None = None) -> None:
        self.visibility_seconds = visibility_seconds
        self.stale = 0
        self.renewals = 0
        self._clock = clock
        self._rng = rng or random.Random()
        self._held: dict[Delivery, float] = {}
        self._lost: dict[str, Delivery] = {}
        self._wake = asyncio.Event()
        self._next = float("inf")
        self._since_lengthened = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(list(self._held))

    def hold(self, delivery: Delivery) -> None:
        due = self._due(delivery)
        self._held[delivery] = due
        if due < self._next:
            self._wake.set()

    def drop(self, delivery: Delivery) -> None:
        self._held.pop(delivery, None)
        self._lost.pop(delivery.key, None)

    def taken_again(self, message: Received, *, taken_at: float, until: float) -> bool:
        """True if this message's handler is still running here: the renewal that was lost is made good.

        That happens when the answer of a renewal was lost, and with it the receipt: the message came back by itself.
        """
        delivery = self._lost.pop(message.id, None)
        if delivery is None or not delivery.pending:
            return False
        delivery.receipt, delivery.taken_at, delivery.until, delivery.held = (
            message.receipt,
            taken_at,
            until,
            True,
        )
        self.hold(delivery)
        return True

    def oldest_seconds(self) -> float:
        """How long the longest-held message has been invisible."""
        first = min((delivery.taken_at for delivery in self._held), default=None)
        return 0.0 if first is None else self._clock.monotonic() - first

    def went_stale(self, delivery: Delivery) -> None:
        """Count a receipt that was no longer ours; too many of them lengthen the visibility."""
        delivery.held = False
        self.drop(delivery)
        if delivery.started and delivery.pending:
            self._lost[delivery.key] = delivery
        self.stale += 1
        self._since_lengthened += 1
        if self._since_lengthened >= _STALE_BEFORE_LENGTHENING:
            self._since_lengthened = 0
            longer = min(self.visibility_seconds * 2, _MAX_LENGTHENED_SECONDS, MAX_VISIBILITY_SECONDS)
            if longer > self.visibility_seconds:
                self.visibility_seconds = longer
                _log.warning("Receipts go stale: messages are now taken for %.0f s", longer)

    async def run(self) -> None:
        """Renew what is due, until cancelled."""
        while True:
            self._wake.clear()
            self._next = await self.step()
            await self._clock.wait(self._wake, min(60.0, max(0.0, self._next - self._clock.monotonic())))

    async def step(self) -> float:
        """Renew all that is due now; returns when the next one will be."""
        now = self._clock.monotonic()
        due = [delivery for delivery, moment in self._held.items() if moment <= now]
        if due:
            await asyncio.gather(*(self._renew(delivery) for delivery in due))
        return min(self._held.values(), default=float("inf"))

    def _due(self, delivery: Delivery) -> float:
        return delivery.until - self.visibility_seconds * self._rng.uniform(0.5, 0.65)

    async def _renew(self, delivery: Delivery) -> None:
        async with delivery.lock:
            if delivery not in self._held:
                return
            sent, seconds = self._clock.monotonic(), self.visibility_seconds
            try:
                delivery.receipt = await delivery.transport.update(
                    delivery.message.id, delivery.receipt, visibility_seconds=seconds
                )
            except (ReceiptStale, NotFound):
                self.went_stale(delivery)
                return
            except StorageError as error:
                if not isinstance(error, TRANSIENT):
                    _log.warning("A message in hand could not be kept invisible: %s", error)
                if self._clock.monotonic() >= delivery.until:
                    self.went_stale(delivery)
                else:
                    self._held[delivery] = self._clock.monotonic() + self._rng.uniform(0.2, 1.0)
                return
            self.renewals += 1
            delivery.until = sent + seconds
            self._held[delivery] = self._due(delivery)
