"""What starts and ends instances."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

Leaders = Callable[[], Awaitable[set[str]]]
Jobs = Callable[[], Awaitable[dict[str, int]]]
"""How many jobs each worker runs, by name."""


class Driver(Protocol):
    """Knows how many instances of a pool there are, and can change that.

    Both calls may be repeated: `scale` names the number wanted, not a difference, so an agent that takes over in the
    middle only says it again. Those that run nothing leave first, leaders of elections last, and nobody before its jobs
    have ended, within the bound of the driver.
    """

    async def actual(self) -> int:
        """How many there are, starting ones included, draining ones not."""

    async def scale(self, wanted: int) -> None:
        """See to it that there will be so many; returns when it is under way."""


class DryRunDriver:
    """Changes nothing, and remembers what it was asked for: to try a policy on a live fleet.

    Args:
        actual: Returns the number of instances (default: the number asked for last).
    """

    def __init__(self, actual: Callable[[], Awaitable[int]] | None = None) -> None:
        self.asked: list[int] = []
        self._actual = actual

    async def actual(self) -> int:
        """How many instances there are."""
        if self._actual is not None:
            return await self._actual()
        return self.asked[-1] if self.asked else 0

    async def scale(self, wanted: int) -> None:
        """Remember the desired number.

        Args:
            wanted: Desired number of instances.
        """
        self.asked.append(wanted)


async def no_leaders() -> set[str]:
    """For pools in which nobody stands for election."""
    return set()


async def no_jobs() -> dict[str, int]:
    """For pools whose workers report nothing: all count as idle."""
    return {}


def select_for_removal(names: list[str], count: int, leaders: set[str], jobs: dict[str, int]) -> list[str]:
    """Who goes when `count` must go: those with the fewest jobs, of these the newest (last); leaders only when nobody
    else is left. Pure."""
    ranked = names[::-1]
    ranked.sort(key=lambda name: (name in leaders, jobs.get(name, 0)))
    return ranked[: max(0, count)]
