"""The page of leaders equals storage within seconds, whatever became of a lease's blob, and whatever a worker says."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from azure.storage.blob.aio import BlobLeaseClient

from coordinator.config import StorageConfig
from coordinator.leadership.azure import BlobLeaseStore, break_lease
from coordinator.leadership.lease import LeaderInfo
from coordinator.realtime.protocol import LeadershipStatus, WorkerState
from coordinator.storage import Storage
from tests.support.dashboard import BareWorker, Dashboard, Person, until

CLAIM = "w-1 reports that it leads with epoch 2; storage does not confirm it"
Fault = Callable[[Any], Awaitable[None]]


async def _free(blob: Any) -> None:
    await BlobLeaseClient(blob).break_lease(lease_break_period=0)


async def deleted(blob: Any) -> None:
    await _free(blob)
    await blob.delete_blob()


async def restored(blob: Any) -> None:
    await _free(blob)
    await blob.upload_blob(b"", overwrite=True, metadata={"holder": "w-0", "epoch": "1", "since": "1e9"})


async def overwritten(blob: Any) -> None:
    await _free(blob)
    await blob.upload_blob(b"garbage", overwrite=True, metadata={"holder": "w-9", "epoch": "many"})


async def wiped(blob: Any) -> None:
    await _free(blob)
    await blob.set_blob_metadata({})


async def broken(blob: Any) -> None:
    await _free(blob)


@pytest.mark.parametrize(
    ("fault", "epoch", "claim", "problem"),
    [
        (deleted, 0, True, ""),
        (restored, 1, True, ""),
        (overwritten, 0, True, "unreadable: its epoch is 'many'"),
        (wiped, 0, True, ""),
        (broken, 2, False, ""),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_no_leader_is_shown_that_storage_does_not_have(
    dashboard: Dashboard, fault: Fault, epoch: int, claim: bool, problem: str
) -> None:
    name = f"books-{fault.__name__}"
    storage = Storage.from_connection_string(
        dashboard.connection_string, config=StorageConfig(prefix=dashboard.prefix)
    )
    async with storage, BareWorker(dashboard, "w-1") as worker:
        store, lease = BlobLeaseStore(storage, name), str(uuid.uuid4())
        await store.acquire(lease, 60)
        await store.write(LeaderInfo(name, "w-1", 2, time.time(), nonce=uuid.uuid4().hex), lease_id=lease)
        status = LeadershipStatus(name, "leader", 2, remaining_seconds=50.0, lease_seconds=60)
        worker.state = WorkerState(elections=(status,))
        worker.beat()
        with Person(dashboard, "olga") as olga:

            def shown() -> tuple[str, int, str]:
                rows = {row["election"]: row for row in olga.get("/tables/leaders.json").json()}
                row = rows.get(name, {})
                return row.get("holder", "?"), row.get("epoch", -1), row.get("problem", "")

            await until(lambda: shown() == ("w-1", 2, ""), seconds=20)
            await fault(storage.aio.blobs.get_blob_client(storage.config.container("leases"), name))
            await until(lambda: shown() == ("", epoch, problem), seconds=5)
            page = await asyncio.to_thread(lambda: olga.get("/leaders/").text)
            card = page.split(f'id="election-{name}"')[1].split("</article>")[0]
            assert (CLAIM in " ".join(card.split())) == claim
            assert 'href="/workers/#worker-w-1">w-1' not in card


async def test_a_lease_that_was_broken_by_an_administrator_has_no_leader(dashboard: Dashboard) -> None:
    storage = Storage.from_connection_string(
        dashboard.connection_string, config=StorageConfig(prefix=dashboard.prefix)
    )
    async with storage:
        store, lease = BlobLeaseStore(storage, "books-by-hand"), str(uuid.uuid4())
        await store.acquire(lease, 60)
        info = LeaderInfo("books-by-hand", "w-1", 2, time.time(), nonce=uuid.uuid4().hex)
        await store.write(info, lease_id=lease)
        await break_lease(storage, "books-by-hand", "adam")
        with Person(dashboard, "vera") as vera:

            def shown() -> tuple[str, int]:
                rows = {row["election"]: row for row in vera.get("/tables/leaders.json").json()}
                row = rows.get("books-by-hand", {})
                return row.get("holder", "?"), row.get("epoch", -1)

            await until(lambda: shown() == ("", 3), seconds=20)
