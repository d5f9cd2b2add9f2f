"""Notifications between processes: fast, lossy, never the only way to learn of a change.

A notification says "look again", and the receiver reads storage; that of a gate brings the state that storage confirmed, and
the receiver reads storage later, to compare. A bus delivers each hint to every subscriber that is
connected at that moment, at most once, in no promised order.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

import msgspec

from coordinator.bounds import Count, Label, Moment, Stored, Text

RESYNC = "resync"


class Notification(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """`topic` is ``gate:NAME``, ``queue:NAME``, ``rule:NAME``, ``election:NAME`` (its lease is free, or was taken),
    ``lease:NAME`` (it was renewed) or `RESYNC`; the rest only explains.

    `request_id` is that of the dashboard's request that caused it, as in its audit; "" if none did. `due`: there is nothing
    to see before that moment (0: now). `state` is a gate as storage confirmed it to its writer, in the stored form; "" asks
    the receiver to read it.
    """

    topic: Label
    epoch: Count = 0
    size: Count = 0
    origin: Text = ""
    request_id: Text = ""
    due: Moment = 0.0
    state: Stored = ""


Hint = Notification  # its earlier name
Callback = Callable[[Notification], None]


class Bus(Protocol):
    """One-way multicast. Callbacks may run on any thread and must return at once.

    Every subscriber also gets a hint with topic `RESYNC` whenever the bus connects or disconnects: hints may have been
    lost, and `is_connected` has changed.
    """

    @property
    def is_connected(self) -> bool:
        """True while hints of other processes can be expected to arrive."""

    def subscribe(self, topic: str, callback: Callback) -> Callable[[], None]:
        """Call back for each hint of that topic; returns the function that ends it."""

    async def publish(self, hint: Notification) -> None:
        """Send to all, this process included. Never raises for want of a connection: hints may be lost."""


def reaches_others(bus: Bus) -> bool:
    """Whether its hints are for other processes, too; connected or not."""
    return type(bus) is not LocalBus


class LocalBus:
    """A bus within this process: what a worker without a hub uses, and the local half of every other bus."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: defaultdict[str, list[Callback]] = defaultdict(list)

    @property
    def is_connected(self) -> bool:
        return False

    @property
    def safety_poll_seconds(self) -> float:
        """How long receivers may go without a look while it is connected, if that is longer than they would by themselves."""
        return 0.0

    def subscribe(self, topic: str, callback: Callback) -> Callable[[], None]:
        with self._lock:
            self._callbacks[topic].append(callback)

        def unsubscribe() -> None:
            with self._lock:
                if callback in self._callbacks.get(topic, ()):
                    self._callbacks[topic].remove(callback)
                    if not self._callbacks[topic]:
                        del self._callbacks[topic]

        return unsubscribe

    @property
    def topics(self) -> frozenset[str]:
        """What somebody here subscribes to."""
        with self._lock:
            return frozenset(self._callbacks)

    async def publish(self, hint: Notification) -> None:
        self.deliver(hint)

    def deliver(self, hint: Notification) -> None:
        """Hand a hint to the subscribers of its topic (all subscribers for `RESYNC`)."""
        with self._lock:
            if hint.topic == RESYNC:
                callbacks = [callback for group in self._callbacks.values() for callback in group]
            else:
                callbacks = list(self._callbacks.get(hint.topic, ()))
        for callback in callbacks:
            callback(hint)
