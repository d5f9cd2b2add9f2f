"""What can become of a message, said by its handler."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coordinator.errors import ConfigurationError
from coordinator.queues.transport import MAX_VISIBILITY_SECONDS


class Retry(Exception):
    """Raise (or return, from a batch handler): try this item again after `after` seconds (default: growing by attempts).

    `after`: at most 604,800 (7 days); a moment in the past (a negative number) has the default delay. Raises
    `ConfigurationError` for what is no such number.
    """

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        super().__init__(reason or "the handler asked for another try")
        if after is not None and (not math.isfinite(after) or after > MAX_VISIBILITY_SECONDS):
            raise ConfigurationError(f"Retry(after={after}): give at most 604,800 seconds (7 days)")
        self.after = None if after is None or after < 0 else after


class Reject(Exception):
    """Raise (or return, from a batch handler): no further try, to poison with this reason."""

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
