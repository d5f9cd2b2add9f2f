"""A thread that says which handler blocks the event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

_log = logging.getLogger("coordinator.queues")
BEAT_SECONDS = 1.0
BLOCKED_SECONDS = 5.0


class _Loop:
    """An event loop that is watched: when it was last seen alive, and whose handlers run on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self.loop = loop
        self.thread = threading.get_ident()
        self.handlers: list[tuple[str, CodeType | None, str]] = []
        self.named: tuple[str, str] | None = None
        self._clock = clock
        self.seen = clock()
        self._timer = loop.call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        self.seen = self._clock()
        self._timer = self.loop.call_later(BEAT_SECONDS, self._beat)

    def close(self) -> None:
        self._timer.cancel()


class Stalls:
    """Names the handler that keeps an event loop of listeners from running for 5 s, once for each time it does.

    While a loop is blocked nothing is renewed: messages in hand go to others when their visibility ends. One thread for
    all listeners of the process; it runs only while there are any.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._changed = threading.Condition()
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}
        self._thread: threading.Thread | None = None
        self._clock = clock

    def watch(self, queue: str, handler: Callable[..., Any]) -> Callable[[], None]:
        """Watch the running event loop until the returned function is called."""
        loop = asyncio.get_running_loop()
        inner = inspect.unwrap(handler)
        code = getattr(inner, "__code__", None) or getattr(getattr(inner, "__call__", None), "__code__", None)  # noqa: B004 - objects with a __call__
        entry = (queue, code, getattr(inner, "__qualname__", "") or type(inner).__qualname__)
        with self._changed:
            watched = self._loops.get(loop)
            if watched is None:
                watched = self._loops[loop] = _Loop(loop, self._clock)
            watched.handlers.append(entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kennel-stalls", daemon=True)
                self._thread.start()

        def unwatch() -> None:
            with self._changed:
                watched.handlers.remove(entry)
                if not watched.handlers:
                    watched.close()
                    del self._loops[loop]
                self._changed.notify()

        return unwatch

    def step(self) -> None:
        """One look at every loop."""
        with self._changed:
            loops = list(self._loops.values())
        for watched in loops:
            blocked = self._clock() - watched.seen
            if blocked < BLOCKED_SECONDS:
                watched.named = None
                continue
            frame = sys._current_frames().get(watched.thread)
            culprit = _handler_in(watched, frame)
            if watched.named != culprit:
                watched.named = culprit
                _say(*culprit, blocked, frame)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._loops:
                    self._thread = None
                    return
                self._changed.wait(BEAT_SECONDS)
            self.step()


def _handler_in(watched: _Loop, frame: FrameType | None) -> tuple[str, str]:
    """The queue and the handler that runs in that frame; of no handler, the name is empty."""
    codes = {code: (queue, name) for queue, code, name in watched.handlers if code is not None}
    while frame is not None:
        if frame.f_code in codes:
            return codes[frame.f_code]
        frame = frame.f_back
    return watched.handlers[0][0] if watched.handlers else "", ""


def _say(queue: str, handler: str, blocked: float, frame: FrameType | None) -> None:
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "an unknown place"
    _log.warning(
        "%s blocked the event loop for %.0f s (now at %s); no message is renewed meanwhile. Use def instead of async def, "
        "or await",
        f"Handler {handler} of {queue}" if handler else f"Something in the process that listens to {queue}",
        blocked,
        where,
        extra={"action": "blocked", "resource": queue},
    )


STALLS = Stalls()
