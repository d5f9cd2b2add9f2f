"""The fault proxy does to requests what it says, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from coordinator.config import StorageConfig
from coordinator.errors import NotFound, StorageBusy, StorageError, StorageUnreachable
from coordinator.sequences.azure import BlobCounterStore, TableLedger
from coordinator.sequences.grants import Grant, Owner
from coordinator.storage import Storage
from coordinator.testing.faults import (
    ALL_FAULTS,
    BUSY,
    BUSY_COMMITTED,
    DROP_ANSWER,
    FAILED,
    FAILED_COMMITTED,
    HANGS_AFTER,
    HANGS_BEFORE,
    RESET_AFTER,
    RESET_BEFORE,
    THROTTLED,
    TOO_MANY,
    TRUNCATED,
    Fault,
    FaultProxy,
    answer_delayed,
    delayed,
    throttled,
)


@pytest.fixture
def proxy(connection_string: str) -> Iterator[FaultProxy]:
    with FaultProxy(connection_string) as running:
        yield running


@pytest.fixture
def behind(proxy: FaultProxy, storage_prefix: str) -> Iterator[Storage]:
    storage = Storage.from_connection_string(
        proxy.connection_string, config=StorageConfig(prefix=storage_prefix, read_seconds=0.5)
    )
    yield storage
    storage.close()


def test_without_rules_blobs_queues_and_tables_work_through_it(behind: Storage, proxy: FaultProxy) -> None:
    counter, ledger = BlobCounterStore(behind, "orders"), TableLedger(behind, "orders")
    assert counter.try_optimistic_write("1", etag=None, metadata={"a": "b"})
    assert counter.get_data().data == "1"
    ledger.record([Grant(n, n, Owner("ann"), "n", 1.0) for n in range(1, 51)])
    assert sum(1 for _ in ledger.rows()) == 50
    behind.blocking.queues.create_queue("through-the-proxy").send_message("hello")
    assert proxy.applied == []
    assert proxy.requests == behind.meter.total


@pytest.mark.parametrize(
    ("fault", "error", "committed"),
    [
        (DROP_ANSWER, StorageUnreachable, True),
        (RESET_AFTER, StorageUnreachable, True),
        (RESET_BEFORE, StorageUnreachable, False),
        (BUSY, StorageBusy, False),
        (BUSY_COMMITTED, StorageBusy, True),
        (FAILED, StorageBusy, False),
        (FAILED_COMMITTED, StorageBusy, True),
        (TRUNCATED, StorageUnreachable, True),
        (THROTTLED, StorageBusy, False),
        (HANGS_BEFORE, StorageUnreachable, False),
        (HANGS_AFTER, StorageUnreachable, True),
        (answer_delayed(1.5), StorageUnreachable, True),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_each_fault_breaks_a_write_as_it_says(
    behind: Storage, proxy: FaultProxy, fault: Fault, error: type[StorageError], committed: bool
) -> None:
    store = BlobCounterStore(behind, "orders")
    etag = store.try_optimistic_write("1", etag=None, metadata={})
    proxy.once(fault, service="blob", method="PUT", path="/orders")
    with pytest.raises(error) as caught:
        store.try_optimistic_write("2", etag=etag, metadata={})
    assert caught.value.maybe_done
    assert store.get_data().data == ("2" if committed else "1")
    assert [each.fault for each in proxy.applied] == [fault]


def test_a_truncated_read_is_repeated_or_an_error_and_never_a_shorter_number(
    behind: Storage, proxy: FaultProxy
) -> None:
    store = BlobCounterStore(behind, "orders")
    store.try_optimistic_write("123456", etag=None, metadata={})
    proxy.once(TRUNCATED, service="blob", method="GET")
    assert store.get_data().data == "123456"
    proxy.times(20, TRUNCATED, service="blob", method="GET")
    with pytest.raises(StorageUnreachable):
        store.get_data()


@pytest.mark.parametrize("truncated", [1, 50], ids=["once", "again and again"])
def test_a_batch_whose_answer_was_truncated_is_sent_again_and_changes_nothing(
    behind: Storage, proxy: FaultProxy, truncated: int
) -> None:
    ledger = TableLedger(behind, "orders")
    rows = [Grant(n, n, Owner("ann"), "n", 1.0) for n in range(1, 101)]
    ledger.record(rows[:1])
    for _ in range(truncated):
        proxy.once(TRUNCATED, service="table", method="POST")
    with pytest.raises(StorageUnreachable) if truncated > 1 else nullcontext() as caught:
        ledger.record(rows)
    assert caught is None or caught.value.maybe_done
    assert list(ledger.rows()) == rows


def test_rules_are_used_up_and_skips_are_counted(behind: Storage, proxy: FaultProxy) -> None:
    store = BlobCounterStore(behind, "orders")
    store.try_optimistic_write("1", etag=None, metadata={})
    proxy.once(BUSY, method="GET", skip=1)
    store.get_data()
    with pytest.raises(StorageBusy):
        store.get_data()
    store.get_data()


def test_a_delay_only_delays(behind: Storage, proxy: FaultProxy) -> None:
    store = BlobCounterStore(behind, "orders")
    proxy.always(delayed(0.05))
    with pytest.raises(NotFound):
        store.get_data()


@pytest.mark.parametrize("fault", [delayed(1.5), answer_delayed(1.5)], ids=lambda fault: fault.name)
def test_a_late_request_acts_late_and_a_late_answer_has_acted_at_once(
    behind: Storage, proxy: FaultProxy, fault: Fault
) -> None:
    store = BlobCounterStore(behind, "orders")
    etag = store.try_optimistic_write("1", etag=None, metadata={})
    proxy.once(fault, method="PUT", path="/orders")
    with pytest.raises(StorageUnreachable):
        store.try_optimistic_write("2", etag=etag, metadata={})
    if fault.delay_seconds:
        assert store.get_data().data == "1"
        while store.get_data().data == "1":  # it still arrives, though its sender has given up
            pass
    assert store.get_data().data == "2"


@pytest.mark.parametrize("fault", [throttled(7), throttled(7, status=429)], ids=lambda fault: fault.name)
def test_throttling_names_the_wait_it_asks_for(behind: Storage, proxy: FaultProxy, fault: Fault) -> None:
    store = BlobCounterStore(behind, "orders")
    proxy.once(fault)
    with pytest.raises(StorageBusy) as caught:
        store.get_data()
    assert (caught.value.status, caught.value.retry_after_seconds) == (fault.status, 7.0)


async def test_throttling_names_its_wait_to_the_signed_requests_too(
    behind: Storage, proxy: FaultProxy
) -> None:
    queue = behind.queue("orders-in")
    await queue.create()
    proxy.once(TOO_MANY, service="queue")
    with pytest.raises(StorageBusy) as caught:
        await queue.transport.get(1, visibility_seconds=30)
    assert (caught.value.retry_after_seconds, caught.value.maybe_done) == (1.0, False)
    await behind.aclose()


def test_each_request_of_an_operation_meets_the_fault_in_turn(behind: Storage, proxy: FaultProxy) -> None:
    store = BlobCounterStore(behind, "orders")
    store.try_optimistic_write("1", etag=None, metadata={})
    met, wrong = [], []
    for turn in proxy.for_each_request(BUSY, DROP_ANSWER, path="/orders"):
        store.get_data()  # outside: passes
        with contextlib.suppress(StorageError), turn:
            etag = store.get_data().etag
            store.try_optimistic_write("2", etag=etag, metadata={})
        met.append((turn.fault, turn.number, turn.applied.method if turn.applied else ""))
        wrong.append(store.get_data().data)
        store.try_optimistic_write("1", etag=store.get_data().etag, metadata={})
    assert met[:3] == [(BUSY, 1, "GET"), (BUSY, 2, "PUT"), (BUSY, 3, "")]
    assert met[3:] == [(DROP_ANSWER, 1, "GET"), (DROP_ANSWER, 2, "PUT"), (DROP_ANSWER, 3, "")]
    assert wrong[:3] == ["1", "1", "2"]


def test_a_turn_in_which_nothing_was_run_is_an_error_and_not_an_endless_loop(proxy: FaultProxy) -> None:
    with pytest.raises(RuntimeError, match="with turn"):
        for _ in proxy.for_each_request(BUSY):
            pass


def test_the_same_seed_breaks_the_same_requests(connection_string: str) -> None:
    def broken(seed: int) -> list[tuple[int, str]]:
        with FaultProxy(connection_string) as proxy:
            proxy.at_random(0.3, seed=seed, faults=[fault for fault in ALL_FAULTS if not fault.delay_seconds])
            storage = Storage.from_connection_string(proxy.connection_string)
            store = BlobCounterStore(storage, "nothing-here")
            for _ in range(40):
                with pytest.raises(StorageError):
                    store.get_data()
            storage.close()
            return [(each.number, each.fault.name) for each in proxy.applied]

    first = broken(7)
    assert first == broken(7)
    assert first != broken(8)
