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
    GRANTED,
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
from coordinator.sequences.pacing import Pace
from coordinator.sequences.store import Ledger, OptimisticSyncStore

RANGES_A_WRITE = 12
"""The most ranges that one write takes for a writer that wants many at once."""
MOVE_AT = 3000
"""Bytes of metadata from which one writer takes the duty to move the grants on the blob to the ledger."""
METADATA_LIMIT = 7000
"""Bytes of metadata (the service allows 8 KiB) beyond which a writer moves grants before it writes."""
MOST_STAND_BYS = 20
"""How often a writer waits for another to make room before it does so itself; at most for half its deadline."""
KEPT_WITHOUT_LEDGER = 36
SETTLE_AFTER = 48
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
        self._doubtful: list[tuple[Grant, ...]] = []
        self._moved: dict[str, Grant] = {}
        self._moved_jumps: set[Jump] = set()
        self._duty = ""
        self._open: dict[str, Grant] = {}
        self._settled: dict[str, Grant] = {}
        self._told: dict[str, Grant] = {}
        self._last_settled = clock.monotonic()
        self.conflicts = 0
        self.grants = 0

    def reserve(self, count: int) -> Grant:
        """Up to `count` numbers that nobody else will get; fewer at the upper bound or when returned ones are reused.

        Raises `SequenceContended`, `SequenceCorrupt`, `SequenceMissing`, `SequenceLowered`, `SequenceExhausted`, or the
        `StorageError` that lasted until the deadline.
        """
        return self.reserve_ranges(count, 1)[0]

    def reserve_ranges(self, count: int, ranges: int) -> tuple[Grant, ...]:
        """`reserve` for a writer that wants several ranges at once: one write takes up to `ranges` of them, at most 12."""
        started = self._clock.monotonic()
        self._nonce = self._nonce or self._nonces()
        counter = None if self._doubtful or not self._pace.trusts_last_write else self._known
        self._wait(self._pace.before_try(started), started)
        lost = failures = stood_by = 0
        while True:
            try:
                if counter is None:
                    counter = self._read()
                    if won := self._resolve(counter):
                        return self._won(won, counter)
                if not self._checked and not self._agrees_with_ledger(counter):
                    counter = None
                    continue
                if counter.tails:
                    if tail := self._take_back():
                        return self._won((tail,), None)
                    counter = replace(counter, tails=False)
                counter = replace(counter, window=self._pace.window_after(counter.window, lost))
                waited = self._clock.monotonic() - started
                patient = stood_by < MOST_STAND_BYS and waited < self._config.deadline_seconds / 2
                plan = self._plan(counter, count, min(ranges, RANGES_A_WRITE), patient=patient)
                if plan is None:
                    stood_by += 1
                    counter = None
                    self._check_patience(started, lost)
                    self._wait(self._pace.stand_by(), started)
                    continue
                grants, wanted = plan
                sent = self._clock.monotonic()
                etag = self._write(counter, grants, wanted)
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
                self._pace.won(counter.window, sent, self._clock.monotonic())
                return self._won(grants, replace(wanted, etag=etag))
            lost += 1
            self.conflicts += 1
            self._check_patience(started, lost)
            self._wait(self._pace.lost(0.0 if self._moved_of(counter) else counter.window), started)
            counter = None

    def used(self, grant: Grant) -> None:
        """Every number of the grant was issued. Noted with the next write if the grant is on the counter still, else with
        the next batch for the ledger."""
        self._open.pop(grant.nonce, None)
        if self._ledger is not None:
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
        if all_of_it or on_duty or wiped:
            self._move(counter)
        elif overdue:
            self._move(None)
        if on_duty:
            self._pace.may_come()  # others wait for the room that the next write makes

    def _move(self, counter: Counter | None) -> None:
        assert self._ledger is not None
        on_blob = counter.grants if counter else ()
        jumps = counter.jumps if counter else ()
        batch = {grant.nonce: grant for grant in on_blob if not self._is_moved(grant)}
        batch |= self._open | self._settled
        if batch or jumps:
            self._ledger.record(list(batch.values()), jumps)
        self._moved |= batch
        self._moved_jumps |= set(jumps)
        self._last_settled = self._clock.monotonic()
        self._duty = ""
        self._settled.clear()

    def _moved_of(self, counter: Counter) -> set[str]:
        return {grant.nonce for grant in counter.grants if self._is_moved(grant)}

    def _is_moved(self, grant: Grant) -> bool:
        """Whether the ledger knows all that this grant on the counter says."""
        row = self._moved.get(grant.nonce)
        return row is not None and (grant.outcome == GRANTED or row.outcome != GRANTED)

    def _follow(self, counter: Counter) -> None:
        """What the counter says of our used grants need not be said again, as whoever moves them tells the ledger. One
        that is gone without having been moved, since somebody wiped the metadata, we tell the ledger ourselves."""
        noted = {grant.nonce: grant for grant in counter.grants}
        self._moved = {nonce: row for nonce, row in self._moved.items() if nonce in noted}
        for nonce, grant in list(self._told.items()):
            moved = nonce not in noted and counter.since is not None and counter.since <= grant.first
            if moved or nonce not in noted or noted[nonce].outcome != USED:
                del self._told[nonce]
                if not moved:
                    self._settled[nonce] = grant
        for grant in counter.grants:
            if grant.outcome == USED and (settled := self._settled.pop(grant.nonce, None)):
                self._told[grant.nonce] = settled

    def _plan(
        self, counter: Counter, count: int, ranges: int, *, patient: bool
    ) -> tuple[tuple[Grant, ...], Counter] | None:
        """What to write. None if there is no room for it, but a writer on duty who is about to make some."""
        config = self._config
        counter = note_jump(counter, known_next=max(self._high_water, config.start))
        counter = replace(
            counter.knowing(self._settled),
            start=config.start if counter.start is None else counter.start,
            since=counter.value if counter.since is None else counter.since,
            jumps=tuple(jump for jump in counter.jumps if jump not in self._moved_jumps),
        )
        grants = counter.granting(
            self.name,
            count=count,
            ranges=ranges,
            step=config.step,
            upper_bound=config.upper_bound,
            owner=self._owner(),
            nonce=self._nonce,
            at=self._clock.time(),
        )
        if self._ledger is None:
            dropped = {old.nonce for old in counter.grants[:-KEPT_WITHOUT_LEDGER]}
            return grants, counter.after(*grants, moved=dropped)
        wanted = counter.after(*grants, moved=self._moved_of(counter))
        size = metadata_bytes(wanted.metadata())
        on_duty = any(kept.nonce == counter.mover for kept in wanted.grants)
        if size > METADATA_LIMIT:
            if patient and on_duty and counter.mover != self._duty:
                return None
            self._move(counter)
            wanted = replace(counter, jumps=()).after(*grants, moved=self._moved_of(counter), mover="")
        elif not on_duty:
            wanted = replace(wanted, mover=self._nonce if size >= MOVE_AT else "")
        return grants, wanted

    def _write(self, counter: Counter, grants: tuple[Grant, ...], wanted: Counter) -> str | None:
        """Try the write; while its answer is out, and if it stays out, the grants are in doubt."""
        self._doubtful.append(grants)
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
        if self._known is not None and counter.etag != self._known.etag:
            self._pace.met()
        self._follow(counter)
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

    def _resolve(self, counter: Counter) -> tuple[Grant, ...] | None:
        """Did a write of ours win whose answer was lost? It did if its nonce is on the blob or in the ledger."""
        on_blob = counter.find(self._nonce)
        for grants in self._doubtful:
            found = on_blob
            if found is None and self._ledger is not None and grants[0].last < counter.value:
                found = self._ledger.row(grants[0].key)
            if found is not None and (found.nonce, found.first) == (self._nonce, grants[0].first):
                return grants
        # A write on an older version can no longer win; one on this version still can, and keeps the same nonce.
        return None

    def _won(self, grants: tuple[Grant, ...], counter: Counter | None) -> tuple[Grant, ...]:
        if counter is not None and counter.mover == self._nonce:
            self._duty = self._nonce
        self._nonce, self._doubtful = "", []
        self._open |= {grant.nonce: grant for grant in grants}
        self.grants += len(grants)
        if counter is not None:
            self._known = counter
            self._follow(counter)
            self._high_water = max(self._high_water, counter.value)
        return grants

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
