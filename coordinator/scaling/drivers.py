"""What starts and ends instances."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

Leaders = Callable[[], Awaitable[set[str]]]


class Driver(Protocol):
    """Knows how many instances of a pool there are, and can change that.

    Both calls may be repeated: `scale` names the number wanted, not a difference, so an agent that takes over in the
    middle only says it again. Those that leave are asked to drain first; leaders of elections leave last.
    """

    async def actual(self) -> int:
        """How many there are, starting ones included, draining ones not."""

    async def scale(self, wanted: int) -> None:
        """See to it that there will be so many; returns when it is under way."""


class DryRunDriver:
    """Changes nothing, and remembers what it was asked for: to try a policy on a live fleet."""

    def __init__(self, actual: Callable[[], Awaitable[int]] | None = None) -> None:
        self.asked: list[int] = []
        self._actual = actual

    async def actual(self) -> int:
        if self._actual is not None:
            return await self._actual()
        return self.asked[-1] if self.asked else 0

    async def scale(self, wanted: int) -> None:
        self.asked.append(wanted)


async def no_leaders() -> set[str]:
    """For pools in which nobody stands for election."""
    return set()


def victims(names: list[str], count: int, leaders: set[str]) -> list[str]:
    """Who goes when `count` must go: the newest (last) first, leaders only when nobody else is left. Pure."""
    ranked = [name for name in reversed(names) if name not in leaders]
    ranked += [name for name in reversed(names) if name in leaders]
    return ranked[: max(0, count)]
