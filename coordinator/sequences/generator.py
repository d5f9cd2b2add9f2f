"""`UniqueIdGenerator`: order numbers at memory speed, unique across all processes."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self, TypeVar, cast

from coordinator.backoff import Backoff
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import (
    ConfigurationError,
    KennelError,
    SequenceClosed,
    SequenceContended,
    SequenceError,
    StorageBusy,
    StorageUnreachable,
)
from coordinator.realtime.protocol import SequenceStatus
from coordinator.sequences.allocator import RangeAllocator
from coordinator.sequences.forking import watch
from coordinator.sequences.grants import Grant, Owner, SequenceConfig
from coordinator.sequences.prefetch import Consumption, RefillTime, next_range_size, numbers_needed
from coordinator.sequences.range_buffer import Block, RangeBuffer
from coordinator.sequences.store import Ledger, OptimisticSyncStore

R = TypeVar("R")
log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
PASSING = (StorageUnreachable, StorageBusy, SequenceContended)


class Runway(NamedTuple):
    """How far the numbers in memory reach: how many, and for how long at the recent peak rate (None: no rate yet)."""

    numbers: int
    seconds: float | None


class _Failure(NamedTuple):
    error: KennelError
    began: float
    ended: float


class UniqueIdGenerator:
    """Unique numbers, taken from a shared counter a range at a time ([its source](../sources.md#s1-uniqueidgenerator)).

    Guarantees that no number is issued twice, by any process, whatever crashes, whichever answers are lost; that
    every number is attributed to the process that got it; that `next_id` does no I/O, and fails only when no number
    is left in memory. A forked child never issues its parent's numbers. Safe from any thread, with or without an
    event loop.

    Does not guarantee order between processes, nor that every number is used: a crash, or an end without `close`,
    loses what the process held (the ledger says what and whose).

    Args:
        name: The sequence.
        store: Where the counter is; `Storage.sequence` gives one in the account, `coordinator.testing` one in memory.
        ledger: The record of grants (default: none, and old grants are forgotten).
        config: Sizes and bounds, see `SequenceConfig`.
        owner: Who takes the ranges.
        clock: The clock, for tests.

    Raises:
        SequenceClosed: After `close`; also raised by each method, as are the others.
        SequenceExhausted: The upper bound is reached.
        SequenceContended: Others won every attempt to take a range.
        SequenceCorrupt: The counter is not a number.
        SequenceMissing: The counter is gone.
        SequenceLowered: The counter is lower than the ledger.
        StorageError: Storage refused, or stayed unreachable for `deadline_seconds`.

    Examples:
        >>> orders = storage.sequence("orders", range_size=1000)
        >>> number = orders.next_id()
    """

    def __init__(
        self,
        name: str,
        store: OptimisticSyncStore,
        ledger: Ledger | None = None,
        *,
        config: SequenceConfig | None = None,
        owner: Callable[[], Owner] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name = name
        self.config = config or SequenceConfig()
        self._store, self._ledger, self._clock = store, ledger, clock
        self._owner = owner or (
            lambda: Owner(f"{os.uname().nodename}-{os.getpid()}", os.uname().nodename, os.getpid())
        )
        self.reset()
        watch(self)

    def reset(self) -> None:
        """Start from nothing: on construction, and in a forked child, whose numbers, locks and thread are its parent's."""
        now = self._clock.monotonic()
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._buffer = RangeBuffer()
        self._take = self._buffer.take
        self._consumption = Consumption(now)
        self._refill_time = RefillTime()
        self._stopping = threading.Event()
        self.io = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiters: list[Callable[[], object]] = []
        self._failure: _Failure | None = None
        self._halted = self._closed = False
        self._demand = 0
        self._last_size = self.config.range_size
        self._range: tuple[int, int] = (0, 0)
        self.blocked_calls = 0
        self._allocator = self._new_allocator(self._pause)
        self._aside: list[tuple[Grant, Iterator[int]]] = []

    begin_anew = reset
    """The name in release 0.1."""

    def _new_allocator(self, pause: Callable[[float], bool]) -> RangeAllocator:
        return RangeAllocator(
            self.name, self._store, self._ledger, self.config, owner=self._owner, clock=self._clock, pause=pause
        )  # fmt: skip

    # --- taking numbers -----------------------------------------------------------------------------------------

    def next_id(self) -> int:
        """The next number. Blocks only while storage is slower than the runway, at most `deadline_seconds` (30).

        1. Take it from the open segment: one step of the interpreter, no lock, no I/O.
        2. If the segment is empty, open the next one, under the lock.
        3. If memory is short, ask the refill thread for a range, and if it is empty, wait for that.
        4. The refill thread takes the range (steps of its own in `coordinator.sequences.allocator`) and wakes who waits.

        Raises `SequenceClosed`, `SequenceExhausted`, `SequenceContended`, `SequenceCorrupt`, `SequenceMissing`,
        `SequenceLowered`, or the `StorageError` that kept the range from coming. May be called from a signal handler,
        where it seldom takes a range of its own and waits for it.
        """
        try:
            return self._take()  # 1
        except StopIteration:
            return self._next_aside() if self._is_inside() else self._wait_for(self._next_from_buffer)

    async def next_id_async(self) -> int:
        """`next_id`, but awaits instead of blocking when a refill is late."""
        try:
            return self._take()
        except StopIteration:
            return await self._wait_for_async(self._next_from_buffer)

    def next_ids(self, count: int) -> Block:
        """Several numbers at once, all or none. One write takes what is not in memory, however much it is.

        Args:
            count: How many, at least 1.

        Returns:
            The numbers; `Block.is_contiguous` says whether they are one run.

        Raises:
            ConfigurationError: `count` is out of bounds.
        """
        _at_least_one(count)
        if self._is_inside():
            return Block((self._reserve_aside(count).numbers,))
        return self._wait_for(lambda: self._block_from_buffer(count), demand=count)

    async def next_ids_async(self, count: int) -> Block:
        """`next_ids`, but awaits instead of blocking.

        Args:
            count: As for `next_ids`.

        Returns:
            As for `next_ids`.
        """
        return await self._wait_for_async(lambda: self._block_from_buffer(count), demand=_at_least_one(count))

    # --- looking ------------------------------------------------------------------------------------------------

    def runway(self) -> Runway:
        """How many numbers are in memory, and how many seconds they last at the recent peak rate (None: no rate yet). No I/O."""
        with self._lock:
            return self._runway()

    def status(self) -> SequenceStatus:
        """What a worker reports of this sequence. No I/O."""
        with self._lock:
            self._account()
            grant = self._buffer.current
            if grant is not None:
                self._range = (grant.first, grant.last)
            return SequenceStatus(
                self.name,
                first=self._range[0],
                last=self._range[1],
                last_issued=self._buffer.last_issued,
                issued=self._buffer.issued,
                per_second=self._consumption.now(self._clock.monotonic()),
                runway_seconds=self._runway().seconds,
                conflicts=self._allocator.conflicts,
                grants=self._allocator.grants,
            )

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    # --- ending -------------------------------------------------------------------------------------------------

    def close(self) -> list[range]:
        """Stop, join the refill thread, and return unused numbers for others to use; which ones is the result.

        Harmless when repeated. Takes `CLOSE_SECONDS` (10) for each of the two at most. If storage cannot be reached the
        numbers are lost instead (the ledger says whose they were) and a warning is logged. Later calls raise
        `SequenceClosed`.
        """
        with self._lock:
            already, self._closed = self._closed, True
            self._stopping.set()
            self._work.notify_all()
            thread = self._thread
            self._wake()
        if already:
            return []
        if thread is not None:
            thread.join(CLOSE_SECONDS)
            if thread.is_alive():
                log.warning("sequence %s: a refill does not end; unused numbers are lost", self.name)
                return []
        with self._lock:
            rest = self._buffer.empty_out()
            self._take = self._buffer.take
            used = self._buffer.finished
        for grant, numbers in self._aside:
            left = list(numbers)
            if left:
                rest.append((grant, left[0] - 1))
            else:
                used.append(grant)
        if not self.config.return_tails:
            rest = []
        try:
            with self.io:
                for grant in used:
                    self._allocator.used(grant)
                offered = self._allocator.give_back(rest, seconds=CLOSE_SECONDS)
        except KennelError as error:
            log.warning("sequence %s: unused numbers could not be returned: %s", self.name, error)
            return []
        return [range(end + 1, grant.last + 1, grant.step) for grant, end in rest if grant in offered]

    async def aclose(self) -> list[range]:
        """`close` without blocking the event loop."""
        return await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- inside -------------------------------------------------------------------------------------------------

    def _next_from_buffer(self) -> int | None:
        while True:
            try:
                return self._take()
            except StopIteration:
                self._account()
                more = self._buffer.open_next(self._needed(self._clock.monotonic()) - 1)  # 2
                self._take = self._buffer.take
                if self._is_short():
                    self._work.notify_all()
                if not more:
                    return None

    def _block_from_buffer(self, count: int) -> Block | None:
        self._account()
        block = self._buffer.take_block(count)
        self._take = self._buffer.take
        if block is not None:
            # A block is no rate: more than a range of it says nothing of what comes next.
            self._consumption.took(min(count, self._last_size), self._clock.monotonic())
        if self._is_short():
            self._work.notify_all()
        return block

    def _wait_for(self, take: Callable[[], R | None], demand: int = 1) -> R:
        since = self._clock.monotonic()
        # A bare lock, which the refill thread can always release. An `Event` has a lock inside that a waiting thread takes
        # for a moment: if a signal handler interrupts it there and waits for numbers, waking it would wait for the handler.
        arrived = threading.Lock()
        arrived.acquire()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # woken already
                arrived.release()

        while (taken := self._step(take, since, wake, demand)) is None:
            left = self.config.deadline_seconds + 1.0 - (self._clock.monotonic() - since)
            arrived.acquire(timeout=max(0.0, left))
        return taken

    async def _wait_for_async(self, take: Callable[[], R | None], demand: int = 1) -> R:
        since = self._clock.monotonic()
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(arrived.set)

        while (taken := self._step(take, since, wake, demand)) is None:
            left = self.config.deadline_seconds + 1.0 - (self._clock.monotonic() - since)
            await self._clock.wait(arrived, max(0.0, left))
            arrived.clear()
        return taken

    def _step(
        self, take: Callable[[], R | None], since: float, wake: Callable[[], object], demand: int
    ) -> R | None:
        """Take from the buffer, or raise the error of the refill, or ask for a refill and be woken."""
        with self._lock:
            if self._closed:
                raise SequenceClosed(
                    f"sequence {self.name} was closed; no more numbers are issued", sequence=self.name
                )
            if (taken := take()) is not None:
                return taken
            waited = self._clock.monotonic() - since
            failure = self._failure
            # What began before the call may have seen a counter that was repaired since.
            if failure is not None and (
                failure.began >= since or (failure.ended >= since and waited >= self.config.deadline_seconds)
            ):
                raise failure.error
            if waited > self.config.deadline_seconds:
                raise StorageUnreachable(
                    f"sequence {self.name}: no range came within {waited:.1f} s", resource=self.name
                )
            if not self._waiters:
                self._demand = 0
            self.blocked_calls += 1
            self._waiters.append(wake)
            self._demand = max(self._demand, demand)
            self._halted = False
            if self._thread is None:  # 3
                self._thread = threading.Thread(
                    target=self._run, name=f"kennel-sequence-{self.name}", daemon=True
                )
                self._thread.start()
            self._work.notify_all()
            return None

    def _is_inside(self) -> bool:
        """Whether this thread is in the middle of a change of the buffer: this is a signal handler, or a finalizer."""
        return bool(cast(Any, self._lock)._is_owned())

    def _next_aside(self) -> int:
        """A number for a caller that cannot wait for the buffer, since its own thread's frame below has the lock."""
        while True:
            for _, numbers in self._aside:
                for number in numbers:
                    return number
            grant = self._reserve_aside(self.config.sizes[0])
            self._aside.append((grant, iter(grant.numbers)))

    def _reserve_aside(self, count: int) -> Grant:
        if self._closed:
            raise SequenceClosed(
                f"sequence {self.name} was closed; no more numbers are issued", sequence=self.name
            )
        got: list[Grant | BaseException] = []
        done = threading.Lock()
        done.acquire()

        def reserve() -> None:
            try:
                got.append(self._new_allocator(self._stopping.wait).reserve(count))
            except BaseException as error:
                got.append(error)
            finally:
                done.release()

        # In a thread, which no signal interrupts while it has a lock of the HTTP library that the next handler would
        # need. One that `threading` does not know: starting those takes a lock, too.
        _thread.start_new_thread(reserve, ())
        if not done.acquire(timeout=self.config.deadline_seconds + 1.0):
            raise StorageUnreachable(f"sequence {self.name}: no range came in time", resource=self.name)
        if isinstance(got[0], BaseException):
            raise got[0]
        return got[0]

    def _account(self) -> None:
        taken = self._buffer.count()
        self._consumption.took(taken, self._clock.monotonic())

    def _runway(self) -> Runway:
        rate = self._consumption.peak(self._clock.monotonic())
        left = self._buffer.left
        return Runway(left, left / rate if rate > 0.001 else None)

    def _needed(self, now: float) -> int:
        return numbers_needed(self._consumption.peak(now), self._refill_time.seconds)

    def _is_short(self) -> bool:
        return not self._halted and self._buffer.left < max(
            self._needed(self._clock.monotonic()), self._demand
        )

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    def _run(self) -> None:
        """The refill thread: one refill after another while the buffer is short, then wait to be asked."""
        failures = 0
        patience = Backoff(base_seconds=0.1, cap_seconds=5.0)
        while True:
            with self._lock:
                while not self._closed and not self._is_short():
                    self._work.wait()
                if self._closed:
                    return
                size = self._size_of_next()
                finished, self._buffer.finished = self._buffer.finished, []
                self._halted = False
            failed = not self._refill(size, finished)
            failures = failures + 1 if failed else 0
            if failed:
                self._rest(patience.delay(failures))

    def _pause(self, seconds: float) -> bool:
        """Wait between tries; nothing is under way meanwhile, so a fork need not wait."""
        self.io.release()
        try:
            return self._stopping.wait(seconds)
        finally:
            self.io.acquire()

    def _rest(self, seconds: float) -> None:
        with self._lock:
            if not self._closed and not self._waiters:
                self._work.wait(seconds)

    def _size_of_next(self) -> int:
        """How many numbers to ask for. A block is no rate: it is taken with one write, and nothing is kept ready for more
        such blocks."""
        now = self._clock.monotonic()
        self._last_size = next_range_size(self.config, self._consumption.now(now), self._last_size)
        left = self._buffer.left
        missing = min(self._needed(now) - left, self.config.sizes[1])
        return max(self._last_size, missing, self._demand - left)

    def _refill(self, size: int, finished: list[Grant]) -> bool:
        began = self._clock.monotonic()
        try:
            with self.io:
                for grant in finished:
                    self._allocator.used(grant)
                grant = self._allocator.reserve(size)  # 4
        except Exception as caught:
            error = self._as_kennel_error(caught)
            with self._lock:
                self._failure = _Failure(error, began, self._clock.monotonic())
                self._halted = not isinstance(error, PASSING)
                self._wake()
            return False
        ended = self._clock.monotonic()
        with self._lock:
            self._refill_time.took(ended - began)
            self._buffer.add(grant)
            if self._buffer.left >= self._demand:
                self._demand = 0
            self._failure = None
            self._wake()
        return True

    def _as_kennel_error(self, error: Exception) -> KennelError:
        """An error for the callers. The refill thread outlives any: without it they would wait in vain."""
        if isinstance(error, KennelError):
            return error
        log.error("sequence %s: a refill failed in an unforeseen way", self.name, exc_info=error)
        unforeseen = SequenceError(f"sequence {self.name}: the refill failed: {error!r}", sequence=self.name)
        unforeseen.__cause__ = error
        return unforeseen


def _at_least_one(count: int) -> int:
    given: object = count  # whatever a caller without a type checker gave
    if not isinstance(given, int) or not 1 <= given <= 10**9:
        raise ConfigurationError(
            f"a block needs 1 to 1,000,000,000 numbers, as a whole number; got {count!r}"
        )
    return count
