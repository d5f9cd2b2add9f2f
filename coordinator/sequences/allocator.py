"""Takes ranges from a counter, one conditional write each, and keeps the ledger behind it. Blocking; one thread."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from coordinator.backoff import Backoff
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import (
    NotFound,
    SequenceContended,
    SequenceMissing,
    StorageBusy,
    StorageError,
    StorageUnreachable,
)
from coordinator.sequences.grants import (
    USED,
    Counter,
    Grant,
    Jump,
    Owner,
    SequenceConfig,
    lowered_error,
    metadata_bytes,
    note_jump,
    read_counter,
)
from coordinator.sequences.pacing import Pace, Turn
from coordinator.sequences.store import Ledger, OptimisticSyncStore

MOVE_AT = 48
"""Grants on the blob from which one writer takes the duty to move them to the ledger."""
METADATA_LIMIT = 7000
"""Bytes of metadata (the service allows 8 KiB) beyond which a writer moves grants before it writes."""
SETTLE_AFTER = 16
SETTLE_SECONDS = 30.0


class RangeAllocator:
    """Reserves ranges for one owner. `pause(seconds)` waits and tells whether to give up instead of trying again.

    Guarantees: a grant is returned only after the store confirmed it, or after a read showed that the write whose
    answer was lost is the one that won. Every grant is attributed in the same write. Not thread-safe.
    """

    def __init__(
        self,
        name: str,
        store: OptimisticSyncStore,
        ledger: Ledger | None,
        config: SequenceConfig,
        *,
        owner: Callable[[], Owner],
        clock: Clock = SYSTEM_CLOCK,
        pause: Callable[[float], bool] | None = None,
        nonces: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self.name, self._store, self._ledger, self._config = name, store, ledger, config
        self._owner, self._clock, self._nonces = owner, clock, nonces
        self._pause = pause or threading.Event().wait
        self._transient = Backoff(
            base_seconds=0.05, cap_seconds=2.0, deadline_seconds=config.deadline_seconds
        )
        self._pace = Pace()
        self._known: Counter | None = None
        self._high_water = 0
        self._checked = False
        self._nonce = ""
        self._doubtful: list[Grant] = []
        self._moved: set[str] = set()
        self._moved_jumps: set[Jump] = set()
        self._duty = ""
        self._open: dict[str, Grant] = {}
        self._settled: dict[str, Grant] = {}
        self._last_settled = clock.monotonic()
        self.conflicts = 0
        self.grants = 0

    def reserve(self, count: int, *, further: int = 0) -> Grant:
        """Up to `count` numbers that nobody else will get; fewer at the upper bound or when returned ones are reused.

        `further` tells how many more ranges are wanted right after this one. Raises `SequenceContended`,
        `SequenceCorrupt`, `SequenceMissing`, `SequenceLowered`, `SequenceExhausted`, or the `StorageError` that lasted
        until the deadline.
        """
        started = self._clock.monotonic()
        self._nonce = self._nonce or self._nonces()
        counter = self._known if not self._doubtful and self._pace.trusts_last_write(started) else None
        self._wait(self._pace.before_try(started), started)
        lost = failures = 0
        stood_by = ""
        while True:
            try:
                if counter is None:
                    counter = self._read()
                    if won := self._resolve(counter):
                        return self._won(won, counter)
                    if (
                        counter.turn.writes_left
                        and counter.etag != stood_by
                        and not self._is_last_write(counter)
                    ):
                        stood_by = counter.etag or ""
                        self._check_patience(started, lost)
                        self._wait(self._pace.met_turn(counter.turn), started)
                        counter = None
                        continue
                if not self._checked and not self._agrees_with_ledger(counter):
                    counter = None
                    continue
                if counter.tails:
                    if tail := self._take_back():
                        return self._won(tail, None)
                    counter = replace(counter, tails=False)
                sent = self._clock.monotonic()
                turn = self._pace.announce(further, sent)
                grant, wanted = self._plan(counter, count, turn)
                etag = self._write(counter, grant, wanted)
            except (StorageUnreachable, StorageBusy):
                counter = None
                pause = self._transient.delay(failures)
                failures += 1
                if self._clock.monotonic() - started + pause >= self._config.deadline_seconds:
                    raise
                if self._pause(pause):
                    raise
                continue
            if etag is not None:
                self._pace.won(turn, sent, self._clock.monotonic())
                return self._won(grant, replace(wanted, etag=etag))
            counter = None
            lost += 1
            self.conflicts += 1
            self._check_patience(started, lost)
            self._wait(self._pace.lost(), started)

    def used(self, grant: Grant) -> None:
        """Every number of the grant was issued; the ledger is told with the next batch."""
        self._open.pop(grant.nonce, None)
        self._settled[grant.nonce] = grant.settled(USED)

    def give_back(self, rest: Sequence[tuple[Grant, int]]) -> None:
        """Return the numbers after the given one of each grant. Raises `StorageError` if that could not be done."""
        if self._ledger is None:
            return
        self._move(self._known)
        for grant, issued_through in rest:
            self._ledger.give_back(grant, issued_through)
            self._open.pop(grant.nonce, None)
        self._offer_tails()

    def tidy(self, *, all_of_it: bool = False) -> None:
        """Move grants from the blob to the ledger if it is this process's turn, and settle own ones. One request."""
        if self._ledger is None:
            return
        counter = self._known
        on_duty = counter is not None and bool(counter.mover) and counter.mover == self._duty
        wiped = counter is not None and not self._moved_jumps.issuperset(counter.jumps)
        waited = self._clock.monotonic() - self._last_settled
        overdue = self._settled and (len(self._settled) >= SETTLE_AFTER or waited >= SETTLE_SECONDS)
        in_turn = self._pace.is_in_turn(self._clock.monotonic())
        if all_of_it or on_duty or wiped or (overdue and not in_turn):
            self._move(counter)

    def _move(self, counter: Counter | None) -> None:
        assert self._ledger is not None
        on_blob = counter.grants if counter else ()
        jumps = counter.jumps if counter else ()
        batch = {grant.nonce: grant for grant in on_blob if grant.nonce not in self._moved}
        batch |= self._open | self._settled
        if batch or jumps:
            self._ledger.record(list(batch.values()), jumps)
        self._moved |= batch.keys()
        self._moved_jumps |= set(jumps)
        self._last_settled = self._clock.monotonic()
        self._duty = ""
        self._settled.clear()

    def _plan(self, counter: Counter, count: int, turn: Turn) -> tuple[Grant, Counter]:
        config = self._config
        counter = note_jump(counter, known_next=max(self._high_water, config.start))
        counter = replace(
            counter,
            turn=turn,
            start=config.start if counter.start is None else counter.start,
            jumps=tuple(jump for jump in counter.jumps if jump not in self._moved_jumps),
        )
        grant = counter.granting(
            self.name,
            count=count,
            step=config.step,
            upper_bound=config.upper_bound,
            owner=self._owner(),
            nonce=self._nonce,
            at=self._clock.time(),
        )
        if self._ledger is None:
            dropped = {old.nonce for old in counter.grants[: -MOVE_AT + 1]}
            return grant, counter.after(grant, moved=dropped)
        wanted = counter.after(grant, moved=self._moved)
        if not any(kept.nonce == counter.mover for kept in wanted.grants):
            wanted = replace(wanted, mover=self._nonce if len(wanted.grants) >= MOVE_AT else "")
        if metadata_bytes(wanted.metadata()) > METADATA_LIMIT:
            self._move(counter)
            wanted = replace(counter, jumps=()).after(grant, moved=self._moved, mover="")
        return grant, wanted

    def _write(self, counter: Counter, grant: Grant, wanted: Counter) -> str | None:
        """Try the write; while its answer is out, and if it stays out, the grant is in doubt."""
        self._doubtful.append(grant)
        try:
            etag = self._store.try_optimistic_write(
                wanted.text(), etag=counter.etag, metadata=wanted.metadata()
            )
        except StorageError as error:
            if not error.maybe_done:
                self._doubtful.pop()
            raise
        if etag is None:
            self._doubtful.pop()
        return etag

    def _read(self) -> Counter:
        try:
            snapshot = self._store.get_data()
        except NotFound as error:
            if self._high_water or (self._ledger and any(True for _ in self._ledger.rows(limit=1))):
                raise SequenceMissing(
                    f"sequence {self.name}: the counter is gone although numbers below "
                    f"{self._high_water or 'some number'} were granted; numbering does not restart by itself. "
                    f"`python -m coordinator ids repair {self.name}` shows how to put it back",
                    sequence=self.name,
                ) from error
            return Counter(self._config.start, None)
        counter = read_counter(self.name, snapshot.data, snapshot.etag, snapshot.metadata)
        if counter.value < self._high_water:
            raise lowered_error(self.name, counter.value, self._high_water, "this process's own grants")
        self._moved &= {grant.nonce for grant in counter.grants}
        return counter

    def _agrees_with_ledger(self, counter: Counter) -> bool:
        """Once, before the first grant: no ledger row may lie at or above the counter. False: look again."""
        if self._ledger is not None and counter.etag is not None:
            row = next(self._ledger.rows(at_or_after=counter.value, limit=1), None)
            if row is not None:
                if self._store.get_data().etag != counter.etag:
                    return False  # the row may belong to a grant made since the counter was read
                raise lowered_error(self.name, counter.value, row.last + 1, f"the ledger (grant {row.key})")
        self._checked = True
        return True

    def _resolve(self, counter: Counter) -> Grant | None:
        """Did a write of ours win whose answer was lost? It did if its nonce is on the blob or in the ledger."""
        if found := counter.find(self._nonce):
            return found
        if self._ledger is not None:
            for grant in self._doubtful:
                row = self._ledger.row(grant.key) if grant.last < counter.value else None
                if row is not None and row.nonce == self._nonce:
                    return row
        # A write on an older version can no longer win; one on this version still can, and keeps the same nonce.
        return None

    def _won(self, grant: Grant, counter: Counter | None) -> Grant:
        if counter is not None and counter.mover == self._nonce:
            self._duty = self._nonce
        self._nonce, self._doubtful = "", []
        self._open[grant.nonce] = grant
        self.grants += 1
        if counter is not None:
            self._known = counter
            self._high_water = max(self._high_water, counter.value)
        return grant

    def _take_back(self) -> Grant | None:
        if self._ledger is None or not self._config.return_tails:
            return None
        return self._ledger.take_back(self._owner(), self._nonce, self._clock.time())

    def _offer_tails(self) -> None:
        """Leave a hint on the blob that numbers were returned. Only a hint: the ledger has the truth."""
        for attempt in range(self._config.max_retries):
            counter = self._read()
            if counter.etag is None:
                return
            # Written even if the hint is there already: whoever saw it and found nothing is about to take it away.
            wanted = replace(note_jump(counter, known_next=self._high_water), tails=True)
            with suppress(StorageBusy, StorageUnreachable):
                if self._store.try_optimistic_write(
                    wanted.text(), etag=counter.etag, metadata=wanted.metadata()
                ):
                    return
            self._pause(self._transient.delay(attempt))

    def _is_last_write(self, counter: Counter) -> bool:
        return self._known is not None and counter.etag == self._known.etag

    def _check_patience(self, started: float, lost: int) -> None:
        elapsed = self._clock.monotonic() - started
        if lost > self._config.max_retries or elapsed >= self._config.deadline_seconds:
            raise SequenceContended(
                f"sequence {self.name}: other writers were first {lost} times in {elapsed:.1f} s; take larger "
                "ranges, or raise max_retries",
                sequence=self.name,
                tries=lost,
                elapsed_seconds=elapsed,
            )

    def _wait(self, seconds: float, started: float) -> None:
        left = self._config.deadline_seconds - (self._clock.monotonic() - started)
        if seconds > 0 and left > 0:
            self._pause(min(seconds, left))
