"""A thread that notices the end of a term when the event loop cannot."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from coordinator.leadership.callbacks import notify
from coordinator.leadership.term import Term

_GRACE_SECONDS = 0.1
_log = logging.getLogger("coordinator.leadership")


@dataclass(eq=False)
class _Watch:
    term: Term
    work: asyncio.Task[object]
    loop: asyncio.AbstractEventLoop
    on_stall: Callable[[Term], None] | None


class Watchdog:
    """Ends terms whose deadline passed without their event loop saying so.

    Guarantees that within 0.1 s after the deadline the term is ended for everybody who looks from any thread, that
    the cancellation of its task is the next thing the loop will see, and that `on_stall` was called, in this thread.
    Cannot stop code that blocks the loop: that is what `on_stall` (end the process, for one) and fencing are for. One
    thread for all terms of the process; it runs only while there are any.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: list[_Watch] = []
        self._thread: threading.Thread | None = None

    def watch(
        self, term: Term, work: asyncio.Task[object], on_stall: Callable[[Term], None] | None = None
    ) -> Callable[[], None]:
        """Watch until the returned function is called."""
        watch = _Watch(term, work, asyncio.get_running_loop(), on_stall)
        with self._changed:
            self._watches.append(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kennel-watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()

        def unwatch() -> None:
            with self._changed:
                if watch in self._watches:
                    self._watches.remove(watch)
                    self._changed.notify()

        return unwatch

    def step(self) -> float | None:
        """End what is overdue; seconds until the next look, None if there is nothing to watch."""
        with self._changed:
            overdue = [watch for watch in self._watches if watch.term.overdue_seconds >= _GRACE_SECONDS]
            self._watches = [watch for watch in self._watches if watch not in overdue]
            left = [watch.term.remaining_seconds + _GRACE_SECONDS for watch in self._watches]
        for watch in overdue:
            if watch.term.is_ended:
                continue
            watch.term.end("the event loop stalled past the end of the lease")
            _log.error(
                "The event loop stalled; term %s of %s is over",
                watch.term.epoch,
                watch.term.name,
                extra={"action": "lead", "resource": watch.term.name, "epoch": watch.term.epoch},
            )
            with suppress(RuntimeError):  # the loop is closed
                watch.loop.call_soon_threadsafe(watch.work.cancel)
            notify(f"on_stall of {watch.term.name}", watch.on_stall, watch.term)
        return min(left, default=None)

    def _run(self) -> None:
        while True:
            pause = self.step()
            with self._changed:
                if not self._watches:
                    self._thread = None
                    return
                self._changed.wait(pause)


WATCHDOG = Watchdog()
