"""Gates and flags in memory, for unit tests."""

from __future__ import annotations

import asyncio
import itertools

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import PreconditionFailed
from coordinator.gates.gate import Answer
from coordinator.gates.state import GateState


class MemoryGateStore:
    """The `GateStore` of one gate, shared by every `Gate` that is given it.

    `before_read` and `before_write` are called first and may raise or wait; `after_write` is called once the change
    is stored, and may raise to lose the answer. `reads` and `writes` count what was asked.
    """

    def __init__(self, name: str = "test-gate", *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.name = name
        self.state: GateState | None = None
        self.reads = 0
        self.writes = 0
        self._clock = clock
        self._versions = itertools.count(1)
        self._etag = ""

    async def before_read(self) -> None: ...

    async def before_write(self) -> None: ...

    async def after_read(self) -> None: ...

    async def after_write(self) -> None: ...

    async def read(self, etag: str) -> Answer:
        self.reads += 1
        await self.before_read()
        await asyncio.sleep(0)
        date = float(int(self._clock.time()))
        if self.state is None:
            answer = Answer(GateState(name=self.name), "", date)
        elif etag == self._etag:
            answer = Answer(None, etag, date)
        else:
            answer = Answer(self.state, self._etag, date)
        await self.after_read()
        return answer

    async def write(self, state: GateState, etag: str) -> str:
        self.writes += 1
        await self.before_write()
        await asyncio.sleep(0)
        if etag != self._etag:
            raise PreconditionFailed(
                f"change the gate {self.name}: somebody wrote first", resource=self.name, status=412
            )
        self.state, self._etag = state, f'"{next(self._versions)}"'
        stored = self._etag
        await self.after_write()
        return stored

    def remove(self) -> None:
        """As if somebody had deleted the blob."""
        self.state, self._etag = None, ""


class MemoryFlag:
    """The `GlobalFlag` of one process."""

    def __init__(self) -> None:
        self._set = False

    async def get_flag(self) -> bool:
        return self._set

    async def set_flag(self, value: bool) -> None:
        self._set = value
