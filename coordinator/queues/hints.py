"""Hints from any thread, delivered on the listener's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from coordinator.bus import Bus, Hint
from coordinator.gates.gate import Gate


class Hints:
    """The subscriptions of one listener while it runs."""

    def __init__(self) -> None:
        self._unsubscribe: list[Callable[[], None]] = []

    def on(self, bus: Bus, topic: str, callback: Callable[[Hint], None]) -> None:
        """Call back on this event loop for each hint of the topic, until `close`."""
        loop = asyncio.get_running_loop()

        def heard(hint: Hint) -> None:
            with suppress(RuntimeError):  # the loop ended while the hint was on its way
                loop.call_soon_threadsafe(callback, hint)

        self._unsubscribe.append(bus.subscribe(topic, heard))

    def close(self) -> None:
        """End all subscriptions."""
        while self._unsubscribe:
            self._unsubscribe.pop()()


async def follow(gate: Gate, closed: Callable[[], None]) -> None:
    """Call back after every look that finds the gate closed, until cancelled. For use inside `gate.watch()`."""
    while True:
        await gate.changed()
        if not gate.is_open():
            closed()
