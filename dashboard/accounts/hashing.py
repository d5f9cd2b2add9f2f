"""Passwords are hashed in a few threads of low priority: forty strangers who guess must not slow a release.

Guarantees that no more than half of the processors hash at the same time, that whoever waits for one of them waits for a
bounded line, and that what is stored is Django's own PBKDF2. Networks take turns, and where the line is full, the network that has
the most in it makes room: who fills it from one network keeps nobody of another out. Beyond that `Busy` is raised, and nothing was
looked at. Does not tell a stranger with many networks from many people.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from typing import NamedTuple

from django.contrib.auth.hashers import PBKDF2PasswordHasher

THREADS = max(1, (os.cpu_count() or 2) // 2)
MOST_WAITING = 8
MOST_WAITING_KNOWN = 24
WAIT_SECONDS = 15.0
NICENESS = 10


class Asker(NamedTuple):
    """Who has a password looked at: from which network, and whether the browser has signed in before. That one finds room in the
    line when strangers have filled theirs."""

    network: str = ""
    is_known: bool = False


asker: ContextVar[Asker] = ContextVar("kennel_asker", default=Asker())  # noqa: B039 (it cannot be changed)


class Busy(Exception):
    """Too many passwords are being looked at; nothing was decided."""


class PooledHasher(PBKDF2PasswordHasher):
    """Django's PBKDF2, in threads of its own."""

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        hashed = super().encode
        return _pool.run(lambda: hashed(password, salt, iterations))


class HashingThreads:
    """A few threads, and a line of bounded length before them, in which networks take turns."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hash", initializer=_step_back)
        self._lock = threading.Lock()
        self._lines: OrderedDict[str, deque[tuple[Future[str], Callable[[], str]]]] = OrderedDict()
        self.waiting = 0

    def run(self, work: Callable[[], str]) -> str:
        """The result of the work; raises `Busy` if there is no room in the line, or it is not done in time."""
        network, is_known = asker.get()
        done: Future[str] = Future()
        with self._lock:
            if self.waiting >= (MOST_WAITING_KNOWN if is_known else MOST_WAITING) + THREADS:
                self._make_room(network)
            self._lines.setdefault(network, deque()).append((done, work))
            self.waiting += 1
        self._threads.submit(self._next)
        try:
            return done.result(WAIT_SECONDS)
        except (TimeoutError, CancelledError) as error:
            done.cancel()
            raise Busy from error
        finally:
            with self._lock:
                self.waiting -= 1

    def _make_room(self, network: str) -> None:
        """Send away the last of the longest line, if that is longer than this network's would be; else raise `Busy`."""
        longest = max(self._lines.values(), key=len, default=deque())
        if len(longest) <= len(self._lines.get(network, ())) + 1:
            raise Busy
        longest.pop()[0].cancel()

    def _next(self) -> None:
        """Look at one password: of each network in turn."""
        with self._lock:
            if not self._lines:
                return  # it was sent away
            network, line = self._lines.popitem(last=False)
            done, work = line.popleft()
            if line:
                self._lines[network] = line
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)


def _step_back() -> None:
    """On Linux each thread has a niceness of its own; elsewhere this would be the whole process's."""
    if hasattr(threading, "get_native_id") and os.path.isdir("/proc/self/task"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


_pool = HashingThreads()
