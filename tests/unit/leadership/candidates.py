"""A lease, a clock and candidates, in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from coordinator.errors import (
    StorageUnreachable,
)
from coordinator.leadership.election import Election
from coordinator.leadership.term import Term
from coordinator.realtime.bus import Bus, LocalBus
from coordinator.testing.clock import ManualClock
from coordinator.testing.leadership import MemoryLeaseStore


class Candidates:
    """A lease, a clock, and candidates that note when they begin and end to lead."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryLeaseStore(clock=self.clock)
        self.log: list[tuple[str, str, int]] = []
        self.runs: dict[str, asyncio.Task[object]] = {}

    def election(
        self,
        identity: str,
        *,
        store: MemoryLeaseStore | None = None,
        bus: Bus | None = None,
        **options: object,
    ) -> Election:
        own = bus or LocalBus()
        return Election(
            store or self.store,
            identity=identity,
            bus=lambda: own,
            clock=self.clock,
            rng=random.Random(identity),
            **options,  # type: ignore[arg-type]
        )

    async def lead(self, term: Term) -> None:
        self.log.append(("begin", term.holder, term.epoch))
        try:
            await asyncio.Event().wait()
        finally:
            self.log.append(("end", term.holder, term.epoch))

    def campaign(
        self, election: Election, task: Callable[[Term], Awaitable[object]] | None = None
    ) -> asyncio.Task[object]:
        run = asyncio.ensure_future(election.run(task or self.lead))
        self.runs[election.identity] = run
        return run


def cut_off(store: MemoryLeaseStore, only: str = "") -> None:
    async def unreachable(operation: str) -> None:
        if only in ("", operation):
            raise StorageUnreachable("connection refused")

    store.before = unreachable  # type: ignore[method-assign]
