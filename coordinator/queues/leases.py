"""Keeps every message in flight invisible to others for as long as it is in flight, and accounts for how each one ended."""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections import OrderedDict
from collections.abc import Iterator

from coordinator.backoff import TRANSIENT
from coordinator.clock import Clock
from coordinator.errors import NotFound, ReceiptStale, StorageError
from coordinator.queues.delivery import Delivery
from coordinator.queues.protocols import MAX_VISIBILITY_SECONDS, ReceivedMessage

_log = logging.getLogger("coordinator.queues")
_STALE_BEFORE_LENGTHENING = 5
_MAX_LENGTHENED_SECONDS = 600.0
_CALM_SECONDS = 300.0
_REMEMBERED = 1_000


class End(enum.StrEnum):
    """How this process's part in a message ended."""

    SETTLED = "settled"
    ABANDONED = "abandoned"
    LOST = "lost"


class LeaseManager:
    """Renews the visibility of all held messages of one listener, each well before it ends, jittered.

    Guarantees: while storage answers, a held message stays invisible however long its handler runs; a renewal and a
    delete of the same message never overlap, so the newest receipt is always the one used. When a message can no
    longer be ours, `Delivery.held` turns false. Does not guarantee that no other process has it when storage was away
    for longer than the visibility.

    The invariant of all that is taken is kept here: whatever was taken is settled, abandoned (given back, or left to
    appear by itself) or dropped because it was lost (`ended` counts them); and what is still held has something that
    acts on it. `check` raises if that does not hold, `stuck` finds what breaks it.

    `visibility_seconds` is lengthened when receipts go stale too often: then work takes longer than it says. It is
    halved again for every five minutes without one. Receipts that go stale together lengthen it once: those of a time that
    was lengthened meanwhile do not count.
    """

    def __init__(self, *, visibility_seconds: float, clock: Clock, rng: random.Random | None = None) -> None:
        self.stale = 0
        self.renewals = 0
        self.taken = 0
        self.ended = dict.fromkeys(End, 0)
        self._least_seconds = self._seconds = visibility_seconds
        self._calm_since = clock.monotonic()
        self._clock = clock
        self._rng = rng or random.Random()
        self._held: dict[Delivery, float] = {}
        self._lost: OrderedDict[str, Delivery] = OrderedDict()
        self._wake = asyncio.Event()
        self._next = float("inf")
        self._since_lengthened = 0
        self._lengthened_at = float("-inf")

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(list(self._held))

    @property
    def visibility_seconds(self) -> float:
        """How long messages are taken for, and renewed for, now."""
        if self._seconds > self._least_seconds:
            now = self._clock.monotonic()
            while now - self._calm_since >= _CALM_SECONDS and self._seconds > self._least_seconds:
                self._calm_since += _CALM_SECONDS
                self._seconds = max(self._least_seconds, self._seconds / 2)
                _log.info("No late acknowledgement for 5 min: visibility lowered to %.0f s", self._seconds)
        return self._seconds

    # --- the account of what was taken --------------------------------------------------------------------------

    def hold(self, delivery: Delivery) -> None:
        """From now on it is renewed until `drop` or `lose`."""
        self.taken += 1
        due = self._due(delivery)
        self._held[delivery] = due
        if due < self._next:
            self._wake.set()

    def drop(self, delivery: Delivery, end: End) -> None:
        """It is settled or abandoned; harmless when repeated."""
        if self._held.pop(delivery, None) is not None:
            self.ended[end] += 1
        if self._lost:
            self._lost.pop(delivery.key, None)

    def lose(self, delivery: Delivery, reason: str) -> None:
        """Another may have it now. A handler that runs goes on; items that only waited are dropped when their turn comes."""
        if self._held.pop(delivery, None) is not None:
            self.ended[End.LOST] += 1
        delivery.lose(reason)
        if delivery.started:
            self._lost[delivery.key] = delivery
            if len(self._lost) > _REMEMBERED:
                self._lost.popitem(last=False)

    def stuck(self) -> list[Delivery]:
        """Messages that are held although nothing acts on them. There must be none."""
        return [delivery for delivery in self._held if delivery.holders <= 0]

    def check(self) -> None:
        """Raise `AssertionError` if something that was taken is neither at work nor accounted for."""
        assert not (stuck := self.stuck()), (
            f"{len(stuck)} held messages have nothing running and nothing queued"
        )
        ends = sum(self.ended.values())
        assert self.taken == ends + len(self._held), (
            f"taken {self.taken}, ended {ends}, held {len(self._held)}"
        )

    def returned(self, message: ReceivedMessage, *, taken_at: float, until: float) -> Delivery | None:
        """The lost delivery of this message if it is known here; it is held again if its handler still runs.

        That happens when the answer of a renewal was lost, and with it the receipt, or when storage was away for longer
        than the visibility: the message came back by itself.
        """
        delivery = self._lost.pop(message.id, None) if self._lost else None
        if delivery is None:
            return None
        if delivery.is_running:
            delivery.message, delivery.receipt = message, message.receipt
            delivery.taken_at, delivery.until, delivery.held = taken_at, until, True
            self.hold(delivery)
        return delivery

    def oldest_seconds(self) -> float:
        """How long the longest-held message has been invisible."""
        first = min((delivery.taken_at for delivery in self._held), default=None)
        return 0.0 if first is None else self._clock.monotonic() - first

    def went_stale(self, delivery: Delivery, error: Exception | None = None) -> None:
        """Count a receipt that was no longer ours; too many of them lengthen the visibility."""
        self.stale += 1
        # "Not there" before its time was up: somebody cleared the queue. A longer visibility would not have helped.
        cleared = getattr(error, "status", None) == 404 and self._clock.monotonic() < delivery.until
        self.lose(delivery, f"its receipt is no longer valid ({error})" if error else "its time ran out")
        if cleared:
            return
        seconds, self._calm_since = self.visibility_seconds, self._clock.monotonic()
        if delivery.until - seconds < self._lengthened_at:
            return
        self._since_lengthened += 1
        if self._since_lengthened >= _STALE_BEFORE_LENGTHENING:
            self._since_lengthened = 0
            longer = max(seconds, min(seconds * 2, _MAX_LENGTHENED_SECONDS, MAX_VISIBILITY_SECONDS))
            if longer > seconds:
                self._seconds, self._lengthened_at = longer, self._clock.monotonic()
                _log.warning("Late acknowledgements: visibility raised to %.0f s", longer)

    # --- renewing -----------------------------------------------------------------------------------------------

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
        try:
            await self.renew(delivery)
        except (ReceiptStale, NotFound):
            return
        except StorageError as error:
            if not isinstance(error, TRANSIENT):
                _log.warning("The visibility of an in-flight message could not be renewed: %s", error)
            left = delivery.until - self._clock.monotonic()
            if left <= 0:
                self.went_stale(delivery)
            elif delivery in self._held:
                # What the service asks for, unless the message would be lost by then.
                asked = min(error.retry_after_seconds, left * 0.8)
                pause = max(self._rng.uniform(0.2, 1.0), asked * self._rng.uniform(1.0, 1.1))
                self._held[delivery] = self._clock.monotonic() + pause

    async def renew(self, delivery: Delivery, text: str | None = None) -> bool:
        """Make it invisible for the full time again, with another text if given; False if it is not held any more.

        Raises `StorageError`; a receipt that is no longer valid loses the message.
        """
        async with delivery.lock:
            if delivery not in self._held:
                return False
            sent, seconds = self._clock.monotonic(), self.visibility_seconds
            try:
                delivery.receipt = await delivery.transport.update(
                    delivery.message.id, delivery.receipt, visibility_seconds=seconds, text=text
                )
            except (ReceiptStale, NotFound) as error:
                self.went_stale(delivery, error)
                raise
            self.renewals += 1
            delivery.until = sent + seconds
            if delivery in self._held:
                self._held[delivery] = self._due(delivery)
            return True
