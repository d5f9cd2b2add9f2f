"""Many writers that refill without pause from one counter, on a simulated server that serves one request at a time."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections.abc import Mapping, Sequence

import pytest

from coordinator.errors import SequenceContended
from coordinator.sequences.allocator import RangeAllocator
from coordinator.sequences.grants import ExternalAdvance, Grant, Owner, SequenceConfig
from coordinator.sequences.pacing import ContentionBackoff
from coordinator.sequences.store import LedgerState, Snapshot
from coordinator.testing.sequences import MemoryLedger, MemoryStore

# What a request takes, as with Azurite on the writers' own machine.
READ_SECONDS, WRITE_SECONDS, ENTER_SECONDS, NETWORK_SECONDS = 0.001, 0.0015, 0.0025, 0.0005


class _EndOfPlay(BaseException):
    pass


def closed() -> threading.Lock:
    """Whoever acquires it waits until somebody releases it."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class World:
    """Threads of which one runs at a time, each until it waits: so a play of one seed always goes the same way."""

    def __init__(self, seed: int, *, slower: float = 1.0) -> None:
        self.rng = random.Random(seed)
        self._slower = slower
        self._now = 0.0
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, threading.Lock]] = []
        self._ends_at = 0.0
        self._ended = closed()
        self._own = threading.local()
        self._server_free_at = 0.0
        self._is_over = False
        self._threads: list[threading.Thread] = []

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return 1_700_000_000.0 + self._now

    def pause(self, seconds: float) -> bool:
        wake: threading.Lock = self._own.wake
        heapq.heappush(self._waiting, (self._now + max(0.0, seconds), next(self._order), wake))
        self._go_on()
        wake.acquire()
        if self._is_over:
            raise _EndOfPlay
        return False

    def _go_on(self) -> None:
        """Wake whoever is next, perhaps the thread that asks; or whoever waits for the end of the play."""
        if self._waiting and self._waiting[0][0] <= self._ends_at:
            self._now, _, wake = heapq.heappop(self._waiting)
            wake.release()
        else:
            self._ended.release()

    def serve(self, seconds: float) -> None:
        """A request arrives, waits for those before it, and is carried out when this returns."""
        self.pause(NETWORK_SECONDS)
        done = max(self._now, self._server_free_at) + self._slower * seconds * self.rng.uniform(0.7, 1.3)
        self._server_free_at = done
        self.pause(done - self._now)

    def start(self, program: object, begins_at: float) -> None:
        wake = closed()

        def run() -> None:
            self._own.wake = wake
            wake.acquire()
            try:
                if not self._is_over:
                    program()  # type: ignore[operator]
                    self._go_on()
            except _EndOfPlay:
                pass

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)
        heapq.heappush(self._waiting, (begins_at, next(self._order), wake))

    def play(self, seconds: float) -> None:
        self._ends_at = seconds
        self._go_on()
        self._ended.acquire()
        self._now = seconds
        self._is_over = True
        for _, _, wake in self._waiting:
            wake.release()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


class ServedStore(MemoryStore):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def get_data(self) -> Snapshot:
        self._world.serve(READ_SECONDS)
        answer = super().get_data()
        self._world.pause(NETWORK_SECONDS)
        return answer

    def try_optimistic_write(self, data: str, *, etag: str | None, metadata: Mapping[str, str]) -> str | None:
        self._world.serve(WRITE_SECONDS)
        answer = super().try_optimistic_write(data, etag=etag, metadata=metadata)
        self._world.pause(NETWORK_SECONDS)
        return answer


class ServedLedger(MemoryLedger):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def enter(
        self,
        grants: Sequence[Grant],
        *,
        after: str | LedgerState,
        is_newest: bool = True,
        others: Sequence[Grant] = (),
        advances: Sequence[ExternalAdvance] = (),
    ) -> bool:
        self._world.serve(ENTER_SECONDS)
        answer = super().enter(grants, after=after, is_newest=is_newest, others=others, advances=advances)
        self._world.pause(NETWORK_SECONDS)
        return answer


class Crowd:
    """What so many writers got in so many seconds; all of them start at the same moment."""

    def __init__(self, writers: int, seconds: float, seed: int, *, slower: float = 1.0) -> None:
        world = World(seed, slower=slower)
        store, ledger = ServedStore(world), ServedLedger(world)
        store.overwrite("1")
        self.won_at: list[list[float]] = [[] for _ in range(writers)]
        self.contended = 0
        allocators = [
            RangeAllocator(
                "orders",
                store,
                ledger,
                SequenceConfig(),
                owner=lambda number=number: Owner(f"writer-{number}"),  # type: ignore[misc]
                clock=world,  # type: ignore[arg-type]
                pause=world.pause,
                sleep=world.pause,
                pace=ContentionBackoff(random.Random(1000 * seed + number)),
            )
            for number in range(writers)
        ]

        def work(number: int) -> None:
            while True:
                try:
                    allocators[number].used(allocators[number].reserve(1000))
                    self.won_at[number].append(world.monotonic())
                except SequenceContended:
                    self.contended += 1

        for number in range(writers):
            world.start(lambda number=number: work(number), world.rng.uniform(0.0, 0.01))
        world.play(seconds)
        self.won = sum(map(len, self.won_at))
        self.conflicts = sum(allocator.conflicts for allocator in allocators)
        self.longest_wait = max(
            later - before
            for moments in self.won_at
            for before, later in itertools.pairwise([0.0, *moments, seconds])
        )


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("writers", "seconds", "longest", "a_second", "conflicts"),
    [(8, 20.0, 1.0, 130.0, 0.6), (32, 15.0, 2.0, 85.0, 0.9)],
)
def test_no_writer_of_a_crowd_waits_long_while_the_others_are_served(
    writers: int, seconds: float, longest: float, a_second: float, conflicts: float, seed: int
) -> None:
    crowd = Crowd(writers, seconds, seed)
    assert crowd.contended == 0
    assert crowd.longest_wait <= longest
    assert crowd.won / seconds >= a_second
    assert crowd.conflicts / crowd.won <= conflicts


@pytest.mark.timeout(300)
def test_three_hundred_writers_that_start_at_once_are_all_served() -> None:
    crowd = Crowd(300, 30.0, seed=1)
    assert crowd.contended == 0
    assert min(map(len, crowd.won_at)) >= 2
    assert crowd.longest_wait <= 25.0


@pytest.mark.timeout(300)
def test_a_crowd_that_is_too_large_for_its_server_does_not_jam_it() -> None:
    crowd = Crowd(300, 20.0, seed=1, slower=3.0)
    assert crowd.won / 20.0 >= 10.0
    assert crowd.conflicts / crowd.won <= 10.0
