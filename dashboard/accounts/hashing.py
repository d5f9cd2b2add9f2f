"""Passwords are hashed in a few threads of low priority: forty strangers who guess must not slow a release.

Guarantees that no more than half of the processors hash at the same time, that whoever waits for one of them waits for a
bounded line, and that what is stored is Django's own PBKDF2. Beyond the line `Busy` is raised, and nothing was looked at.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar

from django.contrib.auth.hashers import PBKDF2PasswordHasher

THREADS = max(1, (os.cpu_count() or 2) // 2)
MOST_WAITING = 8
MOST_WAITING_KNOWN = 24
WAIT_SECONDS = 15.0
NICENESS = 10

known_here: ContextVar[bool] = ContextVar("kennel_known_here", default=False)
"""Whether the browser that asks has signed in before: it finds room in the line when strangers have filled theirs."""


class Busy(Exception):
    """Too many passwords are being looked at; nothing was decided."""


class PooledHasher(PBKDF2PasswordHasher):
    """Django's PBKDF2, in threads of its own."""

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        hashed = super().encode
        return _pool.run(lambda: hashed(password, salt, iterations))


class HashingThreads:
    """A few threads, and a line of bounded length before them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hash", initializer=_step_back)
        self._lock = threading.Lock()
        self.waiting = 0

    def run(self, work: Callable[[], str]) -> str:
        """The result of the work; raises `Busy` if the line is full, or is not done with it in time."""
        with self._lock:
            if self.waiting >= (MOST_WAITING_KNOWN if known_here.get() else MOST_WAITING) + THREADS:
                raise Busy
            self.waiting += 1
        try:
            done = self._threads.submit(work)
            try:
                return done.result(WAIT_SECONDS)
            except TimeoutError as error:
                done.cancel()
                raise Busy from error
        finally:
            with self._lock:
                self.waiting -= 1


def _step_back() -> None:
    """On Linux each thread has a niceness of its own; elsewhere this would be the whole process's."""
    if hasattr(threading, "get_native_id") and os.path.isdir("/proc/self/task"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


_pool = HashingThreads()
