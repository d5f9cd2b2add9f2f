"""Sequences in processes as people start them: forked, spawned, with event loops, behind slow storage."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest

from coordinator.config import StorageConfig
from coordinator.errors import ConfigurationError, SequenceClosed, SequenceExhausted, StorageUnreachable
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.ledger import open_book
from coordinator.storage import Storage
from coordinator.testing.faults import DROP_ANSWER, RESET_BEFORE, FaultProxy, delayed


@pytest.fixture
def storage(connection_string: str, storage_prefix: str) -> Iterator[Storage]:
    made = Storage.from_connection_string(connection_string, config=StorageConfig(prefix=storage_prefix))
    yield made
    made.close()


@pytest.fixture
def proxy(connection_string: str) -> Iterator[FaultProxy]:
    with FaultProxy(connection_string) as running:
        yield running


@pytest.fixture
def behind(proxy: FaultProxy, storage_prefix: str) -> Iterator[Storage]:
    made = Storage.from_connection_string(
        proxy.connection_string, config=StorageConfig(prefix=storage_prefix)
    )
    yield made
    made.close()


def python(script: str, storage: Storage, connection_string: str) -> list[int]:
    """Run a script that prints numbers; its process must end by itself, with nothing on standard error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        env={
            **os.environ,
            "AZURE_STORAGE_CONNECTION_STRING": connection_string,
            "KENNEL_PREFIX": storage.config.prefix,
            "PYTHONPATH": os.getcwd(),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [int(number) for number in done.stdout.split()]


def test_a_forked_child_takes_a_range_of_its_own(storage: Storage, connection_string: str) -> None:
    numbers = python(
        """
        import os, sys
        from coordinator import Storage
        ids = Storage.from_env().sequence("orders", range_size=100)
        mine = [ids.next_id() for _ in range(10)]
        for _ in range(3):
            if (child := os.fork()) == 0:
                print(*[ids.next_id() for _ in range(10)], flush=True)
                ids.close()
                os._exit(0)
            os.waitpid(child, 0)
        print(*mine, *[ids.next_id() for _ in range(10)], flush=True)
        """,
        storage,
        connection_string,
    )
    assert len(numbers) == len(set(numbers)) == 50
    report = open_book(storage, "orders").verify()
    assert report.is_ok, report.summary
    owners = {grant.owner.id for grant in open_book(storage, "orders").rows() if grant.owner.id}
    assert len(owners) == 4


def test_a_fork_in_the_middle_of_a_refill_leaves_the_child_able_to_work(
    storage: Storage, connection_string: str
) -> None:
    numbers = python(
        """
        import os, threading
        from coordinator import Storage
        ids = Storage.from_env().sequence("orders", range_size=20, max_range_size=20)
        mine, stop = [], threading.Event()
        def work():
            while not stop.is_set():
                mine.append(ids.next_id())
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads: thread.start()
        for _ in range(4):
            if (child := os.fork()) == 0:
                print(*[ids.next_id() for _ in range(30)], flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads: thread.join()
        print(*mine, flush=True)
        """,
        storage,
        connection_string,
    )
    assert len(numbers) == len(set(numbers)) > 120
    assert open_book(storage, "orders").verify().is_ok


def _take_in_child(ids: UniqueIdGenerator, count: int) -> list[int]:
    return [ids.next_id() for _ in range(count)]


def _take_in_spawned(connection_string: str, prefix: str, count: int) -> list[int]:
    storage = Storage.from_connection_string(connection_string, config=StorageConfig(prefix=prefix))
    with storage.sequence("orders", range_size=10) as ids:
        numbers = [ids.next_id() for _ in range(count)]
    storage.close()
    return numbers


def test_a_pool_of_spawned_processes_never_shares_numbers(storage: Storage, connection_string: str) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        parts = pool.starmap(_take_in_spawned, [(connection_string, storage.config.prefix, 25)] * 4)
        pool.close()
        pool.join()
    numbers = [number for part in parts for number in part]
    assert len(numbers) == len(set(numbers)) == 100
    assert open_book(storage, "orders").verify().is_ok


def test_a_program_that_ends_without_closing_loses_its_tail_and_the_ledger_knows_whose_it_was(
    storage: Storage, connection_string: str
) -> None:
    numbers = python(
        """
        from coordinator import Storage
        ids = Storage.from_env().sequence("orders", range_size=100)
        print(ids.next_id(), ids.next_id())
        """,
        storage,
        connection_string,
    )
    assert numbers == [1, 2]
    book = open_book(storage, "orders")
    lost = book.holder(50)
    assert lost is not None
    assert (lost.first, lost.last, lost.outcome) == (1, 100, "granted")
    assert book.verify().open == 100


async def test_blocking_calls_in_a_running_loop_do_not_deadlock_it(storage: Storage) -> None:
    with storage.sequence("orders", range_size=5, max_range_size=5) as ids:
        assert len({ids.next_id() for _ in range(23)}) == 23


async def test_awaiting_a_number_leaves_the_loop_running(behind: Storage, proxy: FaultProxy) -> None:
    proxy.always(delayed(0.2))
    ids = behind.sequence("orders", range_size=5)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    assert await ids.next_id_async() == 1
    ticking.cancel()
    assert ticks > 5
    proxy.heal()
    await ids.aclose()


async def test_a_hundred_tasks_and_eight_threads_share_one_generator(storage: Storage) -> None:
    ids = storage.sequence("orders", range_size=50, max_range_size=50)

    async def some() -> list[int]:
        return [await ids.next_id_async() for _ in range(10)]

    in_threads = [asyncio.to_thread(_take_in_child, ids, 100) for _ in range(8)]
    parts = await asyncio.gather(*(some() for _ in range(100)), *in_threads)
    numbers = [number for part in parts for number in part]
    assert len(numbers) == len(set(numbers)) == 1800
    await ids.aclose()
    report = open_book(storage, "orders").verify()
    assert (report.is_ok, report.used) == (True, 1800)


def test_a_block_is_one_run_when_it_fits_and_says_when_not(storage: Storage, behind: Storage) -> None:
    with (
        storage.sequence("orders", range_size=100, max_range_size=100) as ids,
        behind.sequence("orders") as other,
    ):
        assert ids.next_ids(60).is_contiguous
        other.next_id()
        pieces = ids.next_ids(90)
        assert not pieces.is_contiguous or len(pieces.ranges) == 1
        assert len(set(pieces)) == 90


def test_numbers_left_are_issued_while_storage_is_down(behind: Storage, proxy: FaultProxy) -> None:
    ids = behind.sequence("orders", range_size=100, max_range_size=100, deadline_seconds=0.5)
    first = ids.next_id()
    left = ids.runway().numbers
    proxy.times(1000, RESET_BEFORE)
    numbers = [first, *(ids.next_id() for _ in range(left))]
    assert len(set(numbers)) == left + 1
    with pytest.raises(StorageUnreachable):
        ids.next_id()
    proxy.heal()
    assert ids.next_id() not in numbers
    ids.close()
    assert open_book(behind, "orders").verify().is_ok


def test_lost_answers_lose_no_number_and_repeat_none(behind: Storage, proxy: FaultProxy) -> None:
    with behind.sequence("orders", range_size=10, max_range_size=10) as ids:
        numbers = []
        for _ in range(10):
            proxy.once(DROP_ANSWER, service="blob", method="PUT")
            numbers += [ids.next_id() for _ in range(20)]
    assert sorted(numbers) == list(range(1, 201))


def test_after_an_exhausted_sequence_there_is_an_error_and_before_it_none(storage: Storage) -> None:
    with storage.sequence("orders", range_size=10, upper_bound=25) as ids:
        assert [ids.next_id() for _ in range(25)] == list(range(1, 26))
        with pytest.raises(SequenceExhausted):
            ids.next_id()


def test_a_closed_generator_refuses(storage: Storage) -> None:
    ids = storage.sequence("closed-here", range_size=10)
    ids.next_id()
    ids.close()
    ids.close()
    with pytest.raises(SequenceClosed):
        ids.next_id()
    assert not [thread for thread in threading.enumerate() if thread.name == "kennel-sequence-closed-here"]


def test_a_plain_client_beside_ours_gets_other_numbers_and_shows_as_unattributed(
    storage: Storage, connection_string: str
) -> None:
    ids = storage.sequence("orders", range_size=20, max_range_size=20)
    ours, theirs, stop = [ids.next_id()], list[int](), threading.Event()

    def plain() -> None:
        blob = storage.blocking.blobs.get_blob_client(storage.config.container("sequences"), "orders")
        from azure.core import MatchConditions
        from azure.core.exceptions import ResourceModifiedError, ServiceResponseError

        while not stop.is_set():
            try:
                answer = blob.download_blob()
                number = int(answer.readall())
            except ServiceResponseError:
                continue  # a connection that the emulator has closed after a long pause
            condition = {"etag": answer.properties.etag, "match_condition": MatchConditions.IfNotModified}
            try:
                blob.upload_blob(str(number + 7).encode(), overwrite=True, **condition)
            except ResourceModifiedError:
                continue
            theirs.extend(range(number, number + 7))
            stop.wait(0.05)

    other = threading.Thread(target=plain)
    other.start()
    while len(ours) < 300 or (len(theirs) <= 20 and other.is_alive()):
        ours.append(ids.next_id())
    stop.set()
    other.join()
    ids.close()
    assert len(theirs) > 20
    assert len(set(ours) | set(theirs)) == len(ours) + len(theirs)
    book = open_book(storage, "orders")
    report = book.verify()
    assert report.is_ok, report.summary
    assert report.unattributed == len(theirs)
    assert book.is_unattributed(theirs[5])
    assert all(book.holder(number) for number in ours[::50])


def test_a_name_has_one_generator_in_a_storage_until_it_is_closed(storage: Storage) -> None:
    ids = storage.sequence("orders", range_size=50, max_range_size=50)
    assert storage.sequence("orders") is ids
    assert storage.sequence("orders", range_size=50) is ids
    with pytest.raises(ConfigurationError, match="another range_size"):
        storage.sequence("orders", range_size=60)
    with pytest.raises(ConfigurationError, match="another blob"):
        storage.sequence("orders", blob="ordernumber.dat")
    ids.close()
    again = storage.sequence("orders", range_size=60)
    assert again is not ids
    assert again.next_id() == 1
    again.close()


def test_the_sources_own_counter_is_used_where_it_is(storage: Storage, storage_prefix: str) -> None:
    container = storage_prefix + "uniqueids"
    storage.blocking.blobs.create_container(container)
    blob = storage.blocking.blobs.get_blob_client(container, "ordernumber.dat")
    blob.upload_blob(b"5000")
    with storage.sequence("ordernumber", container=container, blob="ordernumber.dat") as ids:
        assert ids.next_id() == 5000
    assert int(blob.download_blob().readall()) > 5000
    assert open_book(storage, "ordernumber", container=container, blob="ordernumber.dat").verify().is_ok
