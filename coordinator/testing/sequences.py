"""Counters and ledgers in memory, for users' own unit tests: the same promises as in a storage account."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coordinator.errors import NotFound, StorageUnreachable
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.grants import (
    FREE,
    GRANTED,
    RETURNED,
    ExternalAdvance,
    Grant,
    Owner,
    SequenceConfig,
    row_key,
    unused_end_of,
)
from coordinator.sequences.store import LedgerState, Snapshot


class MemoryStore:
    """`OptimisticSyncStore` in this process. Share one between generators to test them together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions = itertools.count(1)
        self._snapshot: Snapshot | None = None
        self._failures: deque[bool] = deque()

    def get_data(self) -> Snapshot:
        with self._lock:
            if self._snapshot is None:
                raise NotFound(
                    "the counter does not exist", resource="counter", status=404, code="BlobNotFound"
                )
            return self._snapshot

    def try_optimistic_write(self, data: str, *, etag: str | None, metadata: Mapping[str, str]) -> str | None:
        with self._lock:
            fails = bool(self._failures)
            carried_out = self._failures.popleft() if fails else True
            current = self._snapshot.etag if self._snapshot else None
            if carried_out and current == etag:
                self._snapshot = Snapshot(data, f'"{next(self._versions)}"', dict(metadata))
            if fails:
                raise StorageUnreachable(
                    "no answer came (as the test asked)", resource="counter", maybe_done=True
                )
            return self._snapshot.etag if self._snapshot and current == etag else None

    def lose_answer(self, *, carried_out: bool) -> None:
        """The next write gets no answer, whether it is carried out or not. May be called several times ahead."""
        with self._lock:
            self._failures.append(carried_out)

    def overwrite(self, data: str, metadata: Mapping[str, str] | None = None) -> None:
        """What an administrator or another program does: write whatever is there."""
        with self._lock:
            self._snapshot = Snapshot(data, f'"{next(self._versions)}"', dict(metadata or {}))

    def delete(self) -> None:
        with self._lock:
            self._snapshot = None


class MemoryLedger:
    """`Ledger` in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, Grant] = {}
        self._keys: list[str] = []
        self._heads: dict[str, int] = {}
        self._entries = 0
        self._advances: dict[str, ExternalAdvance] = {}

    def enter(
        self,
        grants: Sequence[Grant],
        *,
        after: str | LedgerState,
        is_newest: bool = True,
        others: Sequence[Grant] = (),
        advances: Sequence[ExternalAdvance] = (),
    ) -> bool:
        newest = grants[-1]
        with self._lock:
            known = self._versions()
            if (after not in self._heads) if isinstance(after, str) else dict(after.versions) != known:
                return False
            if any(grant.key in self._rows for grant in grants):
                return False
            for grant in grants:
                self._put(grant)
            self._entries += 1
            if is_newest:
                self._heads = {newest.nonce: newest.last + 1}
        self.record(others, advances)
        return True

    def state(self, *, at_or_after: int, limit: int) -> LedgerState:
        with self._lock:
            versions = self._versions()
        return LedgerState(list(self.rows(at_or_after=at_or_after, limit=limit)), self.head(), versions)

    def _versions(self) -> dict[str, str]:
        return {"": str(self._entries)} | dict.fromkeys(self._heads, "")

    def head(self) -> int:
        return max(self._heads.values(), default=0)

    def record(self, grants: Sequence[Grant], advances: Sequence[ExternalAdvance] = ()) -> None:
        with self._lock:
            for grant in grants:
                known = self._rows.get(grant.key)
                if known is not None and grant.outcome == GRANTED:
                    grant = replace(grant, outcome=known.outcome, issued_through=known.issued_through)
                self._put(grant)
            self._advances |= {row_key(advance.last): advance for advance in advances}

    def _put(self, grant: Grant) -> None:
        if grant.key not in self._rows:
            insort(self._keys, grant.key)
        self._rows[grant.key] = grant

    def row(self, key: str) -> Grant | None:
        with self._lock:
            return self._rows.get(key)

    def rows(
        self, *, at_or_after: int = 0, below: int | None = None, owner: str = "", limit: int | None = None
    ) -> Iterator[Grant]:
        low, high = row_key(at_or_after), "~" if below is None else row_key(below)
        given = 0
        while limit is None or given < limit:
            with self._lock:
                place = bisect_left(self._keys, low)
                key = self._keys[place] if place < len(self._keys) else high
                row = self._rows.get(key)
            if key >= high or row is None:
                return
            low = key + "\0"
            if owner in ("", row.owner.id):
                given += 1
                yield row

    def advances(self, *, at_or_after: int = 0) -> Iterator[ExternalAdvance]:
        with self._lock:
            return iter(
                [advance for _, advance in sorted(self._advances.items()) if advance.last >= at_or_after]
            )

    def give_back(self, grant: Grant, issued_through: int, others: Sequence[Grant] = ()) -> str:
        self.record(others)
        unused_end = unused_end_of(grant, issued_through)
        with self._lock:
            if unused_end.key not in self._rows:
                self._put(grant.settled(RETURNED, issued_through))
                self._put(unused_end)
        return unused_end.key

    def take(self, key: str, owner: Owner, nonce: str, at: float) -> Grant | None:
        with self._lock:
            unused_end = self._rows.get(key)
            if unused_end is None or unused_end.outcome != FREE:
                return unused_end if unused_end is not None and unused_end.nonce == nonce else None
            self._rows[key] = Grant(
                unused_end.first, unused_end.last, owner, nonce, at, unused_end.step, unused_end.generation
            )
            return self._rows[key]

    def forget(self, *keys: str, head: bool = False) -> None:
        """What an administrator does: delete rows (without keys: all), or the head."""
        with self._lock:
            for key in keys or (() if head else tuple(self._rows)):
                self._rows.pop(key, None)
            self._keys = sorted(self._rows)
            if head:
                self._heads = {}


def memory_generator(
    name: str = "orders",
    *,
    store: MemoryStore | None = None,
    ledger: MemoryLedger | None = None,
    **options: Any,
) -> UniqueIdGenerator:
    """A `UniqueIdGenerator` without a storage account; `options` are those of `SequenceConfig`."""
    return UniqueIdGenerator(
        name, store or MemoryStore(), ledger or MemoryLedger(), config=SequenceConfig(**options)
    )
