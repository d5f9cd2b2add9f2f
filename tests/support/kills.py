"""Processes that die at a chosen request, as `kill -9` would end them."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from coordinator.meter import Meter, Request


class DeadlyMeter(Meter):
    """Ends the process with SIGKILL when its n-th request is about to be sent: the one before it was carried out."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._left = number

    def count(self, request: Request, *, bytes_sent: int = 0) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        super().count(request, bytes_sent=bytes_sent)


def in_child(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run a coroutine in a forked process; its return code, -9 if it was killed. Call it outside of any event loop."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asyncio.run(work())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)
