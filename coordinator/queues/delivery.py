"""A message that was taken, and what became of its items."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import ConfigurationError
from coordinator.queues.envelope import Envelope
from coordinator.queues.protocols import MAX_VISIBILITY_SECONDS, QueueTransport, ReceivedMessage


class Retry(Exception):
    """Raise, or return for an item of a batch: try this item again later.

    Args:
        reason: Why; it is stored with the message (default "").
        after: Seconds until then, at most 604,800 (7 days). By default, and if negative, the delay of the
            `RetryPolicy`.

    Raises:
        ConfigurationError: `after` is out of bounds or not a number.
    """

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        super().__init__(reason or "the handler asked for another try")
        if after is not None and (not math.isfinite(after) or after > MAX_VISIBILITY_SECONDS):
            raise ConfigurationError(f"Retry(after={after}): give at most 604,800 seconds (7 days)")
        self.after = None if after is None or after < 0 else after


class Reject(Exception):
    """Raise, or return for an item of a batch: no further attempt, to poison.

    Args:
        reason: Why; it is stored with the message.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class HandlerEnded(Exception):
    """A handler did not return: it took longer than its time-out, or raised what would end a task or the process.

    Counts as a failed try; the cause is kept.
    """


class ProcessKilled(Exception):
    """What a message that killed its process too often goes to poison with."""


@dataclass(frozen=True)
class Done:
    """Return from a batch handler: this item is done."""


DONE = Done()
Outcome = Done | Exception
"""What became of an item."""


_LOSSES = threading.Lock()
_UNREAD = Envelope(kennel=0)


class Loss:
    """The moment from which this process no longer holds a message. May be read from any thread.

    `await loss` returns the reason, on the listener's event loop; `wait()` is for threads. Once lost stays lost.
    """

    def __init__(self, delivery: Delivery | None = None) -> None:
        self.reason = ""
        self._delivery = delivery
        self._threads = threading.Event()
        self._tasks: asyncio.Event | None = None

    @property
    def held(self) -> bool:
        """Whether nobody else can have the message now, by the monotonic clock; a blocked event loop cannot hide it."""
        if self._threads.is_set():
            return False
        delivery = self._delivery
        return delivery is None or delivery.clock.monotonic() < delivery.until

    def wait(self, timeout: float | None = None) -> bool:
        """For threads: block until it is lost, at most `timeout` seconds; True if it is lost."""
        self._threads.wait(timeout)
        return not self.held

    def __await__(self) -> Generator[Any, None, str]:
        if self._tasks is None:
            self._tasks = asyncio.Event()
            if self._threads.is_set():
                self._tasks.set()
        yield from self._tasks.wait().__await__()
        return self.reason

    def happened(self, reason: str) -> None:
        """Notify everybody; called on the listener's event loop."""
        if not self._threads.is_set():
            self.reason = reason
            self._threads.set()
            if self._tasks is not None:
                self._tasks.set()


class Settlement(Protocol):
    """Ends deliveries of one queue."""

    async def settle(self, delivery: Delivery) -> None:
        """Act on the outcomes of all items."""

    async def delete(self, delivery: Delivery) -> None:
        """Delete the message."""

    async def abandon(self, delivery: Delivery, *, after_seconds: float = 0) -> None:
        """Let others have an unfinished message."""


class Delivery:
    """A message that this process took. `until` is when it becomes visible to others, by the monotonic clock.

    `held` is false once another may have it: its receipt went stale or its time ran out. `lock` orders renewals and the
    final delete, so that the delete uses the newest receipt. `holders` counts what still acts on it (the intake, items
    that wait or run, a settlement under way): while it is held there is at least one, see `LeaseManager.check`. `suspect`:
    an earlier delivery never reported; `skipped`: some of its items were done here before and are not in `work_items`.
    """

    __slots__ = (
        "_loss",
        "clock",
        "envelope",
        "held",
        "holders",
        "idle_looks",
        "lock",
        "message",
        "outcomes",
        "receipt",
        "settler",
        "skipped",
        "started",
        "suspect",
        "taken_at",
        "transport",
        "until",
        "work_items",
    )

    def __init__(
        self,
        message: ReceivedMessage,
        transport: QueueTransport,
        settler: Settlement,
        *,
        taken_at: float,
        until: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.message = message
        self.transport = transport
        self.settler = settler
        self.receipt = message.receipt
        self.taken_at = taken_at
        self.until = until
        self.clock = clock
        self.held = True
        self.started = False
        self.suspect = False
        self.skipped = False
        self.holders = 1
        self.idle_looks = 0
        self.lock = asyncio.Lock()
        self.envelope = _UNREAD
        self.outcomes: dict[int, Outcome] = {}
        self.work_items: list[WorkItem] = []
        self._loss: Loss | None = None

    @property
    def attempt(self) -> int:
        """Which try this is, from 1; deliveries given back unseen don't count."""
        taken, unstarted = self.message.dequeue_count, self.envelope.unstarted
        # More than there were deliveries: the envelope of a message that was moved, or a forged one.
        return max(1, taken - unstarted if unstarted < taken else taken)

    @property
    def unreported(self) -> int:
        """How many earlier deliveries ended without a report: their process died, or lost the message."""
        return max(0, self.attempt - 1 - self.envelope.reported)

    @property
    def key(self) -> str:
        """Equal for all deliveries of one message."""
        return self.message.id

    @property
    def indexes(self) -> list[int]:
        return [work_item.index for work_item in self.work_items]

    @property
    def pending(self) -> int:
        """Items without an outcome."""
        return len(self.work_items) - len(self.outcomes)

    @property
    def left(self) -> list[int]:
        """The items that are not done."""
        return sorted(
            work_item.index for work_item in self.work_items if self.outcomes.get(work_item.index) is not DONE
        )

    @property
    def done(self) -> frozenset[int]:
        """The items that are done."""
        return frozenset(index for index, outcome in self.outcomes.items() if outcome is DONE)

    @property
    def is_partly_done(self) -> bool:
        """Whether items of it are done that its envelope still has as left."""
        return self.skipped or any(outcome is DONE for outcome in self.outcomes.values())

    @property
    def is_running(self) -> bool:
        return any(work_item.running for work_item in self.work_items)

    @property
    def loss(self) -> Loss:
        with _LOSSES:
            if self._loss is None:
                self._loss = Loss(self)
                if not self.held:
                    self._loss.happened("it was lost")
            return self._loss

    def lose(self, reason: str) -> None:
        """It is no longer this process's."""
        with _LOSSES:
            self.held, loss = False, self._loss
        if loss is not None:
            loss.happened(reason)

    def settle(self, index: int, outcome: Outcome) -> bool:
        """Note what became of an item; True if it was the last one."""
        self.outcomes[index] = outcome
        self.holders -= 1
        return len(self.outcomes) == len(self.work_items)

    @property
    def failures(self) -> dict[int, Exception]:
        return {
            index: outcome
            for index, outcome in self.outcomes.items()
            if outcome is not DONE and isinstance(outcome, Exception)
        }


class WorkItem:
    """One item of a delivery: what a handler gets. It is counted in its delivery's `holders` until it has an outcome or is dropped."""

    __slots__ = ("delivery", "dropped", "index", "item", "running")

    def __init__(self, delivery: Delivery, index: int, item: Any) -> None:
        self.delivery = delivery
        self.index = index
        self.item = item
        self.running = False
        self.dropped = False
        delivery.holders += 1

    def drop(self) -> None:
        """Nothing here will run it: its message was lost, or is given back."""
        if not self.dropped:
            self.running, self.dropped = False, True
            self.delivery.holders -= 1

    def restore(self) -> None:
        """It will be run here after all."""
        if self.dropped:
            self.dropped = False
            self.delivery.holders += 1
