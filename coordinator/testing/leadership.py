"""Leases in memory, for unit tests."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.epochs import EpochRecord
from coordinator.errors import LeaseHeld, LeaseNotHeld, NotFound, PreconditionFailed
from coordinator.leadership.lease import LeaderInfo, Successor
from coordinator.leadership.terms import RAN_OUT, TermRecord


class MemoryLeaseStore:
    """The `LeaseStore` of one election, shared by every candidate that is given it.

    `before(operation)` is called first and may raise or wait; `after(operation)` once it is done, and may raise to lose
    the answer. `asked` lists the operations in order.
    """

    def __init__(self, name: str = "test-election", *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.name = name
        self.asked: list[str] = []
        self.holder_id = ""
        self._info = LeaderInfo(name)
        self._nominee: Successor | None = None
        self._exists = False
        self._broken = False
        self._until = 0.0
        self._seconds = 0
        self._clock = clock
        self._versions = itertools.count(1)

    async def before(self, operation: str) -> None: ...

    async def after(self, operation: str) -> None: ...

    async def acquire(self, lease_id: str, lease_seconds: int) -> None:
        await self._begin("acquire", lease_id)
        if self._is_leased and self.holder_id != lease_id:
            raise LeaseHeld(
                f"acquire the lease of {self.name}: another has it", resource=self.name, status=409
            )
        if not self._exists:
            self._exists = True
            self._info = replace(self._info, etag=self._version())
        self.holder_id, self._seconds, self._broken = lease_id, lease_seconds, False
        self._until = self._clock.monotonic() + lease_seconds
        await self.after("acquire")

    async def renew(self, lease_id: str) -> None:
        await self._begin("renew", lease_id)
        self._must_hold(lease_id, expired_will_do=True)
        self._until = self._clock.monotonic() + self._seconds
        await self.after("renew")

    async def change(self, lease_id: str, successor_id: str) -> None:
        await self._begin("change", lease_id)
        if not successor_id:
            raise ValueError("an empty lease id would make the request unconditional")
        self._must_hold(lease_id)
        self.holder_id = successor_id
        await self.after("change")

    async def release(self, lease_id: str, *, etag: str = "") -> None:
        await self._begin("release", lease_id)
        self._must_hold(lease_id, expired_will_do=True)
        self._must_match(etag)
        self.holder_id, self._until = "", 0.0
        await self.after("release")

    async def break_now(self) -> None:
        await self._begin("break")
        self._must_exist()
        if self._is_leased:
            self.holder_id, self._until, self._broken = "", 0.0, True
        await self.after("break")

    async def read(self) -> LeaderInfo:
        await self._begin("read")
        self._must_exist()
        if self._is_leased:
            state = "leased"
        else:
            state = "expired" if self.holder_id else "broken" if self._broken else "available"
        info = replace(self._info, lease_state=state, date=float(int(self._clock.time())))
        await self.after("read")
        return info

    async def write(self, info: LeaderInfo, *, lease_id: str = "", etag: str = "") -> str:
        await self._begin("write")
        self._must_exist()
        if lease_id:
            self._must_hold(lease_id)
        elif self._is_leased:
            raise LeaseHeld(f"write the leader of {self.name}: it is leased", resource=self.name, status=412)
        self._must_match(etag)
        self._info = replace(info, name=self.name, etag=self._version(), lease_state="", date=None)
        written = self._info.etag
        await self.after("write")
        return written

    async def nominate(self, nominee: Successor) -> None:
        await self._begin("nominate")
        self._nominee = nominee

    async def nominee(self) -> Successor | None:
        await self._begin("nominee")
        return self._nominee

    async def _begin(self, operation: str, lease_id: str = "-") -> None:
        if not lease_id:
            raise ValueError("an empty lease id would make the request unconditional")
        self.asked.append(operation)
        await self.before(operation)
        await asyncio.sleep(0)

    @property
    def _is_leased(self) -> bool:
        return bool(self.holder_id) and self._clock.monotonic() < self._until

    def _version(self) -> str:
        return f'"{next(self._versions)}"'

    def _must_exist(self) -> None:
        if not self._exists:
            raise NotFound(f"{self.name}: there is no such blob", resource=self.name, status=404)

    def _must_hold(self, lease_id: str, *, expired_will_do: bool = False) -> None:
        self._must_exist()
        if self.holder_id != lease_id or not (self._is_leased or expired_will_do):
            raise LeaseNotHeld(f"{self.name}: that lease id does not hold it", resource=self.name, status=409)

    def _must_match(self, etag: str) -> None:
        if etag and etag != self._info.etag:
            raise PreconditionFailed(f"{self.name}: somebody wrote first", resource=self.name, status=412)


class MemoryTermLog:
    """The `TermLog` of one process."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], TermRecord] = {}
        self._epochs = MemoryEpochs()

    async def claim(self, record: EpochRecord) -> int:
        return await self._epochs.claim(record)

    async def began(self, record: TermRecord) -> None:
        self.records.setdefault((record.name, record.epoch), record)
        await self.ended(replace(record, epoch=record.epoch - 1, ended=record.since, how=RAN_OUT))

    async def ended(self, record: TermRecord) -> None:
        known = self.records.get((record.name, record.epoch))
        if known is None or record.ended is None:
            return
        if known.ended is None or (known.how == RAN_OUT and record.how != RAN_OUT):
            ended = record.ended if known.ended is None else min(record.ended, known.ended)
            self.records[record.name, record.epoch] = replace(known, ended=ended, how=record.how)

    async def newest(self, name: str, limit: int) -> list[TermRecord]:
        terms = [record for record in self.records.values() if record.name == name]
        return sorted(terms, key=lambda record: -record.epoch)[:limit]


class MemoryRunLog:
    """The `RunLog` of one process."""

    def __init__(self) -> None:
        self._runs: dict[str, tuple[float, str]] = {}
        self._versions = itertools.count(1)

    async def newest(self, job: str) -> tuple[float | None, str]:
        return self._runs.get(job, (None, ""))

    async def claim(self, job: str, scheduled_at: float, version: str, holder: str) -> None:
        if self._runs.get(job, (None, ""))[1] != version:
            raise PreconditionFailed(f"claim a run of {job}: another was claimed", resource=job, status=412)
        self._runs[job] = (scheduled_at, str(next(self._versions)))


class MemoryEpochs:
    """The `EpochLog` of one process."""

    def __init__(self) -> None:
        self.highest: dict[str, tuple[int, str]] = {}

    async def claim(self, record: EpochRecord) -> int:
        epoch, nonce = self.highest.get(record.name, (0, ""))
        if record.epoch > epoch:
            self.highest[record.name] = (record.epoch, record.nonce)
        return 0 if record.epoch > epoch or (record.epoch, record.nonce) == (epoch, nonce) else epoch
