"""What every store of leases promises, in memory and on Azurite alike."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from coordinator import Storage, Term
from coordinator.azure.epochs import TableEpochs
from coordinator.config import StorageConfig
from coordinator.epochs import EpochRecord
from coordinator.errors import ConfigurationError, LeaseHeld, LeaseNotHeld, NotFound, PreconditionFailed
from coordinator.leadership.azure import (
    BlobLeaseStore,
    TableRunLog,
    TableTermLog,
    break_lease,
    list_leaders,
    list_terms,
)
from coordinator.leadership.every import RunLog
from coordinator.leadership.lease import LeaderInfo, LeaseStore, Successor
from coordinator.leadership.terms import TermLog, TermRecord
from coordinator.testing.leadership import MemoryLeaseStore, MemoryRunLog, MemoryTermLog

A, B = str(uuid.uuid4()), str(uuid.uuid4())
LEADER = LeaderInfo("month-end", "nœud 7 / ü", 3, 1_700_000_000.125, nonce="n1")


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    async with Storage.from_connection_string(
        connection_string, config=StorageConfig(prefix=storage_prefix)
    ) as storage:
        yield storage


@pytest.fixture(params=["memory", "azurite"])
def store(request: pytest.FixtureRequest) -> LeaseStore:
    if request.param == "memory":
        return MemoryLeaseStore("month-end")
    return BlobLeaseStore(request.getfixturevalue("storage"), "month-end")


async def test_nobody_leads_what_nobody_ever_led(store: LeaseStore) -> None:
    with pytest.raises(NotFound):
        await store.read()


async def test_one_candidate_gets_the_lease(store: LeaseStore) -> None:
    await store.acquire(A, 15)
    with pytest.raises(LeaseHeld):
        await store.acquire(B, 15)
    info = await store.read()
    assert (info.lease_state, info.is_held, info.epoch) == ("leased", True, 0)


async def test_acquiring_again_with_the_same_id_is_harmless(store: LeaseStore) -> None:
    await store.acquire(A, 15)
    await store.acquire(A, 15)
    await store.renew(A)


async def test_the_record_is_written_under_the_lease_and_read_by_all(store: LeaseStore) -> None:
    await store.acquire(A, 15)
    await store.write(LEADER, lease_id=A)
    info = await store.read()
    assert (info.holder, info.epoch, info.since, info.nonce) == ("nœud 7 / ü", 3, 1_700_000_000.125, "n1")
    assert info.date is not None
    await store.renew(A)


async def test_nobody_else_writes_the_record_of_a_leader(store: LeaseStore) -> None:
    await store.acquire(A, 15)
    with pytest.raises(LeaseNotHeld):
        await store.write(LEADER, lease_id=B)
    with pytest.raises(LeaseHeld):
        await store.write(LEADER)
    assert (await store.read()).epoch == 0


async def test_only_the_holder_renews_and_releases(store: LeaseStore) -> None:
    await store.acquire(A, 15)
    for call in (store.renew, store.release):
        with pytest.raises(LeaseNotHeld):
            await call(B)
    await store.renew(A)


async def test_a_released_lease_is_free_and_keeps_its_epoch(store: LeaseStore) -> None:
    """Mistake 8."""
    await store.acquire(A, 15)
    await store.write(LEADER, lease_id=A)
    await store.release(A)
    info = await store.read()
    assert (info.lease_state, info.epoch) == ("available", 3)
    await store.acquire(B, 15)
    with pytest.raises(LeaseNotHeld):
        await store.renew(A)


async def test_a_late_release_does_not_free_the_successor(store: LeaseStore) -> None:
    """Mistake 7."""
    await store.acquire(A, 15)
    await store.break_now()
    await store.acquire(B, 15)
    with pytest.raises(LeaseNotHeld):
        await store.release(A)
    await store.renew(B)


async def test_a_handed_over_lease_is_the_successors_with_no_moment_between(store: LeaseStore) -> None:
    await store.acquire(A, 15)
    await store.change(A, B)
    assert (await store.read()).is_held
    with pytest.raises(LeaseNotHeld):
        await store.renew(A)
    with pytest.raises(LeaseNotHeld):
        await store.write(LEADER, lease_id=A)
    await store.acquire(B, 15)
    await store.write(LEADER, lease_id=B)


async def test_a_release_can_be_made_conditional_on_an_unchanged_record(store: LeaseStore) -> None:
    await store.acquire(A, 15)
    etag = (await store.read()).etag
    await store.write(LEADER, lease_id=A)
    with pytest.raises(PreconditionFailed):
        await store.release(A, etag=etag)
    assert (await store.read()).is_held
    await store.release(A, etag=(await store.read()).etag)
    assert not (await store.read()).is_held


async def test_lease_operations_leave_the_etag_alone_and_writes_change_it(store: LeaseStore) -> None:
    await store.acquire(A, 15)
    etag = (await store.read()).etag
    await store.renew(A)
    assert (await store.read()).etag == etag
    await store.write(LEADER, lease_id=A)
    assert (await store.read()).etag != etag


async def test_a_write_on_an_old_record_is_refused(store: LeaseStore) -> None:
    await store.acquire(A, 15)
    await store.release(A)
    etag = (await store.read()).etag
    await store.write(LEADER, etag=etag)
    with pytest.raises(PreconditionFailed):
        await store.write(replace(LEADER, epoch=9), etag=etag)


async def test_a_broken_lease_is_free_at_once(store: LeaseStore) -> None:
    await store.acquire(A, 15)
    await store.break_now()
    await store.break_now()
    info = await store.read()
    assert (info.lease_state, info.is_held) == ("broken", False)
    with pytest.raises(LeaseNotHeld):
        await store.renew(A)
    await store.acquire(B, 15)


async def test_empty_lease_ids_are_refused(store: LeaseStore) -> None:
    await store.acquire(A, 15)
    for call in (store.renew, store.release):
        with pytest.raises(ValueError, match="unconditional"):
            await call("")
    with pytest.raises(ValueError, match="unconditional"):
        await store.change(A, "")
    with pytest.raises(ValueError, match="unconditional"):
        await store.acquire("", 15)


async def test_all_elections_are_listed_with_one_request(storage: Storage) -> None:
    for name, identity in (("month-end", "node-7"), ("sweeper", "node-2")):
        term = await storage.mutex(name, identity=identity).try_acquire()
        assert term is not None
    before = storage.meter.total
    leaders = await list_leaders(storage)
    assert storage.meter.total - before == 1
    assert [(info.name, info.holder, info.epoch, info.lease_state) for info in leaders] == [
        ("month-end", "node-7", 1, "leased"),
        ("sweeper", "node-2", 1, "leased"),
    ]


async def test_nobody_is_listed_in_a_new_account(storage: Storage) -> None:
    assert await list_leaders(storage) == []


async def test_breaking_a_lease_raises_the_epoch(storage: Storage) -> None:
    mutex = storage.mutex("month-end", identity="node-7")
    term = await mutex.acquire()
    info = await break_lease(storage, "month-end", by="olga")
    assert (info.epoch, info.is_held, info.holder) == (term.epoch + 1, False, "broken by olga")
    again = await storage.mutex("month-end", identity="node-8").try_acquire()
    assert again is not None
    assert again.epoch == term.epoch + 2
    await mutex.release()
    assert (await list_leaders(storage))[0].is_held


async def test_the_newest_nomination_counts_and_leaves_the_record_alone(store: LeaseStore) -> None:
    assert await store.nominee() is None
    await store.acquire(A, 15)
    etag = (await store.read()).etag
    await store.nominate(Successor("node-1", B))
    await store.nominate(Successor("nœud 2", A))
    assert await store.nominee() == Successor("nœud 2", A)
    assert (await store.read()).etag == etag


async def test_nominations_are_not_listed_as_elections(storage: Storage) -> None:
    await storage.mutex("month-end").try_acquire()
    await BlobLeaseStore(storage, "month-end").nominate(Successor("node-1", B))
    assert [info.name for info in await list_leaders(storage)] == ["month-end"]


@pytest.fixture(params=["memory", "azurite"])
def log(request: pytest.FixtureRequest) -> TermLog:
    if request.param == "memory":
        return MemoryTermLog()
    return TableTermLog(request.getfixturevalue("storage"))


def a_term(epoch: int, holder: str = "node-7") -> TermRecord:
    return TermRecord("month-end", epoch, holder, 1000.0 + epoch)


async def test_terms_are_listed_newest_first(log: TermLog) -> None:
    assert await log.newest("month-end", 5) == []
    for epoch in (1, 2, 10):
        await log.began(a_term(epoch))
        await log.ended(replace(a_term(epoch), ended=1005.5 + epoch, how="finished"))
    assert [(term.epoch, term.ended, term.how) for term in await log.newest("month-end", 2)] == [
        (10, 1015.5, "finished"),
        (2, 1007.5, "finished"),
    ]
    assert await log.newest("other", 5) == []


async def test_a_successor_records_the_end_of_a_leader_that_died(log: TermLog) -> None:
    await log.began(a_term(1))
    await log.began(a_term(2))
    assert await log.newest("month-end", 2) == [
        a_term(2),
        replace(a_term(1), ended=1002.0, how="its lease ran out"),
    ]


async def test_the_first_word_on_the_end_of_a_term_stands(log: TermLog) -> None:
    await log.began(a_term(1))
    await log.ended(replace(a_term(1), ended=1001.5, how="finished"))
    await log.began(a_term(2))
    await log.ended(replace(a_term(1), ended=1009.0, how="late"))
    assert (await log.newest("month-end", 2))[1] == replace(a_term(1), ended=1001.5, how="finished")


@pytest.fixture(params=["memory", "azurite"])
def runs(request: pytest.FixtureRequest) -> RunLog:
    if request.param == "memory":
        return MemoryRunLog()
    return TableRunLog(request.getfixturevalue("storage"), "nightly")


async def test_a_run_is_claimed_once(runs: RunLog) -> None:
    assert await runs.newest("tidy") == (None, "")
    await runs.claim("tidy", 300.0, "", "node-1")
    with pytest.raises(PreconditionFailed):
        await runs.claim("tidy", 300.0, "", "node-2")
    scheduled, version = await runs.newest("tidy")
    assert scheduled == 300.0
    await runs.claim("tidy", 600.0, version, "node-1")
    with pytest.raises(PreconditionFailed):
        await runs.claim("tidy", 600.0, version, "node-2")
    assert (await runs.newest("tidy"))[0] == 600.0
    assert await runs.newest("sweep") == (None, "")


async def test_elections_of_one_name_in_two_containers_claim_runs_of_their_own(storage: Storage) -> None:
    here = TableRunLog(storage, "nightly")
    there = TableRunLog(storage, "nightly", container="elsewhere")
    await here.claim("tidy", 300.0, "", "node-1")
    assert await there.newest("tidy") == (None, "")
    await there.claim("tidy", 300.0, "", "node-2")
    again = TableRunLog(storage, "nightly", container=storage.config.container("leases"), blob="nightly")
    assert (await again.newest("tidy"))[0] == 300.0


async def test_a_leaders_own_word_replaces_its_successors_guess_but_not_the_moment(log: TermLog) -> None:
    await log.began(a_term(1))
    await log.began(a_term(2))
    await log.ended(replace(a_term(1), ended=1009.0, how="lost: the event loop stalled"))
    await log.ended(replace(a_term(1), ended=1001.0, how="and again"))
    assert (await log.newest("month-end", 2))[1] == replace(
        a_term(1), ended=1002.0, how="lost: the event loop stalled"
    )


async def test_a_semaphore_admits_n_and_no_more(storage: Storage) -> None:
    held = [storage.semaphore("importers", 3) for _ in range(5)]
    terms = [await semaphore.try_acquire() for semaphore in held]
    names = {term.name for term in terms if term is not None}
    assert names == {"importers.0", "importers.1", "importers.2"}
    assert terms[3:] == [None, None]
    await held[1].release()
    async with asyncio.timeout(5), held[4]:
        pass
    for semaphore in held:
        await semaphore.release()


async def test_a_semaphore_without_places_is_refused(storage: Storage) -> None:
    with pytest.raises(ConfigurationError, match="at least one place"):
        storage.semaphore("importers", 0)


PLACES = ({}, {"container": "kennel-elsewhere"}, {"blob": "jobs/My #1 Lock"}, {"blob": "x" * 1000})


async def test_locks_of_one_name_in_several_places_count_their_epochs_apart(storage: Storage) -> None:
    where = [{key: value.replace("kennel-", storage.config.prefix) for key, value in place.items()} for place in PLACES]  # fmt: skip
    async with asyncio.timeout(12):  # an epoch that another lock has used would cost a lease
        for round_number in (1, 2, 3):
            for place in where[round_number - 1 :]:
                mutex = storage.mutex("stock-count", **place)  # type: ignore[arg-type]
                assert (await mutex.acquire()).epoch == round_number
                await mutex.release()


async def test_elections_of_one_name_in_several_places_have_terms_of_their_own(storage: Storage) -> None:
    async def task(term: Term) -> int:
        return term.epoch

    elsewhere = f"{storage.config.prefix}elsewhere"
    async with asyncio.timeout(12):
        for container, epoch in ((elsewhere, 1), ("", 1), (elsewhere, 2), ("", 2)):
            assert await storage.election("month-end", container=container).run(task) == epoch
    assert [term.epoch for term in await list_terms(storage, "month-end")] == [2, 1]
    kept = await TableTermLog(storage, f"{elsewhere} month-end").newest("month-end", 5)
    assert [(term.name, term.epoch, term.how) for term in kept] == [
        ("month-end", 2, "finished"),
        ("month-end", 1, "finished"),
    ]


async def test_what_was_recorded_under_the_name_alone_counts_as_used(storage: Storage) -> None:
    assert await TableEpochs(storage, "lock stock-count").claim(EpochRecord("stock-count", 7, nonce="a")) == 0
    for epochs, answers in (
        ([7, 8, 8], [7, 0, 0]),
        ([8, 9], [8, 0]),
    ):  # the same nonce again; another process
        moved = TableEpochs(storage, "lock elsewhere stock-count", former_key="lock stock-count")
        nonce = secrets.token_hex(4)
        assert [
            await moved.claim(EpochRecord("stock-count", each, nonce=nonce)) for each in epochs
        ] == answers
    assert (
        await TableEpochs(storage, "lock stock-count").claim(EpochRecord("stock-count", 50, nonce="c")) == 0
    )
    moved = TableEpochs(storage, "lock elsewhere stock-count", former_key="lock stock-count")
    assert await moved.claim(EpochRecord("stock-count", 10, nonce="d")) == 0  # it has a row of its own by now
    terms = TableTermLog(storage)
    assert await terms.claim(EpochRecord("month-end", 7, nonce="a")) == 0
    elsewhere = TableTermLog(storage, "elsewhere month-end")
    assert [await elsewhere.claim(EpochRecord("month-end", epoch, nonce="b")) for epoch in (7, 8, 8)] == [
        7,
        0,
        0,
    ]


async def test_a_semaphore_may_be_kept_elsewhere(storage: Storage) -> None:
    where = {"container": f"{storage.config.prefix}elsewhere", "blob": "licences/Photo"}
    held = [storage.semaphore("importers", 2, **where) for _ in range(3)]  # type: ignore[arg-type]
    terms = [await semaphore.try_acquire() for semaphore in held]
    assert {term.name for term in terms if term is not None} == {"importers.0", "importers.1"}
    assert terms[2] is None
    listed = await list_leaders(storage, container=where["container"])
    assert [(info.name, info.is_held) for info in listed] == [
        ("licences/Photo.0", True),
        ("licences/Photo.1", True),
    ]
    assert await storage.semaphore("importers", 2).try_acquire() is not None
    await held[0].release()
    assert await held[2].try_acquire() is not None
