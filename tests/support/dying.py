"""Processes that die, in memory: every call of every store is counted, and the n-th is the last one of the process."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from coordinator.testing.clock import ManualClock


class Killed(BaseException):
    """The process ended here. No handler catches it, as none catches SIGKILL."""


class HastyClock(ManualClock):
    """Time passes as fast as somebody sleeps."""

    async def sleep(self, seconds: float) -> None:
        self._now += max(0.0, seconds)
        await asyncio.sleep(0)

    def skip(self, seconds: float) -> None:
        self._now += seconds


class Mortal:
    """A process that ends at its `at`-th call of a store: before the store acts, or after it and before the answer."""

    def __init__(self, at: int = 0, *, after: bool = False) -> None:
        self.at, self.after, self.calls = at, after, 0

    @property
    def is_dead(self) -> bool:
        return 0 < self.at <= self.calls

    def wrap(self, store: Any) -> Any:
        """The store as this process has it."""
        return _Wrapped(store, self)


class _Wrapped:
    def __init__(self, store: Any, mortal: Mortal) -> None:
        self._store, self._mortal = store, mortal

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name.startswith("_") or not inspect.iscoroutinefunction(found):
            return found

        async def call(*given: Any, **named: Any) -> Any:
            mortal = self._mortal
            if mortal.is_dead:
                raise Killed
            mortal.calls += 1
            if mortal.is_dead and not mortal.after:
                raise Killed
            answer = await found(*given, **named)
            if mortal.is_dead:
                raise Killed
            return answer

        return call
