"""The generator against a store in memory: what its refill thread survives, and when it fetches."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import pytest

from coordinator.clock import SystemClock
from coordinator.errors import ConfigurationError, SequenceClosed, SequenceError, SequenceLowered
from coordinator.sequences import generator
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.grants import SequenceConfig
from coordinator.sequences.range_buffer import Block
from coordinator.sequences.store import Snapshot
from coordinator.testing.sequences import MemoryLedger, MemoryStore, memory_generator

OURS = tuple(
    f"coordinator.sequences.{each}" for each in ("generator", "range_buffer", "prefetch", "allocator")
)


class Surprising(MemoryStore):
    """Raises what no store should, as long as `surprises` says so."""

    surprises = False

    def try_optimistic_write(self, data: str, *, etag: str | None, metadata: Mapping[str, str]) -> str | None:
        if self.surprises:
            raise ZeroDivisionError("nobody foresaw this")
        return super().try_optimistic_write(data, etag=etag, metadata=metadata)


def test_an_unforeseen_error_is_told_and_does_not_end_the_refills() -> None:
    store = Surprising()
    with memory_generator(store=store, range_size=10, max_range_size=10) as ids:
        assert [ids.next_id() for _ in range(5)] == [1, 2, 3, 4, 5]
        left = ids.runway().numbers
        store.surprises = True
        assert len({ids.next_id() for _ in range(left)}) == left
        with pytest.raises(SequenceError, match="nobody foresaw this") as caught:
            ids.next_ids(1000)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        store.surprises = False
        assert ids.next_id() > 5


class LoweredOnce(MemoryStore):
    """The write of a block that `hold` announces waits until it is let go, and is refused then. The next waits for `repaired`."""

    def __init__(self) -> None:
        super().__init__()
        self.hold = False
        self.waiting, self.go, self.repaired = threading.Event(), threading.Event(), threading.Event()

    def try_optimistic_write(self, data: str, *, etag: str | None, metadata: Mapping[str, str]) -> str | None:
        if (
            self.hold and int(data) > 1000
        ):  # not that of a range fetched ahead, which may have begun before the call
            self.hold = False
            self.waiting.set()
            assert self.go.wait(60)
            raise SequenceLowered("the counter was lowered", sequence="orders")
        if self.go.is_set():
            assert self.repaired.wait(60)
        return super().try_optimistic_write(data, etag=etag, metadata=metadata)


def test_a_call_is_refused_only_for_what_a_refill_saw_after_it_began() -> None:
    store = LoweredOnce()
    with memory_generator(store=store, range_size=10, max_range_size=10) as ids:
        ids.next_id()
        store.hold = True
        got: dict[str, object] = {}

        def call(name: str) -> None:
            try:
                got[name] = len(ids.next_ids(1000))
            except SequenceLowered as error:
                got[name] = error

        early, late = (threading.Thread(target=call, args=[name]) for name in ("early", "late"))
        early.start()
        assert store.waiting.wait(60)
        blocked = ids.blocked_calls
        late.start()  # an operator has just repaired the counter
        wait_for(lambda: ids.blocked_calls > blocked)
        store.go.set()
        early.join(60)  # its error comes before the block that the other one asks for, which both could take
        store.repaired.set()
        late.join(60)
        assert isinstance(got["early"], SequenceLowered)
        assert got["late"] == 1000


class Born(MemoryStore):
    """Between this process's first look at the counter and its look at the ledger another one creates both."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = None

    def get_data(self) -> Snapshot:
        meanwhile, self.meanwhile = self.meanwhile, None
        try:
            return super().get_data()
        finally:
            if meanwhile is not None:
                meanwhile()


def test_a_sequence_that_another_process_creates_at_the_same_moment_is_not_gone() -> None:
    store, ledger = Born(), MemoryLedger()
    with (
        memory_generator(store=store, ledger=ledger, range_size=10, max_range_size=10) as one,
        memory_generator(store=store, ledger=ledger, range_size=10, max_range_size=10) as other,
    ):
        got: list[int] = []
        store.meanwhile = lambda: got.append(other.next_id())
        assert one.next_id() not in got
        assert got == [1]


class Slow(MemoryStore):
    """Each write waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting, self.go = threading.Event(), threading.Semaphore(0)

    def try_optimistic_write(self, data: str, *, etag: str | None, metadata: Mapping[str, str]) -> str | None:
        self.waiting.set()
        assert self.go.acquire(timeout=60)
        return super().try_optimistic_write(data, etag=etag, metadata=metadata)


class Hand(SystemClock):
    """Moved by hand, by one thread and seen by others."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.0002)


@pytest.mark.parametrize(
    ("refill_seconds", "per_second", "batch_size", "range_seconds"),
    [
        (0.05, 20_000, 50, 0.25),
        (0.5, 20_000, 50, 0.25),
        (0.3, 100, 1, 12.0),
        (0.12, 100, 1, 10.0),
    ],
)
def test_callers_never_wait_once_the_refill_is_known_to_be_slow(
    refill_seconds: float, per_second: int, batch_size: int, range_seconds: float
) -> None:
    # With prefetch at a fixed share of a range (100 of 1000 left, say) fast callers would run dry; with a look at what is
    # left each 62 numbers, slow ones.
    # Time is made up: a number takes 50 µs, a write `refill_seconds`, and the threads wait for each other.
    clock, store = Hand(), Slow()
    config = SequenceConfig(range_size=1000, range_seconds=range_seconds)
    ids = UniqueIdGenerator("orders", store, MemoryLedger(), config=config, clock=clock)
    due: float | None = None
    dry = 0
    asked, notify = threading.Event(), ids._work.notify_all

    def ask() -> None:
        asked.set()
        notify()

    ids._work.notify_all = ask  # type: ignore[method-assign]

    def let_go() -> None:
        nonlocal due
        left, due = ids.runway().numbers, None
        store.waiting.clear()
        store.go.release()
        wait_for(lambda: ids.runway().numbers > left)
        if not ids._is_short():  # else the thread sees by itself that there is more to do
            asked.clear()

    def look() -> None:
        """Let the refill thread come as far as it would have come by now."""
        nonlocal due, dry
        if due is None and (store.waiting.is_set() or (asked.is_set() and ids._is_short())):
            wait_for(store.waiting.is_set)
            due = clock.monotonic() + refill_seconds
        if due is not None and clock.monotonic() >= due:
            let_go()
            look()
        elif ids.runway().numbers < batch_size:
            dry += 1
            assert due is not None
            clock.now = due
            let_go()
            look()

    first = threading.Thread(target=ids.next_id)
    first.start()
    wait_for(store.waiting.is_set)
    clock.now += refill_seconds
    let_go()
    first.join()
    warm = 800 if batch_size > 1 else 1200
    for batch in range(2400 if batch_size > 1 else 9000):
        if batch == warm:
            blocked, dry, grants = ids.blocked_calls, 0, ids.status().grants
        look()
        if batch_size > 1 and batch % 7 == 0:
            ids.next_ids(batch_size)
        else:
            for _ in range(batch_size):
                ids.next_id()
        clock.now += batch_size / per_second
    assert (dry, ids.blocked_calls - blocked) == (0, 0)
    assert ids.status().grants - grants >= 5
    store.go.release(1000)
    ids.close()


# --- blocks, signals, ends --------------------------------------------------------------------------------------------


def test_a_bulk_call_is_one_write_and_keeps_nothing_ready_for_more_of_its_kind() -> None:
    store = MemoryStore()
    with memory_generator(store=store, range_size=10, max_range_size=10) as ids:
        ids.next_id()
        wait_for(lambda: not ids._is_short())
        grants = ids.status().grants
        block = ids.next_ids(10_000_000)
        assert (len(block), ids.status().grants - grants) == (10_000_000, 1)
        assert ids.runway().numbers <= 100
    assert int(store.get_data().data) < 10_001_000


@pytest.mark.parametrize("call", ["next_id", "next_ids"])
def test_a_signal_handler_gets_its_number_whatever_it_interrupts(call: str) -> None:
    ids = memory_generator(range_size=10, max_range_size=10)
    numbers = [ids.next_id()]

    def handler() -> None:
        numbers.extend([ids.next_id() for _ in range(3)] if call == "next_id" else ids.next_ids(25))

    with ids._lock:  # what a signal may interrupt: its frame stands still until the handler is done
        ids._take = iter(()).__next__
        handler()
        handler()
        ids._take = ids._buffer.take
    numbers += [ids.next_id() for _ in range(40)]
    numbers += [number for left in ids.close() for number in left]
    assert len(numbers) == len(set(numbers))
    with ids._lock, pytest.raises(SequenceClosed):
        handler()


INTERRUPTED: dict[str, tuple[int, Callable[[UniqueIdGenerator], object]]] = {
    "the first number, which starts the thread": (0, lambda ids: ids.next_id()),
    "a number from memory, and one that waits for a range": (1, lambda ids: (ids.next_id(), ids.next_id())),
    "a block": (1, lambda ids: ids.next_ids(5)),
    "a look": (1, lambda ids: str((ids.runway(), ids.status()))),
    "the end": (1, lambda ids: ids.close()),
}


@pytest.mark.parametrize("call", INTERRUPTED)
def test_a_signal_at_any_step_of_a_call_gets_its_numbers(call: str) -> None:
    step = 1
    while interrupted_at(step, *INTERRUPTED[call]):
        step += 1
    assert step > 20


def interrupted_at(step: int, before: int, call: Callable[[UniqueIdGenerator], object]) -> bool:
    """Let a handler take numbers when the call comes to that step of its code; False if it ends before it does."""
    ids = memory_generator(range_size=2, max_range_size=2)
    numbers = [ids.next_id() for _ in range(before)]
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal steps
        if frame.f_globals["__name__"] not in ("threading", *OURS):
            return None
        steps += 1
        if steps == step:
            with contextlib.suppress(SequenceClosed):
                numbers.extend([ids.next_id() for _ in range(3)])
        return trace

    def work() -> None:
        # While `trace` runs nothing is traced, and the frame below it stands still: as with a signal's handler.
        sys.settrace(trace)
        try:
            given = call(ids)
        finally:
            sys.settrace(None)
        numbers.extend(flat(given))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), f"stuck after a signal at step {step}"
    numbers.extend(flat(ids.close()))
    assert len(numbers) == len(set(numbers))
    return steps >= step


def flat(given: object) -> list[int]:
    """The numbers in whatever a call gave."""
    if isinstance(given, int):
        return [given]
    return (
        [number for each in given for number in flat(each)]
        if isinstance(given, list | tuple | range | Block)
        else []
    )


# In a process of its own: pytest's time-out uses the same timer, and a process has only one.
SIGNALLED = """
import faulthandler, signal
from coordinator.testing.sequences import memory_generator

faulthandler.dump_traceback_later(300, exit=True)  # it is stuck; a busy machine needs a minute
ids = memory_generator(range_size=2, max_range_size=2)
numbers, signals = [], 0

def handler(*_):
    global signals
    signals += 1
    numbers.append(ids.next_id())
    signal.setitimer(signal.ITIMER_REAL, 0.002)  # one at a time: on a busy machine they would nest without end

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.002)
while len(numbers) < 3000 or signals < 50:
    numbers.append(ids.next_id())
signal.signal(signal.SIGALRM, signal.SIG_IGN)
ids.close()
assert len(numbers) == len(set(numbers))
print(signals, "signals")
"""


@pytest.mark.timeout(330)
def test_signals_at_any_moment_neither_block_nor_repeat() -> None:
    run = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("signals\n")


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_lost_answer_while_closing_leaves_no_number_unoffered(carried_out: bool) -> None:
    store, ledger = MemoryStore(), MemoryLedger()
    first = memory_generator(store=store, ledger=ledger, range_size=100, max_range_size=100)
    assert first.next_id() == 1
    store.lose_answer(carried_out=carried_out)
    assert first.close() == [range(2, 101)]
    with memory_generator(store=store, ledger=ledger) as second:
        assert second.next_id() == 2


def test_closing_is_bounded_while_storage_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "CLOSE_SECONDS", 0.2)
    store = MemoryStore()
    ids = memory_generator(store=store, range_size=10, max_range_size=10)
    ids.next_id()
    for _ in range(10_000):
        store.lose_answer(carried_out=False)
    assert ids.close() == []


@pytest.mark.parametrize("count", [1.5, "3", 0, -1, 10**9 + 1])
def test_a_block_of_no_whole_number_is_refused_by_its_value(count: int) -> None:
    with memory_generator() as ids, pytest.raises(ConfigurationError, match=rf"got {re.escape(repr(count))}"):
        ids.next_ids(count)
