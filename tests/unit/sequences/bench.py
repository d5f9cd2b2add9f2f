"""A counter in memory with as many writers as a test wants."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from coordinator.sequences.allocator import RangeAllocator
from coordinator.sequences.grants import Grant, Owner, SequenceConfig
from coordinator.sequences.ledger import LedgerReader
from coordinator.testing.clock import ManualClock
from coordinator.testing.sequences import MemoryLedger, MemoryStore


class Bench:
    """One counter, and as many writers as a test wants; time passes only in their pauses."""

    def __init__(self) -> None:
        self.store, self.ledger, self.clock = MemoryStore(), MemoryLedger(), ManualClock()
        self.meanwhile: list[Callable[[], object]] = []
        self._nonces = itertools.count()

    def writer(self, name: str, **options: object) -> RangeAllocator:
        config = SequenceConfig(**{"range_size": 10, "deadline_seconds": 5.0} | options)  # type: ignore[arg-type]
        return RangeAllocator(
            "orders",
            self.store,
            self.ledger,
            config,
            owner=lambda: Owner(name),
            clock=self.clock,
            pause=self.pause,
            sleep=self.pause,
            nonces=lambda: f"{name}-{next(self._nonces)}",
        )

    def pause(self, seconds: float) -> bool:
        """What the writers do when they wait; in each pause, the next of `meanwhile` happens."""
        self.clock._now += seconds
        acts, self.meanwhile = self.meanwhile, []
        if acts:
            acts.pop(0)()
        self.meanwhile = acts
        return False

    def book(self) -> LedgerReader:
        return LedgerReader("orders", self.store, self.ledger)


def span(grant: Grant) -> tuple[int, int]:
    return grant.first, grant.last
