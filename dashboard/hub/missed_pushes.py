"""Pushes that a worker missed: its report names an older epoch of a gate than storage has, long after that was pushed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.gates import state as rules
from coordinator.gates.state import GateState
from coordinator.realtime import protocol
from coordinator.realtime.bus import Hint
from coordinator.realtime.protocol import GateStatus
from dashboard.hub.notifications import WorkerSockets

ARRIVES_SECONDS = 2.0
"""A report of that time may have been sent before the push arrived."""
AGAIN_SECONDS = 10.0
MOST_TIMES = 5
"""A worker that waits gets the state so often; one that does not wait may not look at the gate at all, and gets it once."""


class MissedPushes:
    """Sends a gate's state once more to the worker that does not know it: one comparison for each gate of a report.

    `stored` gives the gate as storage confirmed it lately, None if that is not known. Guarantees that a waiting worker that is
    connected here and reports gets each change within `ARRIVES_SECONDS`, one interval of reports, and the round trip, though
    its push was lost, while this process knows the change. Used on the event loop; the clock is passed in.
    """

    def __init__(
        self,
        stored: Callable[[str], GateState | None],
        sockets: WorkerSockets,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._stored, self._sockets, self._clock = stored, sockets, clock
        self._known: dict[str, tuple[int, float]] = {}
        self._sent: dict[tuple[str, str], tuple[int, int, float]] = {}
        self.sent = 0

    def reported(self, instance: str, gates: Iterable[GateStatus]) -> None:
        """A worker connected here goes by these epochs."""
        for status in gates:
            stored = self._stored(status.name)
            if stored is not None and stored.epoch > status.epoch:
                self._behind(instance, status, stored)

    def forget(self, instance: str, gates: Iterable[GateStatus]) -> None:
        """The worker has left: these are the gates that it named."""
        for status in gates:
            self._sent.pop((instance, status.name), None)

    def _behind(self, instance: str, status: GateStatus, stored: GateState) -> None:
        now = self._clock.monotonic()
        epoch, since = self._known.get(stored.name, (0, now))
        if epoch != stored.epoch:
            since = now
            self._known[stored.name] = (stored.epoch, now)
        key = (instance, stored.name)
        sent_epoch, times, again_at = self._sent.get(key, (0, 0, 0.0))
        if sent_epoch != stored.epoch:
            times, again_at = 0, since + ARRIVES_SECONDS
        if now >= again_at and times < (MOST_TIMES if status.waiting else 1):
            self._sent[key] = (stored.epoch, times + 1, now + AGAIN_SECONDS)
            topic = f"gate:{stored.name}"
            if self._sockets.follows(instance, topic):
                self.sent += 1
                hint = Hint(topic, epoch=stored.epoch, origin=stored.by, state=rules.encode(stored))
                self._sockets.send_one(instance, protocol.Hinted(hint))
