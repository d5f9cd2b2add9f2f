"""Elections in blob leases."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from azure.core import MatchConditions
from azure.storage.blob.aio import BlobClient, BlobLeaseClient

from coordinator.bounds import MAX_COUNT, MAX_SHORT, is_moment, is_storable, one_line
from coordinator.bus import Hint
from coordinator.creating import in_container
from coordinator.errors import AlreadyExists, LeaseHeld, LeaseNotHeld, NotFound, PreconditionFailed
from coordinator.leadership.azure_terms import TableTermLog
from coordinator.leadership.election import Election
from coordinator.leadership.lease import LeaderInfo, Nominee
from coordinator.leadership.mutex import BlobDistributedMutex
from coordinator.leadership.semaphore import BlobDistributedSemaphore
from coordinator.leadership.terms import TermRecord
from coordinator.offset import parse_date
from coordinator.service_errors import translated

if TYPE_CHECKING:
    from coordinator.storage import Storage


# Beside the leased blob, because only the leader may write that. Names of elections have no dot.
_STANDBY = ".standby"


class BlobLeaseStore:
    """One election in the blob `{prefix}leases/{name}`: empty, leased, with the record in its metadata."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.name = name
        self._storage = storage
        self._container = storage.config.container("leases")

    async def acquire(self, lease_id: str, lease_seconds: int) -> None:
        lease = self._lease(lease_id)
        try:
            with translated("acquire the lease of", self.name):
                await lease.acquire(lease_duration=lease_seconds)
        except NotFound:
            await self._create()
            with translated("acquire the lease of", self.name):
                await lease.acquire(lease_duration=lease_seconds)

    async def renew(self, lease_id: str) -> None:
        with translated("renew the lease of", self.name):
            await self._lease(lease_id).renew()

    async def change(self, lease_id: str, successor_id: str) -> None:
        _refuse_empty(successor_id)
        with translated("hand over the lease of", self.name):
            await self._lease(lease_id).change(successor_id)

    async def release(self, lease_id: str, *, etag: str = "") -> None:
        with translated("release the lease of", self.name):
            await self._lease(lease_id).release(**_unchanged_since(etag))

    async def break_now(self) -> None:
        try:
            with translated("break the lease of", self.name):
                await BlobLeaseClient(self._blob()).break_lease(lease_break_period=0)
        except LeaseNotHeld:
            return

    async def read(self) -> LeaderInfo:
        dates: list[float | None] = []

        def note(response: Any) -> None:
            dates.append(parse_date(response.http_response.headers.get("Date")))

        with translated("read the leader of", self.name):
            properties = await self._blob().get_blob_properties(raw_response_hook=note)
        return _info(self.name, properties, dates[-1] if dates else None)

    async def write(self, info: LeaderInfo, *, lease_id: str = "", etag: str = "") -> str:
        metadata = {
            "holder": quote(info.holder),
            "epoch": str(info.epoch),
            "since": f"{info.since:.3f}",
            "nonce": info.nonce,
        }
        lease: dict[str, Any] = {"lease": lease_id} if lease_id else {}
        with translated("write the leader of", self.name):
            written = await self._blob().set_blob_metadata(metadata, **lease, **_unchanged_since(etag))
        return str(written["etag"])

    async def nominate(self, nominee: Nominee) -> None:
        with translated("nominate a successor for", self.name):
            await self._blob(_STANDBY).upload_blob(
                b"", overwrite=True, metadata={"standby": quote(nominee.identity), "lease": nominee.lease_id}
            )

    async def nominee(self) -> Nominee | None:
        try:
            with translated("read the successor of", self.name):
                properties = await self._blob(_STANDBY).get_blob_properties()
        except NotFound:
            return None
        metadata = properties.metadata or {}
        if not metadata.get("lease"):
            return None
        return Nominee(unquote(metadata.get("standby", "")), metadata["lease"])

    async def _create(self) -> None:
        async def upload() -> None:
            with translated("create the lease blob of", self.name):
                await self._blob().upload_blob(b"")

        with suppress(AlreadyExists, LeaseHeld):  # another candidate made it, and may lead already
            await in_container(self._storage, self._container, upload)

    def _blob(self, suffix: str = "") -> BlobClient:
        return self._storage.aio.blobs.get_blob_client(self._container, self.name + suffix)

    def _lease(self, lease_id: str) -> BlobLeaseClient:
        return BlobLeaseClient(self._blob(), lease_id=_refuse_empty(lease_id))


def make_election(storage: Storage, name: str, *, identity: str, **options: Any) -> Election:
    """The election of that name; see `Election` for the options."""
    options.setdefault("history", TableTermLog(storage))
    return Election(
        BlobLeaseStore(storage, name),
        identity=identity,
        bus=lambda: storage.bus,
        clock=storage.clock,
        **options,
    )


def make_mutex(storage: Storage, name: str, *, identity: str, **options: Any) -> BlobDistributedMutex:
    """The mutex of that name; see `BlobDistributedMutex` for the options."""
    return BlobDistributedMutex(
        BlobLeaseStore(storage, name),
        identity=identity,
        bus=lambda: storage.bus,
        clock=storage.clock,
        **options,
    )


def make_semaphore(
    storage: Storage, name: str, places: int, *, identity: str, **options: Any
) -> BlobDistributedSemaphore:
    """The semaphore of that name and number of places; see `BlobDistributedSemaphore` for the options."""
    return BlobDistributedSemaphore(
        name,
        [BlobLeaseStore(storage, f"{name}.{number}") for number in range(places)],
        lambda: list_leaders(storage, prefix=f"{name}."),
        identity=identity,
        bus=lambda: storage.bus,
        clock=storage.clock,
        **options,
    )


async def list_leaders(storage: Storage, *, prefix: str = "") -> list[LeaderInfo]:
    """All elections, mutexes and places of semaphores, by name; one request for up to 5,000 of them."""
    container = storage.config.container("leases")
    found: list[LeaderInfo] = []
    try:
        with translated("list the leaders in", container):
            client = storage.aio.blobs.get_container_client(container)
            async for blob in client.list_blobs(name_starts_with=prefix or None, include=["metadata"]):
                if not blob.name.endswith(_STANDBY):
                    found.append(_listed(blob.name, blob))
    except NotFound:
        return []
    return sorted(found, key=lambda info: info.name)


async def break_lease(storage: Storage, name: str, by: str) -> LeaderInfo:
    """Take the lease from whoever has it, and raise the epoch, so that fenced writes of the old leader fail at once.

    Does not stop the old leader from acting unfenced until its next renewal, a third of a lease later at most.
    `by` is recorded as the ender. Raises `NotFound` if nobody ever led under that name.
    """
    store = BlobLeaseStore(storage, name)
    before = await store.read()
    await store.break_now()
    broken = LeaderInfo(
        name, f"broken by {by}", before.epoch + 1, storage.clock.time(), nonce=uuid.uuid4().hex
    )
    with suppress(LeaseHeld, PreconditionFailed):  # a successor was faster, and raised the epoch itself
        await store.write(broken, etag=before.etag)
    await storage.bus.publish(Hint(topic=f"election:{name}", epoch=broken.epoch))
    record = TermRecord(name, before.epoch, before.holder, before.since, broken.since, broken.holder)
    await TableTermLog(storage).ended(record)
    return await store.read()


def _listed(name: str, properties: Any) -> LeaderInfo:
    """As `_info`; what cannot be read costs its own row."""
    try:
        info = _info(name, properties, None)
        if not 0 <= info.epoch <= MAX_COUNT or not is_moment(info.since):
            raise ValueError("its epoch or the moment it began is out of bounds")
        if len(info.holder) > MAX_SHORT or not is_storable(info.holder):
            raise ValueError("its holder is no name")
    except (ValueError, OverflowError) as error:
        return LeaderInfo(
            name,
            lease_state=str(properties.lease.state or "available"),
            problem=f"unreadable: {one_line(str(error))}",
        )
    return info


def _info(name: str, properties: Any, date: float | None) -> LeaderInfo:
    metadata = properties.metadata or {}
    return LeaderInfo(
        name=name,
        holder=unquote(metadata.get("holder", "")),
        epoch=int(metadata.get("epoch", "0")),
        since=float(metadata.get("since", "0")),
        nonce=metadata.get("nonce", ""),
        lease_state=str(properties.lease.state or "available"),
        etag=str(properties.etag),
        date=date,
    )


def _unchanged_since(etag: str) -> dict[str, Any]:
    return {"etag": etag, "match_condition": MatchConditions.IfNotModified} if etag else {}


def _refuse_empty(lease_id: str) -> str:
    if not lease_id:
        raise ValueError("an empty lease id would make the request unconditional")
    return lease_id
