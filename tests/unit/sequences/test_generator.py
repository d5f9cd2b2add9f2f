"""The generator against a store in memory: what its refill thread survives, and when it fetches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import pytest

from coordinator.clock import SystemClock
from coordinator.errors import SequenceError
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.grants import SequenceConfig
from coordinator.testing.sequences import MemoryLedger, MemoryStore, memory_generator


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


@pytest.mark.parametrize("refill_seconds", [0.05, 0.5])
def test_callers_never_wait_once_the_refill_is_known_to_be_slow(refill_seconds: float) -> None:
    # 4: with prefetch at a fixed share of a range (100 of 1000 left, say) callers at this rate would run dry.
    # Time is made up: a number takes 50 µs, a write `refill_seconds`, and the threads wait for each other.
    clock, store = Hand(), Slow()
    config = SequenceConfig(range_size=1000, range_seconds=0.25)
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
        elif ids.runway().numbers < 50:
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
    for batch in range(2400):
        if batch == 800:
            blocked, dry, grants = ids.blocked_calls, 0, ids.status().grants
        look()
        ids.next_ids(50) if batch % 7 == 0 else [ids.next_id() for _ in range(50)]
        clock.now += 50 / 20_000
    assert (dry, ids.blocked_calls - blocked) == (0, 0)
    assert ids.status().grants - grants >= 5
    store.go.release(1000)
    ids.close()
