"""Reads that many ask for at once go out as few."""

from __future__ import annotations

import asyncio

from coordinator.errors import StorageUnreachable
from coordinator.gates.azure import SharedReads
from coordinator.gates.state import GateState
from coordinator.testing.gates import MemoryGateStore


async def test_a_thousand_who_ask_together_cost_one_request() -> None:
    store = MemoryGateStore()
    await store.write(GateState(name="test-gate", epoch=1, state="open"), "")
    reads = SharedReads(store)
    answers = await asyncio.gather(*(reads.read("") for _ in range(1000)))
    assert store.reads == 1
    assert {answer.state.epoch for answer in answers if answer.state} == {1}


async def test_nobody_gets_the_answer_to_a_request_sent_before_they_asked() -> None:
    store, go, asked = MemoryGateStore(), asyncio.Event(), asyncio.Event()
    reads = SharedReads(store)

    async def hold() -> None:
        asked.set()
        await go.wait()

    store.after_read = hold  # type: ignore[method-assign]
    early = asyncio.ensure_future(reads.read(""))
    await asked.wait()
    await store.write(GateState(name="test-gate", epoch=1, state="open"), "")
    late = [asyncio.ensure_future(reads.read("")) for _ in range(10)]
    go.set()
    assert (await early).state == GateState(name="test-gate")
    assert {(await task).state.epoch for task in late} == {1}  # type: ignore[union-attr]
    assert store.reads == 2


async def test_each_caller_is_answered_by_the_version_it_knows() -> None:
    store = MemoryGateStore()
    etag = await store.write(GateState(name="test-gate", epoch=1), "")
    reads = SharedReads(store)
    known, unknown = await asyncio.gather(reads.read(etag), reads.read(""))
    assert (known.state, unknown.state) == (None, GateState(name="test-gate", epoch=1))
    assert (await reads.read(etag)).state is None
    assert (await reads.read("")).state == GateState(name="test-gate", epoch=1)


async def test_a_caller_that_goes_away_takes_nobody_with_it() -> None:
    store = MemoryGateStore()
    reads = SharedReads(store)
    first, second = asyncio.ensure_future(reads.read("")), asyncio.ensure_future(reads.read(""))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).state == GateState(name="test-gate")


async def test_an_error_reaches_all_who_asked_and_not_those_after() -> None:
    store = MemoryGateStore()

    async def fail() -> None:
        raise StorageUnreachable("cut")

    store.before_read = fail  # type: ignore[method-assign]
    reads = SharedReads(store)
    results = await asyncio.gather(*(reads.read("") for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [StorageUnreachable] * 3
    del store.before_read
    assert (await reads.read("")).state is not None
