"""Somebody touches the blob of a lease, or the rows beside it, while a leader leads: two never lead, no epoch comes twice."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from azure.storage.blob.aio import BlobLeaseClient

from coordinator.config import StorageConfig
from coordinator.errors import LeadershipLost
from coordinator.leadership.azure import list_leaders, list_terms
from coordinator.leadership.fencing import write_fenced
from coordinator.leadership.term import Term
from coordinator.storage import Storage
from coordinator.testing.azurite import Azurite
from tests.support.reliability import Cell, Table

BACK = "the next one waits until the former term has certainly ended (one lease), then begins above every used epoch; late writes of the former holder are refused by their epoch"
NOTHING = "the holder goes on, and the next one gets a higher epoch"


@dataclass
class Scene:
    """An account of its own: a first holder at epoch 3, and what became of it and of the second."""

    storage: Storage
    other: Storage
    subject: str
    terms: list[Term] = field(default_factory=list)
    overlapped: bool = False
    refused: bool = False

    @property
    def name(self) -> str:
        return "books.0" if self.subject == "semaphore" else "books"

    @property
    def blob(self):
        return self.storage.aio.blobs.get_blob_client(self.storage.config.container("leases"), self.name)

    def table(self, kind: str):
        return self.storage.aio.tables.get_table_client(self.storage.config.table(kind))

    async def freed(self) -> None:
        """The service lets nobody touch a leased blob: an administrator breaks the lease first."""
        await BlobLeaseClient(self.blob).break_lease(lease_break_period=0)


async def delete(scene: Scene) -> None:
    await scene.freed()
    await scene.blob.delete_blob()


async def delete_all(scene: Scene) -> None:
    await scene.storage.aio.blobs.delete_container(scene.storage.config.container("leases"))


async def wipe(scene: Scene) -> None:
    await scene.freed()
    await scene.blob.set_blob_metadata({})


async def lower(scene: Scene) -> None:
    await scene.freed()
    now = (await scene.blob.get_blob_properties()).metadata
    await scene.blob.set_blob_metadata({**now, "epoch": "1"})


async def garbage(scene: Scene) -> None:
    await scene.freed()
    await scene.blob.set_blob_metadata({"epoch": "abc", "since": "inf", "holder": "%00", "renew": "nan"})


async def restore(scene: Scene) -> None:
    await scene.freed()
    old = {"epoch": "1", "holder": "first", "since": "1700000000.000", "nonce": "0" * 32}
    await scene.blob.upload_blob(b"", overwrite=True, metadata=old)


async def beyond(scene: Scene) -> None:
    await scene.freed()
    await scene.blob.set_blob_metadata({"epoch": "9" * 40})


async def lose_rows(scene: Scene) -> None:
    for kind in ("terms", "epochs"):
        with contextlib.suppress(Exception):
            await scene.table(kind).delete_table()


async def damage_rows(scene: Scene) -> None:
    for kind in ("terms", "epochs"):
        with contextlib.suppress(Exception):
            async for row in scene.table(kind).list_entities():
                await scene.table(kind).upsert_entity({**row, "epoch": "many", "since": "never", "nonce": 3})


async def damage_standby(scene: Scene) -> None:
    blobs = scene.storage.aio.blobs
    standby = blobs.get_blob_client(scene.storage.config.container("leases"), f"{scene.name}.standby")
    await standby.upload_blob(b"?", overwrite=True, metadata={"lease": "not-an-id", "standby": "x"})


Blow = Callable[[Scene], Awaitable[None]]
BLOWS: dict[str, tuple[Blow, str]] = {
    "lease blob deleted": (delete, BACK),
    "container of leases deleted": (delete_all, BACK),
    "metadata wiped": (wipe, BACK),
    "epoch lowered": (lower, BACK),
    "metadata overwritten with garbage": (garbage, BACK),
    "older version restored": (restore, BACK),
    "epoch beyond all bounds": (beyond, BACK),
    "recorded epochs deleted": (lose_rows, NOTHING),
    "recorded epochs overwritten": (damage_rows, NOTHING),
    "nomination overwritten": (damage_standby, NOTHING),
}
SUBJECTS = ("election", "mutex", "semaphore")
CELLS = tuple(Cell(fault, subject, outcome) for fault, (_, outcome) in BLOWS.items() for subject in SUBJECTS)
TABLE = Table(
    "Leases touched by somebody else",
    "An administrator or another program breaks a lease and deletes, restores or overwrites what is kept with it, while a leader "
    "leads or a lock is held.",
    CELLS,
    order=61,
)


async def hold(scene: Scene, storage: Storage, until: asyncio.Event) -> None:
    """Lead, or hold the lock, until told to stop or until it is lost."""

    async def inside(term: Term) -> None:
        scene.overlapped |= any(each.held for each in scene.terms)
        scene.terms.append(term)
        await until.wait()

    match scene.subject:
        case "election":
            await storage.election("books").run(inside)
        case "mutex":
            async with storage.mutex("books").hold() as term:
                await inside(term)
        case _:
            async with storage.semaphore("books", 1).hold() as term:
                await inside(term)


async def played(azurite: Azurite, prefix: str, cell: Cell) -> Scene:
    async with (
        Storage.from_connection_string(
            azurite.connection_string, config=StorageConfig(prefix=prefix)
        ) as first,
        Storage.from_connection_string(
            azurite.connection_string, config=StorageConfig(prefix=prefix)
        ) as second,
    ):
        scene = Scene(first, second, cell.subject)
        done = asyncio.Event()
        done.set()
        for _ in range(2):
            await hold(scene, first, done)
        stop = asyncio.Event()
        leading = asyncio.create_task(hold(scene, first, stop))
        while len(scene.terms) < 3:
            await asyncio.sleep(0.05)
        await BLOWS[cell.fault][0](scene)
        await list_leaders(first)
        await list_terms(first, "books")
        if cell.outcome == NOTHING:
            await asyncio.sleep(1)
            assert scene.terms[-1].held
            stop.set()
            await leading
        following = asyncio.create_task(hold(scene, second, done))
        try:
            async with asyncio.timeout(60):
                await following
        finally:
            leading.cancel()
            await asyncio.gather(leading, following, return_exceptions=True)
        await write_fence(scene)
        return scene


async def write_fence(scene: Scene) -> None:
    """The newest writes; then a write that the third term had sent arrives, after all."""
    old, new = scene.terms[2], scene.terms[3]
    client = scene.storage.aio.blobs
    await client.create_container(f"{scene.storage.config.prefix}data")
    for term in (new, old):
        term._ended, term._stopping, term._deadline = (
            "",
            "",
            float("inf"),
        )  # as if its request were on the way
    await write_fenced(scene.storage, new, f"{scene.storage.config.prefix}data", "report", b"new")
    try:
        await write_fenced(scene.storage, old, f"{scene.storage.config.prefix}data", "report", b"old")
    except LeadershipLost:
        scene.refused = True


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plays(azurite: Azurite) -> AsyncIterator[dict[str, Scene | BaseException]]:
    """All at the same time, each in containers and tables of its own: most of each is waiting for a lease."""
    run = secrets.token_hex(3)
    results = await asyncio.gather(
        *(played(azurite, f"h{run}{number}-", cell) for number, cell in enumerate(CELLS)),
        return_exceptions=True,
    )
    yield dict(zip(map(str, CELLS), results, strict=True))


pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_a_lease_that_somebody_touched(cell: Cell, plays: dict[str, Scene | BaseException]) -> None:
    scene = plays[str(cell)]
    if isinstance(scene, BaseException):
        raise scene
    epochs = [term.epoch for term in scene.terms]
    assert epochs == sorted(set(epochs)), "an epoch came twice"
    assert len(epochs) >= 4
    assert not scene.overlapped, "two held it"
    assert scene.refused, "a late write of the former holder was taken"
