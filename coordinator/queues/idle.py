"""Backing off from an empty queue (S7) and asking for the right amount. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from coordinator.errors import ConfigurationError
from coordinator.queues.transport import MAX_BATCH


@dataclass(frozen=True)
class IdleBackoff:
    """How an idle queue is polled: min(minimum + (2^idle - 1) × random(0.8…1.2 × step), maximum), in seconds.

    A small `maximum_seconds` finds work sooner when there is no push, and costs one request each time: 5 s are 720 an hour.
    With push nothing is polled at the maximum but one look every `safety_seconds`. `shared`: queues of one process that are
    idle at the maximum take turns, so that ten of them cost what one costs, and each is looked at every tenth time (but
    every `safety_seconds` at least); False: each is looked at by itself.
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
        """Seconds to wait after the idle-th look in vain."""
        jittered = self.step_seconds * rng.uniform(0.8, 1.2)
        return min(self.minimum_seconds + (2.0 ** min(idle, 40) - 1) * jittered, self.maximum_seconds)


@dataclass(frozen=True)
class QueueEmpty:
    """A look found nothing, `idle` times in a row; `tasks` run, `pushed` says whether triggers can be expected."""

    queue: str
    idle: int
    tasks: int
    pushed: bool


@dataclass(frozen=True)
class Idle:
    """The answer to `QueueEmpty`: how long to wait, and whether idle tasks should stop."""

    delay_seconds: float
    stop: bool


@dataclass(frozen=True)
class WorkDetected:
    """Work was found after `idle` looks in vain, or is still coming; `depth` None means it was not asked for."""

    queue: str
    idle: int
    tasks: int
    depth: int | None


def queue_empty(
    event: QueueEmpty, *, backoff: IdleBackoff | None = None, rng: random.Random | None = None
) -> Idle:
    """The usual answer to an empty queue (S7): an exponential delay, and stop once it is at its maximum."""
    backoff = backoff or IdleBackoff()
    delay = backoff.delay(event.idle, rng or random.Random())
    return Idle(delay, stop=delay >= backoff.maximum_seconds)


def fetch_size(*, waiting: int, buffered: int, per_second: float, ahead_seconds: float = 0.5) -> int:
    """How many messages to ask for: enough for the waiting tasks and for what is done in the next half second.

    Slow handlers thus take one message a task and leave the rest to others; fast ones take 32.
    """
    return max(0, min(MAX_BATCH, waiting + round(per_second * ahead_seconds) - buffered))
