"""Many workers on few processes: real sockets and the real protocol, with nothing behind them that takes the machine's time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

from coordinator.realtime import protocol
from coordinator.realtime.protocol import GateStatus, Receipt, WorkerState
from tests.support.dashboard import BareWorker, Dashboard, until

AT_ONCE = 50
CROWDED = 300


class Waiting(BareWorker):
    """Waits at a gate and passes it at the first hint of it: the receipt goes out at once. `told_at` is by topic."""

    gate = "start-order-processing"
    arrived_at = 0.0

    def __init__(self, dashboard: Dashboard, name: str) -> None:
        super().__init__(dashboard, name)
        self.told_at: dict[str, float] = {}
        self.epoch = self.passed_epoch = 0

    def waits(self) -> None:
        """From the next heartbeat on it waits (again)."""
        self.arrived_at = 0.0
        self.state = WorkerState(gates=(GateStatus(self.gate, "closed", waiting=True),))

    async def _listen(self) -> None:
        assert self._socket is not None
        async for frame in self._socket:
            message = protocol.decode_from_hub(frame)
            self.heard.append(message)
            if isinstance(message, protocol.Hinted):
                self.told_at[message.hint.topic] = time.time()
                if message.hint.topic == f"gate:{self.gate}":
                    self.epoch = message.hint.epoch
                    await self.passes(message.hint.epoch)

    async def passes(self, epoch: int) -> None:
        """Through the gate, if it waited."""
        if self.arrived_at:
            return
        self.arrived_at = time.time()
        self.passed_epoch = epoch
        self.state = WorkerState(gates=(GateStatus(self.gate, "open", epoch, passed_epoch=epoch),))
        await self.send(Receipt(self.gate, epoch, "push", 0.0, self.arrived_at))


async def all_wait_again(workers: Sequence[Waiting]) -> None:
    """After a leash: once each has heard of it, for it would take that hint for its release."""
    await until(lambda: all(worker.epoch > worker.passed_epoch for worker in workers))
    for worker in workers:
        worker.waits()


@contextlib.asynccontextmanager
async def crowd(dashboards: Sequence[Dashboard], count: int) -> AsyncIterator[list[Waiting]]:
    """That many workers, spread evenly over the dashboards, all waiting at the gate and sending heartbeats."""
    workers = [Waiting(dashboards[n % len(dashboards)], f"worker-{n:04}") for n in range(count)]
    async with contextlib.AsyncExitStack() as stack:
        for start in range(0, count, AT_ONCE):
            part = workers[start : start + AT_ONCE]
            for worker in part:
                worker.waits()
            await asyncio.gather(*(stack.enter_async_context(worker) for worker in part))
        for worker in workers:
            worker.beat(2.0 if count >= CROWDED else 1.0)
            await asyncio.sleep(0.001)  # spread over time, as those of real workers are
        yield workers


def quantile_ms(seconds: Sequence[float], share: float) -> float:
    """In milliseconds, to a tenth."""
    ordered = sorted(seconds)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 1)
