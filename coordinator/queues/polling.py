"""Which queue to look at next, and when: idle queues without cost, priorities without starvation."""

from __future__ import annotations

import asyncio
import heapq
import random
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.errors import ConfigurationError
from coordinator.queues.protocols import ListenedQueue
from coordinator.queues.settling import Settler


@dataclass(frozen=True)
class IdleBackoff:
    """How an idle queue is polled: min(minimum + (2^idle - 1) × random(0.8…1.2 × step), maximum), in seconds.

    Attributes:
        minimum_seconds: Shortest pause (default 0).
        step_seconds: Growth of the pause (default 0.1).
        maximum_seconds: Longest pause (default 5). Smaller finds work sooner without push and costs one request each time: 720
            an hour at 5. With push, an idle queue is not polled at all, except every `safety_seconds`.
        safety_seconds: Longest time without a read (default 330).
        shared: Idle queues of one process take turns (default), so that ten of them cost what one costs and each is read every
            tenth time, but every `safety_seconds` at least. False: each is polled by itself.
    """

    minimum_seconds: float = 0.0
    step_seconds: float = 0.1
    maximum_seconds: float = 5.0
    safety_seconds: float = 330.0
    shared: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.minimum_seconds < self.maximum_seconds <= self.safety_seconds:
            raise ConfigurationError(
                "idle back-off needs 0 <= minimum_seconds < maximum_seconds <= safety_seconds, got "
                f"{self.minimum_seconds}, {self.maximum_seconds}, {self.safety_seconds}"
            )
        if self.step_seconds <= 0:
            raise ConfigurationError(f"idle step_seconds must be positive, got {self.step_seconds}")

    def delay(self, idle: int, rng: random.Random) -> float:
        """The pause after a read in vain.

        Args:
            idle: How often in a row nothing was found.
            rng: The source of jitter.

        Returns:
            Seconds.
        """
        jittered = self.step_seconds * rng.uniform(0.8, 1.2)
        return min(self.minimum_seconds + (2.0 ** min(idle, 40) - 1) * jittered, self.maximum_seconds)


@dataclass(frozen=True)
class QueueEmpty:
    """A read found nothing.

    Attributes:
        queue: The queue.
        idle: How often in a row.
        tasks: Dequeue tasks that run.
        pushed: Whether notifications can be expected.
    """

    queue: str
    idle: int
    tasks: int
    pushed: bool


@dataclass(frozen=True)
class Idle:
    """The answer to `QueueEmpty`.

    Attributes:
        delay_seconds: Seconds to wait.
        stop: Whether idle tasks should stop.
    """

    delay_seconds: float
    stop: bool


def queue_empty(
    event: QueueEmpty, *, backoff: IdleBackoff | None = None, rng: random.Random | None = None
) -> Idle:
    """The default answer to an empty queue: an exponential delay, and stop once it is at its maximum.

    Args:
        event: What was found.
        backoff: The delays (default: `IdleBackoff()`).
        rng: The source of jitter, for tests.

    Returns:
        How long to wait, and whether to stop.
    """
    backoff = backoff or IdleBackoff()
    delay = backoff.delay(event.idle, rng or random.Random())
    return Idle(delay, stop=delay >= backoff.maximum_seconds)


class Rota:
    """Turns of the idle queues of one event loop. No I/O.

    Ten queues that are idle at their longest delay are looked at as often, together, as one of them would be alone: each
    gets every tenth turn.
    """

    def __init__(self) -> None:
        self._last = float("-inf")

    def turn(self, now: float, delay: float, at_most: float) -> float:
        """When to look next: `delay` after the turn before, at least `delay` and at most `at_most` seconds from now."""
        self._last = max(now + delay, min(self._last + delay, now + at_most))
        return self._last


_rotas: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Rota] = weakref.WeakKeyDictionary()


def rota() -> Rota:
    """The one of the running event loop."""
    return _rotas.setdefault(asyncio.get_running_loop(), Rota())


_MOST_EXPECTED = 256
_CLOCKS_APART_SECONDS = 60.0


class Source:
    """One queue of a listener. `due` is the monotonic time of the next look; -inf means now.

    `asleep`: with push, nothing is taken until a trigger comes; a look only asks for the depth, because what is invisible
    now (held by the dead, say) comes back unannounced. If something is, the looks for it grow rarer, down to one every
    `safety_seconds`. Moments that are known (see `expect`) get a look of their own. `pushed` turns false when work is found
    that was put without an announcement, and true with the next trigger.
    """

    def __init__(self, queue: ListenedQueue[Any], weight: int, settler: Settler) -> None:
        self.queue = queue
        self.name = queue.name
        self.weight = weight
        self.settler = settler
        self.idle = 0
        self.pushed = True
        self.asleep = False
        self.depth: int | None = None
        self.credit = 0
        self.is_notified = False
        self._announced = False
        self._next = float("-inf")
        self._expected: list[float] = []
        self._recheck_seconds = 0.0
        self._in_vain_at = 0.0
        settler.expect = lambda seconds: self.expect(queue.clock.monotonic() + seconds)

    @property
    def due(self) -> float:
        return min(self._next, self._expected[0]) if self._expected else self._next

    def expect(self, moment: float) -> None:
        """Something will be visible then, by the monotonic clock."""
        if moment not in self._expected and len(self._expected) < _MOST_EXPECTED:
            heapq.heappush(self._expected, moment)

    def expects(self, now: float) -> bool:
        """Whether a moment that was expected has come."""
        return bool(self._expected) and self._expected[0] <= now

    def triggered(self) -> None:
        """A hint said there is work (or that hints may have been lost, see `resynced`)."""
        self.is_notified = self.pushed = True
        self.resynced()

    def resynced(self) -> None:
        self.asleep = False
        self._next = float("-inf")
        self._recheck_seconds = 0.0

    def looking(self, now: float) -> None:
        """A look begins: a hint from here on means another one, even if this finds nothing."""
        self._announced, self.is_notified = self.is_notified, False
        while self.expects(now):
            heapq.heappop(self._expected)
            self.idle, self._recheck_seconds, self._announced = (
                0,
                0.0,
                True,
            )  # a clock may be late: look eagerly for a while
            self.asleep = False

    def found(self, *, known_depth: int | None, newest: float = float("inf")) -> int:
        """Work was found; after how many looks in vain. `newest`: when the last of it was put (seconds since 1970)."""
        idle, self.idle = self.idle, 0
        # What was put long before a look in vain was invisible then: push has not failed.
        was_visible = newest > self._in_vain_at - _CLOCKS_APART_SECONDS
        if idle and was_visible and not self._announced and not self.is_notified:
            self.pushed = False
        self.depth = known_depth
        self.resynced()
        return idle

    def empty(self, at: float = 0.0) -> None:
        """A look in vain, at that moment (seconds since 1970)."""
        self.idle += 1
        self.depth = 0
        self._in_vain_at = at

    def wait(self, until: float) -> None:
        """Nothing more before that time, unless a hint came during the look."""
        self._next = float("-inf") if self.is_notified else until

    def sleep(self, now: float, idle: IdleBackoff) -> None:
        """From now on only a trigger, an expected moment or the safety look wakes it; the first look is for what is
        invisible. If something is, look for it again, each time after twice as long."""
        if self._recheck_seconds:
            self._recheck_seconds = min(2 * self._recheck_seconds, idle.safety_seconds)
            self.wait(now + self._recheck_seconds)
        elif not self.is_notified:
            self.asleep = True
            self._next = now

    def counted(self, depth: int | None, now: float, idle: IdleBackoff) -> None:
        """The safety look's answer: sleep on if the queue holds nothing but what is expected, else look again soon."""
        self.depth = depth
        if depth is not None and depth <= len(self._expected):
            self.wait(now + idle.safety_seconds)
        else:
            self.asleep = False
            self._recheck_seconds = idle.maximum_seconds
            self.wait(now + self._recheck_seconds)


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
