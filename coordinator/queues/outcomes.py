"""What can become of a message, said by its handler."""

from __future__ import annotations

from dataclasses import dataclass


class Retry(Exception):
    """Raise (or return, from a batch handler): try this item again after `after` seconds (default: growing by attempts)."""

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        super().__init__(reason or "the handler asked for another try")
        self.after = after


class Reject(Exception):
    """Raise (or return, from a batch handler): no further try, to poison with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


@dataclass(frozen=True)
class Done:
    """Return from a batch handler: this item is done."""


DONE = Done()
Outcome = Done | Exception
