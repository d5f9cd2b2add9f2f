"""What every store of gates and flags promises, in memory and on Azurite alike."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coordinator import Storage
from coordinator.config import StorageConfig
from coordinator.errors import AlreadyExists, PreconditionFailed
from coordinator.gates.azure import BlobGateStore, list_gates
from coordinator.gates.gate import GateStore
from coordinator.gates.releases import GlobalFlag
from coordinator.gates.state import GateState
from coordinator.testing.gates import MemoryFlag, MemoryGateStore

CONFLICT = (PreconditionFailed, AlreadyExists)
OPEN = GateState(
    name="east-gate", epoch=1, state="open", changed_at=5.0, by="olga", reason="schön ☂", recent=("n",)
)


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    async with Storage.from_connection_string(
        connection_string, config=StorageConfig(prefix=storage_prefix)
    ) as storage:
        yield storage


@pytest.fixture(params=["memory", "azurite"])
def store(request: pytest.FixtureRequest) -> GateStore:
    if request.param == "memory":
        return MemoryGateStore("east-gate")
    return BlobGateStore(request.getfixturevalue("storage"), "east-gate")


@pytest.fixture(params=["memory", "azurite"])
def flag(request: pytest.FixtureRequest) -> GlobalFlag:
    if request.param == "memory":
        return MemoryFlag()
    storage: Storage = request.getfixturevalue("storage")
    return storage.flag("go-ahead")


async def test_a_gate_nobody_made_is_closed_at_epoch_0(store: GateStore) -> None:
    answer = await store.read("")
    assert (answer.state, answer.etag) == (GateState(name="east-gate"), "")


async def test_what_is_written_is_read(store: GateStore) -> None:
    etag = await store.write(OPEN, "")
    answer = await store.read("")
    assert (answer.state, answer.etag) == (OPEN, etag)


async def test_an_unchanged_gate_is_not_sent_again(store: GateStore) -> None:
    etag = await store.write(OPEN, "")
    answer = await store.read(etag)
    assert (answer.state, answer.etag) == (None, etag)


async def test_a_changed_gate_is_sent_to_whoever_knows_the_old_one(store: GateStore) -> None:
    old = await store.write(OPEN, "")
    closed = GateState(name="east-gate", epoch=2, by="olga")
    new = await store.write(closed, old)
    answer = await store.read(old)
    assert (answer.state, answer.etag) == (closed, new)


async def test_a_write_on_an_old_version_is_refused(store: GateStore) -> None:
    old = await store.write(OPEN, "")
    await store.write(GateState(name="east-gate", epoch=2), old)
    with pytest.raises(CONFLICT):
        await store.write(GateState(name="east-gate", epoch=3), old)
    assert (await store.read("")).state == GateState(name="east-gate", epoch=2)


async def test_a_gate_is_made_once(store: GateStore) -> None:
    await store.write(OPEN, "")
    with pytest.raises(CONFLICT):
        await store.write(OPEN, "")


async def test_every_answer_tells_the_time(store: GateStore) -> None:
    etag = await store.write(OPEN, "")
    assert (await store.read("")).date is not None
    assert (await store.read(etag)).date is not None


async def test_a_flag_is_clear_until_set_and_clear_again_after(flag: GlobalFlag) -> None:
    seen = [await flag.get_flag()]
    for value in (True, True, False, False, True):
        await flag.set_flag(value)
        seen.append(await flag.get_flag())
    assert seen == [False, True, True, False, False, True]


async def test_all_gates_are_listed_with_one_request(storage: Storage) -> None:
    await storage.gate("north-gate").open(by="olga", reason="größer")
    await storage.gate("south-gate").open(by="olga", share=0.25)
    await storage.gate("south-gate").close(by="piet")
    before = storage.meter.total
    gates = await list_gates(storage)
    assert storage.meter.total - before == 1
    assert [(gate.name, gate.state, gate.epoch, gate.by) for gate in gates] == [
        ("north-gate", "open", 1, "olga"),
        ("south-gate", "closed", 2, "piet"),
    ]


async def test_no_gates_are_listed_in_a_new_account(storage: Storage) -> None:
    assert await list_gates(storage) == []


async def test_a_gate_written_by_another_program_is_listed(storage: Storage) -> None:
    await storage.gate("north-gate").open(by="olga")
    blobs = storage.aio.blobs.get_container_client(storage.config.container("gates"))
    await blobs.upload_blob("west-gate", b'{"epoch": 4, "state": "open", "by": "script"}')
    assert [(gate.name, gate.epoch) for gate in await list_gates(storage)] == [
        ("north-gate", 1),
        ("west-gate", 4),
    ]
