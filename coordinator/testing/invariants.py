"""Checking an invariant of a listener whenever its event loop has run what was ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def checked(invariant: Callable[[], object]) -> Iterator[None]:
    """Call `invariant` after every turn of the running event loop, that is between any two awaits.

    Raises what it raised first, when the block ends. For asyncio's own event loops. A listener's invariant is
    ``listener.leases.check``: nothing that was taken is forgotten.
    """
    loop: Any = asyncio.get_running_loop()
    turn, raised = loop._run_once, list[BaseException]()

    def turn_and_check() -> None:
        turn()
        if not raised:
            try:
                invariant()
            except Exception as error:
                raised.append(error)

    loop._run_once = turn_and_check
    try:
        yield
    finally:
        loop._run_once = turn
    if raised:
        raise raised[0]
