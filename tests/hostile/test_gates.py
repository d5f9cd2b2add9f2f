"""Somebody touches the blob of a gate, or the row of its epoch: nobody passes what was not opened since."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from coordinator.config import StorageConfig
from coordinator.errors import ConfigurationError, GateCorrupt, GateTimeout
from coordinator.gates.azure import GateListing, list_gates, read_gates
from coordinator.gates.gate import Gate
from coordinator.storage import Storage
from tests.support.reliability import Cell, Table

NAME = "on-sale"


@dataclass
class HostileGate:
    """A gate at epoch 3 (open, closed, open), its versions, a worker and an operator who know it, and one who does not."""

    storage: Storage
    prefix: str
    worker: Gate
    operator: Gate
    versions: list[bytes] = field(default_factory=list)
    others: list[Storage] = field(default_factory=list)

    def fresh(self) -> Gate:
        """The gate as a process sees it that has just started."""
        self.others.append(Storage(self.storage.endpoints, config=self.storage.config))
        return self.others[-1].gate(NAME)

    @property
    def blob(self):
        return self.storage.aio.blobs.get_blob_client(self.storage.config.container("gates"), NAME)

    @property
    def rows(self):
        return self.storage.aio.tables.get_table_client(self.storage.config.table("epochs"))

    async def put(self, data: bytes, metadata: dict[str, str] | None = None) -> None:
        await self.blob.upload_blob(data, overwrite=True, metadata=metadata or {})


async def delete(site: HostileGate) -> None:
    await site.blob.delete_blob()


async def restore_open(site: HostileGate) -> None:
    await site.put(site.versions[0])


async def restore_closed(site: HostileGate) -> None:
    await site.put(site.versions[1])


async def lower(site: HostileGate) -> None:
    await site.put(b'{"epoch": 1, "state": "open", "by": "script"}')


async def wipe(site: HostileGate) -> None:
    await site.blob.set_blob_metadata({})


async def empty(site: HostileGate) -> None:
    await site.put(b"")


async def text(site: HostileGate) -> None:
    await site.put(b"open!")


async def endless(site: HostileGate) -> None:
    await site.put(b'{"epoch": 9, "state": "open", "until": Infinity}')


async def huge_numbers(site: HostileGate) -> None:
    await site.put(b'{"epoch": 9, "state": "open", "not_before": 1e300}')


async def unknown_state(site: HostileGate) -> None:
    await site.put(b'{"epoch": 9, "state": "ajar"}')


async def negative(site: HostileGate) -> None:
    await site.put(b'{"epoch": -4, "state": "open"}')


async def megabytes(site: HostileGate) -> None:
    await site.put(b'{"epoch": 9, "state": "open", "by": "' + b"x" * 900_000 + b'"}')


async def deep(site: HostileGate) -> None:
    await site.put(b"[" * 16_000)


async def delete_row(site: HostileGate) -> None:
    await site.rows.delete_table()


async def lower_row(site: HostileGate) -> None:
    async for row in site.rows.list_entities():
        await site.rows.upsert_entity({**row, "epoch": "1"})


async def garbage_row(site: HostileGate) -> None:
    async for row in site.rows.list_entities():
        await site.rows.upsert_entity({**row, "epoch": "many", "nonce": 7})


Blow = Callable[[HostileGate], Awaitable[None]]
DAMAGE: dict[str, Blow] = {
    "blob emptied": empty, "blob is not JSON": text, "blob with an endless time": endless,
    "blob with a time beyond the calendar": huge_numbers, "blob with an unknown state": unknown_state,
    "blob with a negative epoch": negative, "blob of a megabyte": megabytes, "blob nested too deeply": deep,
}  # fmt: skip
BACK: dict[str, Blow] = {
    "blob deleted": delete, "older version restored (open)": restore_open,
    "older version restored (closed)": restore_closed, "epoch lowered": lower,
}  # fmt: skip
HARMLESS: dict[str, Blow] = {
    "metadata wiped": wipe, "table of epochs deleted": delete_row, "recorded epoch lowered": lower_row,
    "recorded epoch overwritten": garbage_row,
}  # fmt: skip

REFUSED = "no worker passes, the error says to close the gate, and closing repairs it at a higher epoch"
BACK_NOW = "workers that knew the later epoch stay and report it; the next opening, by any process, gets a higher epoch and releases them"
WHATEVER = "the gate works as before; epochs keep growing"
CELLS = (
    *(Cell(fault, "gate", REFUSED) for fault in DAMAGE),
    *(Cell(fault, "gate", BACK_NOW) for fault in BACK),
    *(Cell(fault, "gate", WHATEVER) for fault in HARMLESS),
)
TABLE = Table(
    "Gates touched by somebody else",
    "An administrator or another program deletes, restores or overwrites what a gate keeps in the storage account.",
    CELLS,
    order=60,
)
ALL = DAMAGE | BACK | HARMLESS


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    async with Storage.from_connection_string(
        connection_string, config=StorageConfig(prefix=storage_prefix)
    ) as storage:
        yield storage


@pytest.fixture
async def site(storage: Storage, storage_prefix: str) -> AsyncIterator[HostileGate]:
    site = HostileGate(storage, storage_prefix, storage.gate(NAME, identity="worker"), storage.gate(NAME))
    for change in (site.operator.open, site.operator.close, site.operator.open):
        await change(by="olga")
        site.versions.append(await (await site.blob.download_blob()).readall())
    yield site
    for other in site.others:
        await other.aclose()


async def stays_out(gate: Gate) -> bool:
    """Whether this worker is kept out: by a closed gate, or by an error that names the cure."""
    try:
        await gate.wait(timeout=0.3)
    except GateTimeout:
        return True
    except GateCorrupt as error:
        return NAME in str(error) and "close the gate" in str(error)
    return False


@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_a_gate_that_somebody_touched(cell: Cell, site: HostileGate) -> None:
    await site.operator.close(by="olga")
    before = (await site.worker.read()).epoch
    assert before == 4
    await ALL[cell.fault](site)
    assert await stays_out(site.worker)
    if cell.outcome == REFUSED:
        assert await stays_out(site.fresh())
        with pytest.raises(GateCorrupt, match="close the gate to repair it"):
            await site.fresh().open(by="piet")
        assert [reading.problem != "" for reading in await read_gates(site.storage)] == [True]
        assert await list_gates(site.storage) == []
        assert (await site.fresh().close(by="piet")).epoch > before
        assert await stays_out(site.worker)
    if cell.outcome == BACK_NOW:
        assert "epoch 4" not in site.worker.problem.split(",")[0]
        assert "this process has seen 4" in site.worker.status().problem
    stranger = site.fresh()
    opened = await stranger.open(by="piet")
    assert opened.epoch > before
    release = await site.worker.wait(timeout=5)
    assert release.epoch == opened.epoch
    assert site.worker.problem == ""
    assert (await site.fresh().close(by="olga")).epoch > opened.epoch
    assert await stays_out(site.worker)


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.outcome != WHATEVER], ids=str)
async def test_a_gate_that_somebody_touches_while_workers_wait(cell: Cell, site: HostileGate) -> None:
    await site.operator.close(by="olga")
    waiting = asyncio.create_task(site.worker.wait(timeout=8))
    await asyncio.sleep(0.2)
    await ALL[cell.fault](site)
    await asyncio.sleep(2.6)
    if cell.outcome == REFUSED:
        with pytest.raises(GateCorrupt):
            await waiting
        return
    assert not waiting.done()
    opened = await site.fresh().open(by="piet")
    assert (await waiting).epoch == opened.epoch


@pytest.mark.parametrize(
    "when",
    [1e12, float("inf"), float("nan"), -1.0, 1e300, 10**400, "tomorrow", True],
    ids=lambda when: str(when)[:9] if not isinstance(when, int) else "huge",
)
async def test_a_moment_that_is_none_is_refused_and_nothing_is_stored(
    site: HostileGate, when: object
) -> None:
    await site.operator.close(by="olga")
    requests = site.storage.meter.total
    for name in ("at", "until"):
        with pytest.raises(ConfigurationError, match="seconds since 1970") as refused:
            await site.operator.open(by="olga", **{name: when})
        assert ("seconds, not milliseconds?" in str(refused.value)) == (when == 1e12)
    assert site.storage.meter.total == requests
    with pytest.raises(ConfigurationError, match="share must be above 0"):
        await site.operator.open(by="olga", share=when)
    assert (await site.fresh().read()).epoch == 4


async def test_one_damaged_gate_hides_no_other(site: HostileGate) -> None:
    other = await site.storage.gate("other").open(by="olga")
    for number, damage in enumerate(DAMAGE.values()):
        await damage(site)
        readings = await read_gates(site.storage)
        assert [(r.name, r.state is None) for r in readings] == [(NAME, True), ("other", False)], number
        assert readings[1].state == other


async def test_a_damaged_gate_is_read_once_and_again_when_it_changes(site: HostileGate) -> None:
    def reads() -> int:
        return site.storage.meter.by_operation().get("blob.GetBlob", 0)

    listing = GateListing(site.storage)
    before = reads()
    for damage in list(DAMAGE.values())[:2]:
        await damage(site)
        for _ in range(3):
            assert [reading.problem != "" for reading in await listing.read()] == [True]
    assert reads() == before + 2
    await site.fresh().close(by="olga")
    assert [(reading.problem, reading.state and reading.state.state) for reading in await listing.read()] == [
        ("", "closed")
    ]
    assert reads() == before + 2
