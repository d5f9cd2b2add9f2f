"""What workers say of gates, checked in storage before anybody is told or anything is counted.

A worker's hint or receipt may name an epoch that the dashboard does not know yet: another program has changed the gate, or
the worker is wrong. One read decides for all who said so. Reads are rationed, those of gates that nobody listed most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import KennelError
from coordinator.gates.state import GateState
from coordinator.realtime.protocol import Receipt
from dashboard.hub.announcing import RateLimit

log = logging.getLogger(__name__)

AFTER_SECONDS = 0.02
"""A release that is being written here is known a moment later, without a read."""
AGAIN_SECONDS = 0.5
READS_PER_SECOND, READS_AT_ONCE = 5.0, 20.0
UNLISTED_PER_SECOND, UNLISTED_AT_ONCE = 0.5, 5.0
MOST_GATES, MOST_RECEIPTS = 100, 5_000


class GateNews:
    """Looks at gates that workers say have changed. `known` gives the epoch that is known of a gate, None if it is not
    listed; `confirmed` takes what was read, if that is newer; `count` takes receipts whose epoch is true."""

    def __init__(
        self,
        read: Callable[[str], Awaitable[GateState | None]],
        known: Callable[[str], int | None],
        confirmed: Callable[[GateState], Awaitable[None]],
        count: Callable[[str, Receipt], None],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._read, self._known, self._confirmed, self._count = read, known, confirmed, count
        self._clock = clock
        now = clock.monotonic()
        self._reads = RateLimit(READS_PER_SECOND, READS_AT_ONCE, now)
        self._unlisted = RateLimit(UNLISTED_PER_SECOND, UNLISTED_AT_ONCE, now)
        self._asked: dict[str, int] = {}
        self._looked: dict[str, float] = {}
        self._receipts: dict[tuple[str, str], Receipt] = {}
        self._due = asyncio.Event()
        self.turned: Callable[[], None] = lambda: None
        self.rested: Callable[[], None] = lambda: None

    def hinted(self, gate: str, epoch: int) -> None:
        """Somebody says that the gate has that epoch."""
        known = self._known(gate)
        if epoch <= (known or 0):
            return
        if known is None and gate not in self._asked and len(self._asked) >= MOST_GATES:
            self._forget_one()
        self._asked[gate] = max(epoch, self._asked.get(gate, 0))
        self._due.set()

    def _forget_one(self) -> None:
        """Of many gates that are not listed, the one asked about first."""
        gate = next((gate for gate in self._asked if self._known(gate) is None), None)
        if gate is not None:
            del self._asked[gate]
            self._settle(gate)

    def passed(self, instance: str, receipt: Receipt) -> None:
        """A worker says that it passed: counted at once if the epoch is known, else when storage has confirmed it."""
        if receipt.epoch <= (self._known(receipt.gate) or 0):
            self._count(instance, receipt)
            return
        key = (receipt.gate, instance)
        if key in self._receipts or len(self._receipts) < MOST_RECEIPTS:
            self._receipts[key] = receipt
            self.hinted(receipt.gate, receipt.epoch)

    async def step(self) -> bool:
        """Look at what is due; False if nothing is, or nothing may be read now."""
        now, looked = self._clock.monotonic(), False
        for gate, epoch in list(self._asked.items()):
            known = self._known(gate)
            if known is None or epoch > known:
                if now - self._looked.get(gate, float("-inf")) < AGAIN_SECONDS:
                    continue
                if known is None and not self._unlisted.allows(now):
                    continue
                if not self._reads.allows(now):
                    continue
                self._looked[gate] = now
                await self._look(gate, known or 0)
            self._asked.pop(gate, None)
            self._settle(gate)
            looked = True
        self._looked = {gate: at for gate, at in self._looked.items() if now - at < AGAIN_SECONDS}
        return looked

    async def run(self) -> None:
        """Look, until cancelled."""
        while True:
            if not self._asked:
                self.rested()
                self._due.clear()
                await self._due.wait()
                await self._clock.sleep(AFTER_SECONDS)
            self.turned()
            if not await self.step():
                await self._clock.sleep(0.05)

    async def _look(self, gate: str, known: int) -> None:
        try:
            state = await self._read(gate)
        except (KennelError, TimeoutError) as error:
            # The sampler looks at all gates anyway, and says so if it cannot.
            log.info("The gate %s, of which a worker told, could not be read: %s", gate, error)
            return
        if state is not None and state.epoch > known:
            await self._confirmed(state)

    def _settle(self, gate: str) -> None:
        """Count the receipts of an epoch that is true, and drop the others: their workers send them again."""
        known = self._known(gate) or 0
        for key in [key for key in self._receipts if key[0] == gate]:
            receipt = self._receipts.pop(key)
            if receipt.epoch <= known:
                self._count(key[1], receipt)
            else:
                log.info(
                    "A receipt of gate %s names epoch %d, which storage does not know", gate, receipt.epoch
                )
