"""Takes ranges from a counter, one conditional write each, and keeps the ledger with it. Blocking; one thread.

1. Read the counter, unless it is probably as this process left it.
2. A write of ours whose answer was lost has won if its nonce is on the counter or in the ledger.
3. A counter that this process does not know yet, or whose metadata is gone, must not be below the ledger.
4. Returned numbers come first: whoever takes their key off the counter may take them in the ledger.
5. Write the counter, if it is as read: the next number, and in its metadata the grants that may not be in the ledger.
6. Write the grant into the ledger before a number of it is issued, and become its head in the place of the grant before ours:
   only the counter says which that is, and each head is followed once. So nobody can have been granted these numbers.
7. If that is not the head (its writer died or is late, another program wrote, or somebody changed the counter), look at the
   ledger. A grant over ours, or one that the counter has not come to, means that the counter went backwards. Else enter the
   grants before ours that are missing, and ours, if nobody entered any meanwhile.

A process that dies between 5 and 6 issued nothing; its grant stays in the metadata until another process writes it into the ledger.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from coordinator.backoff import Backoff
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import (
    NotFound,
    SequenceContended,
    SequenceLowered,
    SequenceMissing,
    StorageBusy,
    StorageError,
    StorageUnreachable,
)
from coordinator.sequences.grants import (
    GRANTED,
    MOST_RETURNED_RANGES,
    RETURNED,
    USED,
    Counter,
    ExternalAdvance,
    Grant,
    Owner,
    SequenceConfig,
    lowered_error,
    metadata_bytes,
    note_advance,
    overwritten_error,
    read_counter,
)
from coordinator.sequences.pacing import ContentionBackoff
from coordinator.sequences.store import Ledger, LedgerState, OptimisticSyncStore, Snapshot

R = TypeVar("R")

METADATA_LIMIT = 6000
"""Bytes of metadata (the service allows 8 KiB) beyond which a writer looks which grants on it the ledger has."""
KEPT_WITHOUT_LEDGER = 36
SETTLE_AFTER = 16
"""Used ranges that a writer gathers where others write, too; a lone one writes them down with its next grant."""
RECHECK_SECONDS = 60.0
"""What may happen to a counter and its ledger while a process takes no ranges: after so long it checks them as a new one does."""
ENTER_TRIES = 8
ROWS = 900
"""Rows that are read at once: with the heads, no more than the service gives in one answer."""


@dataclass
class _Attempt:
    """One grant on its way: tried under one nonce, perhaps won, not yet in the ledger. `after` is the nonce of the grant
    before it, if the counter named it. `window`: see `ContentionBackoff`."""

    nonce: str
    after: str = ""
    in_doubt: list[Grant] = field(default_factory=list)
    won: Grant | None = None
    window: float = 0.0


class RangeAllocator:
    """Reserves ranges for one owner. `pause(seconds)` waits and returns whether to give up instead of trying again.

    Guarantees: a grant is returned only after the store confirmed it, or after a read showed that the write whose
    answer was lost is the one that won; and only once the ledger has it, and no other grant of its numbers. No
    change of the counter makes it grant a number twice. Not thread-safe.
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
        sleep: Callable[[float], object] = time.sleep,
        nonces: Callable[[], str] = lambda: secrets.token_hex(8),
        pace: ContentionBackoff | None = None,
    ) -> None:
        self.name, self._store, self._ledger, self._config = name, store, ledger, config
        self._owner, self._clock, self._nonces = owner, clock, nonces
        self._pause = pause or threading.Event().wait
        self._sleep = sleep
        self._pace = pace or ContentionBackoff()
        self._attempt: _Attempt | None = None
        self._known: Counter | None = None  # as our last write left it
        self._entered = (
            ""  # the nonce of the newest grant that we know to be in the ledger, with all before it
        )
        self._used: list[Grant] = []
        self._high_water = 0
        self._checked = ledger is None
        self._looked = clock.monotonic()
        self.conflicts = 0
        self.grants = 0

    def reserve(self, count: int) -> Grant:
        """Up to `count` numbers that nobody else will get; fewer at the upper bound or when returned ones are reused.

        Takes the steps that the module's docstring numbers, again after a lost race, for `deadline_seconds` at most.
        Raises `SequenceContended`, `SequenceCorrupt`, `SequenceMissing`, `SequenceLowered`, `SequenceExhausted`, or the
        `StorageError` that lasted until the deadline.
        """
        started = self._clock.monotonic()
        transient = Backoff(
            base_seconds=0.05, cap_seconds=2.0, deadline_seconds=self._config.deadline_seconds
        )
        attempt = self._attempt = self._attempt or _Attempt(self._nonces())
        fresh = bool(attempt.in_doubt) or not self._pace.trusts_last_write
        self._wait(self._pace.before_try(started), started)
        started = (
            self._clock.monotonic()
        )  # it stayed away for the others' sake: that is no time spent on trying
        lost = failures = 0
        while True:
            try:
                if attempt.won is None and not self._try(attempt, count, lost, fresh=fresh):
                    lost += 1
                    self.conflicts += 1
                    self._check_patience(started, lost)
                    self._wait(self._pace.lost(attempt.window, lost), started)
                    fresh = True
                    continue
                return self._enter(attempt)
            except (StorageUnreachable, StorageBusy):
                fresh = True
                pause = transient.delay(failures)
                failures += 1
                waited = self._clock.monotonic() - started
                if waited + pause >= self._config.deadline_seconds or self._pause(pause):
                    raise
            except SequenceLowered:
                self._known, self._checked = None, self._ledger is None
                raise

    def used(self, grant: Grant) -> None:
        """Every number of the grant was issued. The ledger gets to know with one of the next grants, or by `settle`."""
        if self._ledger is not None:
            self._used.append(grant.settled(USED))

    def settle(self) -> bool:
        """Write down which grants were used."""
        if self._ledger is not None and self._used:
            self._ledger.record(self._used)
            self._used = []
        return True

    def give_back(self, rest: Sequence[tuple[Grant, int]], *, seconds: float = 10.0) -> list[Grant]:
        """Return the numbers after the given one of each grant; which grants' numbers are offered to others now. Takes
        no longer than `seconds` and a request; what could not be returned by then is lost. Raises `StorageError`."""
        ends = self._clock.monotonic() + seconds
        ledger = self._ledger
        if ledger is None:
            return []
        keys: dict[str, Grant] = {}
        for grant, through in rest:
            used, self._used = self._used, []
            keys[self._retry_until(ends, partial(ledger.give_back, grant, through, used))] = grant
        self._retry_until(ends, self.settle)
        tries = itertools.count()
        if not keys or not self._retry_until(ends, lambda: self._offer(keys, tries)):
            return []
        return list(keys.values())

    # --- 1 to 5: the counter --------------------------------------------------------------------------------------

    def _try(self, attempt: _Attempt, count: int, lost: int, *, fresh: bool) -> bool:
        """One try for a grant: whether it is won."""
        known = self._known
        counter = known if known is not None and not fresh else self._read()  # 1
        if counter is not known:
            if (won := self._resolve(attempt, counter)) is not None:  # 2
                attempt.won, attempt.after, self._known = won, "", counter
                return True
            now = self._clock.monotonic()
            if not self._checked or counter.noted is None or now - self._looked > RECHECK_SECONDS:  # 3
                self._check(counter)
            self._looked = now
        desired = self._desired(counter, lost)
        attempt.window = desired.window
        if counter.returned_ranges and self._ledger is not None and self._config.return_tails:  # 4
            desired = replace(desired, grants=desired.grants or counter.grants[-1:])
            return self._try_returned(self._ledger, attempt, desired) or self._try(
                attempt, count, lost, fresh=True
            )
        grant = desired.granting(
            self.name,
            count=count,
            step=self._config.step,
            upper_bound=self._config.upper_bound,
            owner=self._owner(),
            nonce=attempt.nonce,
            at=self._clock.time(),
        )
        attempt.in_doubt.append(grant)
        attempt.after = counter.newest
        if not self._write(attempt, desired.after(grant)):  # 5
            return False
        attempt.won = grant
        return True

    def _try_returned(self, ledger: Ledger, attempt: _Attempt, desired: Counter) -> bool:
        """Take the first key off the counter, then its numbers in the ledger: both must offer them."""
        ledger.record([], desired.advances)
        if not self._write(None, replace(desired, returned_ranges=desired.returned_ranges[1:])):
            return False
        ends = self._clock.monotonic() + 2.0
        owner, at = self._owner(), self._clock.time()
        (attempt.won,) = self._retry_until(
            ends, lambda: (ledger.take(desired.returned_ranges[0], owner, attempt.nonce, at),)
        )
        return attempt.won is not None

    def _write(self, attempt: _Attempt | None, desired: Counter) -> bool:
        """Try the write; while its answer is out, and if it stays out, its grant is in doubt."""
        sent = self._clock.monotonic()
        try:
            etag = self._store.try_optimistic_write(
                desired.text(), etag=desired.etag, metadata=desired.metadata()
            )
        except StorageError as error:
            if attempt is not None and not error.maybe_done:
                attempt.in_doubt.pop()
            raise
        if etag is None:
            self._pace.lost_write(self._clock.monotonic() - sent)
            if attempt is not None:
                attempt.in_doubt.pop()
            return False
        self._pace.won(desired.window, sent, self._clock.monotonic())
        self._known = replace(desired, etag=etag)
        return True

    def _read(self) -> Counter:
        try:
            snapshot = self._store.get_data()
        except NotFound:
            below = max(self._high_water, self._by_ledger())
            if not below:
                return Counter(self._config.start, None)
            try:
                # Another process may have created it and entered its first grant between the two looks.
                snapshot = self._store.get_data()
            except NotFound as error:
                raise SequenceMissing(
                    f"sequence {self.name}: the counter is gone although numbers below {below} or more were granted; "
                    f"numbering does not restart by itself. `python -m coordinator ids repair {self.name}` shows how to "
                    "put it back",
                    sequence=self.name,
                ) from error
        counter = self._decoded(snapshot)
        if counter.value < self._high_water:
            raise lowered_error(self.name, counter.value, self._high_water, "this process's own grants")
        if self._known is not None and counter.etag != self._known.etag:
            self._pace.saw_another()
        return counter

    def _decoded(self, snapshot: Snapshot) -> Counter:
        return read_counter(self.name, snapshot.data, snapshot.etag, snapshot.metadata)

    def _by_ledger(self) -> int:
        """A number below which the ledger knows grants; 0 if there are none."""
        if self._ledger is None:
            return 0
        row = next(self._ledger.rows(limit=1), None)
        return max(self._ledger.head(), row.last + 1 if row else 0)

    def _resolve(self, attempt: _Attempt, counter: Counter) -> Grant | None:
        """Did a write of ours win whose answer was lost?"""
        on_counter = counter.find(attempt.nonce)
        for grant in attempt.in_doubt:
            found = on_counter
            if found is None and self._ledger is not None and grant.last < counter.value:
                found = self._ledger.row(grant.key)
            if found is not None and (found.nonce, found.first) == (attempt.nonce, grant.first):
                return grant
        # A write on an older version can no longer win; one on this version still can, and keeps the same nonce.
        return None

    def _check(self, counter: Counter) -> None:
        """No row of the ledger may be at or above the counter, nor end where a counter without metadata begins."""
        if self._ledger is None or counter.etag is None:
            self._checked = True
            return
        row = next(self._ledger.rows(at_or_after=counter.value - _is_bare(counter), limit=1), None)
        below = max(row.last + 1 if row else 0, 0 if self._checked else self._ledger.head())
        if _goes_back(counter, below):
            # Others may have written since it was read; what the ledger had then must be below what the counter says now.
            counter = self._decoded(self._store.get_data())
            if _goes_back(counter, below):
                if counter.value == below:
                    raise overwritten_error(self.name, below)
                raise lowered_error(self.name, counter.value, below, "the ledger")
        self._checked = True

    def _desired(self, counter: Counter, lost: int) -> Counter:
        """The counter as it is to be written, without what the ledger has, but for the grant."""
        config, known = self._config, self._known
        counter = note_advance(counter, known_next=max(self._high_water, config.start))
        counter = replace(
            counter,
            start=config.start if counter.start is None else counter.start,
            since=counter.value if counter.since is None else counter.since,
            window=self._pace.window_after(counter.window, lost),
            # With our last grant the ledger got the advances that were on the counter then.
            advances=tuple(
                advance for advance in counter.advances if known is None or advance not in known.advances
            ),
        )
        counter = replace(counter, grants=self._not_entered(counter.grants))
        if self._ledger is None:
            return replace(counter, grants=counter.grants[-KEPT_WITHOUT_LEDGER:])
        if counter.grants and metadata_bytes(counter.metadata()) > METADATA_LIMIT:
            *before, newest = counter.grants
            self._enter_late(self._ledger, before, newest, [], counter.advances)
            counter = replace(counter, advances=(), grants=())
        return counter

    def _not_entered(self, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        """Those that may not be in the ledger: what is before one that is, is there, too."""
        nonces = [grant.nonce for grant in grants]
        return grants[nonces.index(self._entered) + 1 :] if self._entered in nonces else grants

    # --- 6 and 7: the ledger --------------------------------------------------------------------------------------

    def _enter(self, attempt: _Attempt) -> Grant:
        """Write the grant that was won into the ledger; only then it may be issued."""
        grant = attempt.won
        assert grant is not None
        if self._ledger is not None and grant.generation == 0:
            try:
                self._enter_new(self._ledger, grant, attempt.after)
            except SequenceLowered:
                self._attempt = None
                raise
        self._attempt = None
        self._high_water = max(self._high_water, grant.last + 1)
        self.grants += 1
        return grant

    def _enter_new(self, ledger: Ledger, grant: Grant, after: str) -> None:
        counter = self._known
        assert counter is not None
        used = self._used if after == self._entered or len(self._used) >= SETTLE_AFTER else []
        if not after or not ledger.enter([grant], after=after, others=used, advances=counter.advances):  # 6
            before = [one for one in counter.grants if one.last < grant.first]
            self._enter_late(ledger, before, grant, used, counter.advances)  # 7
        self._entered = grant.nonce
        self._used = [] if used else self._used

    def _enter_late(
        self,
        ledger: Ledger,
        before: Sequence[Grant],
        grant: Grant,
        used: Sequence[Grant],
        advances: Sequence[ExternalAdvance],
    ) -> None:
        """Enter a grant that was won, and those before it that nobody has entered; unless the counter went backwards."""
        lowest = min([grant.first, *(one.first for one in before)])
        for _ in range(ENTER_TRIES):
            state = ledger.state(at_or_after=lowest, limit=ROWS)
            rows = {row.key: row for row in state.rows}
            if len(rows) == ROWS and state.rows[-1].last < grant.first:
                for one in before:
                    rows |= {row.key: row for row in ledger.rows(at_or_after=one.first, limit=1)}
                state = ledger.state(at_or_after=grant.first, limit=ROWS)
                rows |= {row.key: row for row in state.rows}
            same = rows.get(grant.key)
            if same is not None and (same.nonce, same.first) == (grant.nonce, grant.first):
                if same.covers_to < same.first:
                    raise lowered_error(
                        self.name, grant.first, grant.last + 1, "the ledger, which refused the grant"
                    )
                ledger.record(used, advances)  # by an earlier try that was carried out, or by another for us
                return
            if (lowered := self._lowered(state, grant)) is not None:
                # Nobody issues ours: let the ledger say so, and that nothing is missing there.
                unused = [] if same is not None else [grant.settled(RETURNED, grant.first - 1)]
                if unused and not ledger.enter(unused, after=state, is_newest=False):
                    continue
                ledger.record([], [ExternalAdvance(grant.first, grant.last)])
                raise lowered
            missing = [one for one in before if one.key not in rows and not _overlaps(one, rows.values())]
            others = [*used, *(one for one in before if one.outcome != GRANTED and one not in missing)]
            above = any(row.first > grant.last for row in state.rows)
            if ledger.enter(
                [*missing, grant], after=state, is_newest=not above, others=others, advances=advances
            ):
                return
        raise StorageBusy(f"the ledger of sequence {self.name} changes too fast", resource=self.name)

    def _lowered(self, state: LedgerState, grant: Grant) -> SequenceLowered | None:
        """The error, if a row means that the counter went backwards."""
        for row in state.rows:
            if row.last < grant.first or (row.first > grant.last and self._read().value > row.last):
                continue
            return lowered_error(self.name, grant.first, row.last + 1, f"the ledger (grant {row.key})")
        return None

    # --- the rest -------------------------------------------------------------------------------------------------

    def _offer(self, keys: dict[str, Grant], tries: Iterator[int]) -> bool:
        """Offer returned numbers on the counter, so that another may take them."""
        counter = self._known if next(tries) == 0 and self._known is not None else self._read()
        if counter.noted is None:
            self._check(counter)
        offered = tuple(dict.fromkeys([*counter.returned_ranges, *keys]))[:MOST_RETURNED_RANGES]
        if counter.etag is None or offered == counter.returned_ranges:
            return True
        desired = replace(note_advance(counter, known_next=self._high_water), returned_ranges=offered)
        return bool(
            self._store.try_optimistic_write(desired.text(), etag=counter.etag, metadata=desired.metadata())
        )

    def _retry_until(self, ends: float, call: Callable[[], R]) -> R:
        """What `call` gives, repeated while storage fails or it gives nothing, until a moment."""
        backoff = Backoff(base_seconds=0.02, cap_seconds=0.5)
        for tries in itertools.count():
            pause = backoff.delay(tries)
            last = self._clock.monotonic() + pause > ends
            try:
                if (result := call()) or last:
                    return result
            except (StorageUnreachable, StorageBusy):
                if last:
                    raise
            self._sleep(pause)
        raise AssertionError("unreachable")

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


def _is_bare(counter: Counter) -> bool:
    """Whether it has no metadata: another program wrote it, or somebody removed it."""
    return counter.noted is None and counter.value > 0


def _goes_back(counter: Counter, below: int) -> bool:
    return counter.value <= below and (_is_bare(counter) or counter.value < below)


def _overlaps(grant: Grant, rows: Iterable[Grant]) -> bool:
    return any(row.first <= grant.last and row.last >= grant.first for row in rows)
