"""A message in hand: what is left of it, and who may still act on it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from coordinator.queues.envelope import Envelope
from coordinator.queues.outcomes import DONE, Outcome
from coordinator.queues.transport import QueueTransport, Received

if TYPE_CHECKING:
    from coordinator.queues.settling import Settler


class Delivery:
    """A message that this process took. `until` is when it becomes visible to others, by the monotonic clock.

    `held` is false once another may have it: its receipt went stale or its time ran out. `lock` orders renewals and the
    final delete, so that the delete uses the newest receipt.
    """

    __slots__ = (
        "envelope",
        "held",
        "indexes",
        "lock",
        "message",
        "outcomes",
        "pending",
        "receipt",
        "settler",
        "started",
        "taken_at",
        "transport",
        "until",
    )

    def __init__(
        self, message: Received, transport: QueueTransport, settler: Settler, *, taken_at: float, until: float
    ) -> None:
        self.message = message
        self.transport = transport
        self.settler = settler
        self.receipt = message.receipt
        self.taken_at = taken_at
        self.until = until
        self.held = True
        self.started = False
        self.lock = asyncio.Lock()
        self.envelope = Envelope(kennel=0)
        self.outcomes: dict[int, Outcome] = {}
        self.indexes: list[int] = []
        self.pending = 0

    @property
    def attempt(self) -> int:
        """Which try this is, from 1; deliveries given back unseen don't count."""
        taken, unstarted = self.message.dequeue_count, self.envelope.unstarted
        # More than there were deliveries: the envelope of a message that was moved, or a forged one.
        return max(1, taken - unstarted if unstarted < taken else taken)

    @property
    def key(self) -> str:
        """Equal for all deliveries of one message."""
        return self.message.id

    def settle(self, index: int, outcome: Outcome) -> bool:
        """Note what became of an item; True if it was the last one."""
        self.outcomes[index] = outcome
        self.pending -= 1
        return self.pending == 0

    @property
    def failures(self) -> dict[int, Exception]:
        return {
            index: outcome
            for index, outcome in self.outcomes.items()
            if outcome is not DONE and isinstance(outcome, Exception)
        }


class Unit:
    """One item of a delivery: what a handler gets."""

    __slots__ = ("delivery", "index", "item")

    def __init__(self, delivery: Delivery, index: int, item: Any) -> None:
        self.delivery = delivery
        self.index = index
        self.item = item
