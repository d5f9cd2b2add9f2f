"""Calling what users gave to be notified."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")

_log = logging.getLogger("coordinator.leadership")


def notify(name: str, callback: Callable[P, object] | None, *args: P.args, **kwargs: P.kwargs) -> None:
    """Call it, if there is one. Its errors are logged: an observer must not end a term, nor keep its lease taken."""
    if callback is None:
        return
    try:
        callback(*args, **kwargs)
    except Exception:
        _log.exception("%s failed", name)
