"""Which queue to look at next, and when: priorities without starvation, idle queues without cost. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordinator.queues.idle import IdleBackoff
from coordinator.queues.queue import Queue
from coordinator.queues.settling import Settler


class Source:
    """One queue of a listener. `due` is the monotonic time of the next look; -inf means now.

    `asleep`: with push, nothing is taken until a trigger comes; a look only asks for the depth, because what is invisible
    now (delayed, tried again, held by the dead) comes back unannounced. `pushed` turns false when work is found that
    nobody announced, and true with the next trigger.
    """

    def __init__(self, queue: Queue[Any], weight: int, settler: Settler) -> None:
        self.queue = queue
        self.name = queue.name
        self.weight = weight
        self.settler = settler
        self.due = float("-inf")
        self.idle = 0
        self.pushed = True
        self.asleep = False
        self.depth: int | None = None
        self.credit = 0
        self.heard = False
        self._announced = False

    def triggered(self) -> None:
        """A hint said there is work (or that hints may have been lost, see `resynced`)."""
        self.heard = self.pushed = True
        self.resynced()

    def resynced(self) -> None:
        self.asleep = False
        self.due = float("-inf")

    def looking(self) -> None:
        """A look begins: a hint from here on means another one, even if this finds nothing."""
        self._announced, self.heard = self.heard, False

    def found(self, *, known_depth: int | None) -> int:
        """Work was found; after how many looks in vain."""
        idle, self.idle = self.idle, 0
        if idle and not self._announced and not self.heard:
            self.pushed = False
        self.depth = known_depth
        self.resynced()
        return idle

    def empty(self) -> None:
        self.idle += 1
        self.depth = 0

    def wait(self, until: float) -> None:
        """Nothing more before that time, unless a hint came during the look."""
        self.due = float("-inf") if self.heard else until

    def sleep(self, now: float) -> None:
        """From now on only a trigger or the safety look wakes it; the first look is for what is invisible."""
        if not self.heard:
            self.asleep = True
            self.due = now

    def counted(self, depth: int | None, now: float, idle: IdleBackoff) -> None:
        """The safety look's answer: sleep on if the queue is really empty, else look again soon."""
        self.depth = depth
        if depth == 0:
            self.wait(now + idle.safety_seconds)
        else:
            self.asleep = False
            self.wait(now + idle.maximum_seconds)


def choose(sources: Sequence[Source], now: float) -> Source | None:
    """The next source to look at: of those due, each gets turns in proportion to its weight, so none starves."""
    due = [source for source in sources if source.due <= now]
    if not due:
        return None
    for source in due:
        source.credit += source.weight
    chosen = max(due, key=lambda source: source.credit)
    chosen.credit -= sum(source.weight for source in due)
    return chosen
