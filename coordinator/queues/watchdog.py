"""Watching handlers: those that take too long, messages that nothing acts on, and a blocked event loop."""

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

from coordinator.clock import Clock
from coordinator.queues.handlers import HandlerCall, Runner
from coordinator.queues.leases import End, LeaseManager

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

    While a loop is blocked nothing is renewed: messages in flight go to others when their visibility ends. One thread for
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


_LOOK_SECONDS = 30.0
_LONG_SECONDS = 600.0
_OBEY_SECONDS = 10.0


class Overseer:
    """Ends calls that are past their time-out, names those that take long, gives back what nothing acts on.

    The last should never happen; it is what keeps a fault of this library from holding a message for ever.
    """

    def __init__(self, name: str, runner: Runner, leases: LeaseManager, *, clock: Clock) -> None:
        self._name, self._runner, self._leases, self._clock = name, runner, leases, clock
        self._never = asyncio.Event()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._clock.wait(self._never, await self.step())

    async def step(self) -> float:
        """One look; seconds until the next."""
        now = self._clock.monotonic()
        pauses = [self._look_at(run, now) for run in list(self._runner.running)]
        await self._free_what_is_stuck()
        pause = _LOOK_SECONDS if self._runner.timeout is None else min(_LOOK_SECONDS, self._runner.timeout)
        return max(0.01, min([pause, *pauses]))

    def _look_at(self, run: HandlerCall, now: float) -> float:
        """End or name a call; seconds until it should be looked at again."""
        timeout, taken = self._runner.timeout, now - run.started_at
        if run.cancelled_at is not None:
            if now - run.cancelled_at >= _OBEY_SECONDS:
                self._let_go(run, taken)
            return _OBEY_SECONDS
        if timeout is not None:
            if taken < timeout:
                return timeout - taken
            self._runner.time_out(run, now)
            return _OBEY_SECONDS
        if now - run.warned_at >= max(_LONG_SECONDS, run.warned_at - run.started_at):
            run.warned_at = now
            _log.warning(
                "Handler %s of %s has run for %.0f min on one message; set timeout= if that is too long",
                self._runner.name,
                self._name,
                taken / 60,
                extra={"action": "long", "resource": self._name},
            )
        return _LOOK_SECONDS

    def _let_go(self, run: HandlerCall, taken: float) -> None:
        """A coroutine that goes on although it was cancelled: at least others can have its message."""
        for delivery in {work_item.delivery for work_item in run.work_items}:
            if delivery.held:
                self._leases.drop(delivery, End.ABANDONED)
                delivery.lose("its time-out passed")
                _log.error(
                    "Handler %s of %s ignores its time-out and has run for %.0f s; other workers get its message",
                    self._runner.name,
                    self._name,
                    taken,
                    extra={"action": "give-back", "resource": self._name},
                )

    async def _free_what_is_stuck(self) -> None:
        for delivery in self._leases:
            if delivery.holders > 0:
                delivery.idle_looks = 0
                continue
            delivery.idle_looks += 1
            if delivery.idle_looks > 1:
                _log.error(
                    "Abandoned a held message of %s that nothing processes (a fault in this library, please report it)",
                    self._name,
                    extra={"action": "give-back", "resource": self._name},
                )
                await delivery.settler.abandon(delivery)
                self._leases.drop(delivery, End.ABANDONED)
