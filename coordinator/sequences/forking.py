"""What a fork must not tear apart: storage requests under way, and numbers that belong to the parent."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

PATIENCE_SECONDS = 2.0


class Forkable(Protocol):
    """`io` is held while a request is under way; `reset` forgets all that belongs to the parent."""

    io: threading.Lock

    def reset(self) -> None: ...


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()
_held: list[threading.Lock] = []


def watch(forkable: Forkable) -> None:
    """Take care of it at every fork of this process, as long as it lives."""
    _watched.add(forkable)


def _before() -> None:
    # A request under way holds locks deep in the HTTP and SDK libraries; a child would find them locked for ever.
    for forkable in list(_watched):
        if forkable.io.acquire(timeout=PATIENCE_SECONDS):
            _held.append(forkable.io)


def _in_parent() -> None:
    while _held:
        _held.pop().release()


def _in_child() -> None:
    _held.clear()
    for forkable in list(_watched):
        forkable.reset()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
