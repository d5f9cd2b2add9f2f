"""Telling sleeping listeners of work that nobody announced: a producer without a hub stores messages silently."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coordinator.realtime.protocol import ListenerStatus
from dashboard.live.sample import Depth

AGAIN_SECONDS = 10.0
UNKNOWN_SECONDS = 60.0
UNKNOWN_AT_ONCE = 1
"""Each hint goes to every worker: of hundreds of queues that nobody is known to listen to, one at each look."""


class QueueNotifier:
    """Which queues need a hint now. No I/O.

    A queue whose front message is visible although everybody who listens to it is idle gets one, at most every 10 s. One
    that no known listener names gets one a minute, and of many such queues one at each look, in turn: it may be the
    second queue or the shard of a listener that names another. Messages that are invisible (delayed, in hand) wake
    nobody, nor does a queue held by a gate or a pause.
    """

    def __init__(self) -> None:
        self._described: dict[str, float] = {}

    def due(self, queues: Iterable[Depth], listeners: Iterable[ListenerStatus], now: float) -> list[str]:
        """Names of queues to announce, noted as announced at `now` (monotonic seconds)."""
        statuses: dict[str, list[ListenerStatus]] = {}
        for listener in listeners:
            statuses.setdefault(listener.queue, []).append(listener)
        waiting = {queue.name for queue in queues if queue.depth and queue.oldest_at is not None}
        self._described = {name: at for name, at in self._described.items() if name in waiting}
        due = [name for name in sorted(waiting) if self._is_due(name, statuses, now)]
        unknown = sorted(
            (name for name in due if name not in statuses), key=lambda name: self._described.get(name, 0.0)
        )
        passed_over = set(unknown[UNKNOWN_AT_ONCE:])
        found = [name for name in due if name not in passed_over]
        self._described.update(dict.fromkeys(found, now))
        return found

    def _is_due(self, name: str, statuses: Mapping[str, list[ListenerStatus]], now: float) -> bool:
        reported = statuses.get(name, [])
        if any(status.state != "idle" or status.in_hand for status in reported):
            return False
        pause = AGAIN_SECONDS if reported else UNKNOWN_SECONDS
        return now - self._described.get(name, float("-inf")) >= pause
