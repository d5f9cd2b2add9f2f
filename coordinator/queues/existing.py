"""Whether a queue exists, for operators: to them an act on a mistyped name must fail, though a listener may wait for the queue."""

from __future__ import annotations

from typing import Any

from coordinator.errors import NotFound, absent
from coordinator.queues.queue import Queue


async def depth_of(queue: Queue[Any]) -> int:
    """As `Queue.depth`, but raises `NotFound` if there is no such queue. One request."""
    try:
        return await queue.transport.count()
    except NotFound as error:
        raise absent("queue", queue.name) from error
