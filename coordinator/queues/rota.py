"""The looks of one process at its idle queues: one after the other, at the rate of one queue."""

from __future__ import annotations

import asyncio
import weakref


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
