"""One object used by tasks of an event loop and by threads at the same time, while answers are slow or lost."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from coordinator import Storage, Term
from coordinator.backoff import Backoff, retry_blocking
from coordinator.config import StorageConfig
from coordinator.errors import KennelError
from coordinator.sequences.ledger import open_book
from coordinator.testing.faults import DROP_ANSWER, RESET_AFTER, FaultProxy, delayed

EACH = 3
SLOW = (delayed(0.05), delayed(0.1), delayed(0.3), DROP_ANSWER, RESET_AFTER)
PATIENCE = 120.0


@pytest.fixture
async def slow(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    with FaultProxy(connection_string) as proxy:
        proxy.at_random(0.3, seed=random.randrange(10**6), faults=SLOW)
        config = StorageConfig(prefix=storage_prefix)
        async with Storage.from_connection_string(proxy.connection_string, config=config) as storage:
            yield storage
            proxy.heal()
            await asyncio.to_thread(storage.close)


async def side_by_side(task: Callable[[], object], thread: Callable[[], object]) -> None:
    """`EACH` tasks and `EACH` threads; fails if one of them is stuck."""
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(
            *(task() for _ in range(EACH)),  # type: ignore[arg-type]
            *(asyncio.to_thread(thread) for _ in range(EACH)),
        )


@pytest.mark.parametrize("places", [1, 2])
async def test_a_mutex_and_a_semaphore_admit_no_more_than_they_may(slow: Storage, places: int) -> None:
    lock = slow.mutex("stock-count") if places == 1 else slow.semaphore("stock-count", places)
    guard, inside, entered = threading.Lock(), 0, 0

    def enter(term: Term) -> None:
        nonlocal inside, entered
        with guard:
            inside, entered = inside + 1, entered + 1
            assert inside <= places
            assert term.held

    def leave() -> None:
        nonlocal inside
        with guard:
            inside -= 1

    async def task() -> None:
        for _ in range(2):
            async with lock.hold() as term:
                enter(term)
                await asyncio.sleep(0.05)
                leave()

    def thread() -> None:
        for _ in range(2):
            with lock.hold_blocking(PATIENCE) as term:
                enter(term)
                threading.Event().wait(0.05)
                leave()

    await side_by_side(task, thread)
    assert (inside, entered) == (0, 4 * EACH)


async def test_an_election_runs_once_in_an_object_whoever_asks(slow: Storage) -> None:
    election = slow.election("month-end")
    refused, leading, most, epochs = 0, 0, 0, []
    guard = threading.Lock()

    async def lead(term: Term) -> int:
        nonlocal leading, most
        leading += 1
        most = max(most, leading)
        epochs.append(term.epoch)
        await asyncio.sleep(0.3)
        leading -= 1
        return term.epoch

    def note() -> None:
        nonlocal refused
        with guard:
            refused += 1

    async def task() -> None:
        try:
            await election.run(lead)
        except KennelError:
            note()

    def thread() -> None:
        election.step_down()
        try:
            election.run_blocking(lead)
        except KennelError:
            note()

    await side_by_side(task, thread)
    assert most == 1
    assert epochs == sorted(set(epochs))
    assert refused >= 1
    assert len(epochs) + refused >= 2 * EACH


async def test_a_gate_lets_all_pass_once_it_is_open_and_none_before(slow: Storage) -> None:
    gate, is_open, epochs = slow.gate("start"), threading.Event(), list[int]()

    def note(epoch: int) -> None:
        assert is_open.is_set()
        epochs.append(epoch)

    async def task() -> None:
        note((await gate.wait()).epoch)

    def thread() -> None:
        note(gate.wait_blocking(PATIENCE).epoch)

    waiting = asyncio.ensure_future(side_by_side(task, thread))
    while gate.waiting < EACH or gate._thread_gate is None or gate._thread_gate.waiting < EACH:
        await asyncio.sleep(0.01)
    is_open.set()
    opened = await gate.open(by="olga")
    await waiting
    assert epochs == [opened.epoch] * (2 * EACH)


async def test_a_generator_gives_each_number_once(slow: Storage) -> None:
    ids, numbers = slow.sequence("orders", range_size=20, max_range_size=20), list[int]()

    async def task() -> None:
        for size in (1, 7, 1, 50, 1):
            numbers.extend([await ids.next_id_async()] if size == 1 else await ids.next_ids_async(size))

    def thread() -> None:
        for size in (50, 1, 1, 7, 1):
            numbers.extend([ids.next_id()] if size == 1 else ids.next_ids(size))

    await side_by_side(task, thread)
    assert len(numbers) == len(set(numbers)) == 2 * EACH * 60
    await ids.aclose()
    report = await asyncio.to_thread(retry_blocking, open_book(slow, "orders").verify, backoff=Backoff())
    assert report.is_ok
