"""Elections in blob leases."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from urllib.parse import quote, unquote

from azure.core import MatchConditions
from azure.storage.blob.aio import BlobClient, BlobLeaseClient

from coordinator.azure_epochs import TableEpochs
from coordinator.bounds import LAST_MOMENT, one_line
from coordinator.bus import Hint
from coordinator.config import check_blob, check_container
from coordinator.creating import in_container
from coordinator.errors import AlreadyExists, LeaseHeld, LeaseNotHeld, NotFound, PreconditionFailed
from coordinator.leadership.azure_terms import TableTermLog
from coordinator.leadership.election import Election, Health, Role
from coordinator.leadership.lease import LeaderInfo, Nominee
from coordinator.leadership.mutex import BlobDistributedMutex
from coordinator.leadership.semaphore import BlobDistributedSemaphore
from coordinator.leadership.term import LeaseConfig, Term
from coordinator.leadership.terms import TermLog, TermRecord
from coordinator.offset import parse_date
from coordinator.service_errors import translated

if TYPE_CHECKING:
    from coordinator.storage import Storage


# Beside the leased blob, because only the leader may write that. Names of elections have no dot.
_STANDBY = ".standby"
MAX_EPOCH = 10**11
"""The largest epoch that the table of terms has a key for."""


class BlobLeaseStore:
    """One election in the blob `{prefix}leases/{name}`: empty, leased, with the record in its metadata.

    `container` and `blob` name another place.
    """

    def __init__(self, storage: Storage, name: str, *, container: str = "", blob: str = "") -> None:
        self.name = name
        self._storage = storage
        self._container = check_container(container) or storage.config.container("leases")
        self._blob_name = check_blob(blob) or name

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
            "lease": f"{info.lease_seconds:g}",
            "renew": f"{info.renew_seconds:.3f}",
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
        try:
            lease_id = str(uuid.UUID(metadata.get("lease", "")))
        except ValueError:
            return None  # nobody, or somebody wrote something else there
        return Nominee(one_line(unquote(metadata.get("standby", ""))), lease_id)

    async def _create(self) -> None:
        async def upload() -> None:
            with translated("create the lease blob of", self.name):
                await self._blob().upload_blob(b"")

        with suppress(AlreadyExists, LeaseHeld):  # another candidate made it, and may lead already
            await in_container(self._storage, self._container, upload)

    def _blob(self, suffix: str = "") -> BlobClient:
        return self._storage.aio.blobs.get_blob_client(self._container, self._blob_name + suffix)

    def _lease(self, lease_id: str) -> BlobLeaseClient:
        return BlobLeaseClient(self._blob(), lease_id=_refuse_empty(lease_id))


class _ElectionRest(TypedDict, total=False):
    lease_seconds: int
    config: LeaseConfig | None
    health: Health | None
    on_change: Callable[[Role, Term | None], None] | None
    on_new_leader: Callable[[str], None] | None
    on_stall: Callable[[Term], None] | None
    history: TermLog | None
    rng: random.Random | None


class ElectionOptions(_ElectionRest, total=False):
    """What `storage.election` and `worker.lead` take beside name and identity; see `Election` and `LeaseConfig`.

    `container`, `blob`: where the lease is stored, default `{prefix}leases` and the name. `history`: default the table
    `{prefix}terms`; None keeps none, and nothing then notices a blob that was deleted or restored.
    """

    container: str
    blob: str


class SemaphoreOptions(TypedDict, total=False):
    """What `storage.semaphore` takes beside name, places and identity; see `BlobDistributedSemaphore`."""

    lease_seconds: int
    config: LeaseConfig | None
    rng: random.Random | None


class LockOptions(SemaphoreOptions, total=False):
    """What `storage.mutex` takes beside name and identity; see `BlobDistributedMutex` and `ElectionOptions`."""

    container: str
    blob: str


def make_election(
    storage: Storage,
    name: str,
    *,
    identity: str,
    container: str = "",
    blob: str = "",
    **options: Unpack[_ElectionRest],
) -> Election:
    """The election of that name; options are `ElectionOptions`."""
    options.setdefault("history", TableTermLog(storage))
    return Election(
        BlobLeaseStore(storage, name, container=container, blob=blob),
        identity=identity,
        bus=lambda: storage.bus,
        clock=storage.clock,
        portal=lambda: storage.portal,
        **options,
    )


def make_mutex(
    storage: Storage,
    name: str,
    *,
    identity: str,
    container: str = "",
    blob: str = "",
    **options: Unpack[SemaphoreOptions],
) -> BlobDistributedMutex:
    """The mutex of that name; options are `LockOptions`."""
    return BlobDistributedMutex(
        BlobLeaseStore(storage, name, container=container, blob=blob),
        identity=identity,
        bus=lambda: storage.bus,
        clock=storage.clock,
        portal=lambda: storage.portal,
        epochs=_epochs(storage, name),
        **options,
    )


def make_semaphore(
    storage: Storage, name: str, places: int, *, identity: str, **options: Unpack[SemaphoreOptions]
) -> BlobDistributedSemaphore:
    """The semaphore of that name and number of places; options are `SemaphoreOptions`."""
    return BlobDistributedSemaphore(
        name,
        [BlobLeaseStore(storage, f"{name}.{number}") for number in range(places)],
        lambda: list_leaders(storage, prefix=f"{name}."),
        identity=identity,
        bus=lambda: storage.bus,
        clock=storage.clock,
        portal=lambda: storage.portal,
        epochs=lambda place: _epochs(storage, place),
        **options,
    )


def _epochs(storage: Storage, name: str) -> TableEpochs:
    return TableEpochs(storage, f"lock {name}")


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

    Does not stop the old leader from acting unfenced until its next renewal, two thirds of a lease later at most.
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
    info = _info(name, properties, None)
    return replace(info, problem=f"unreadable: {info.problem}") if info.problem else info


def _info(name: str, properties: Any, date: float | None) -> LeaderInfo:
    metadata = properties.metadata or {}
    problems: list[str] = []

    def number(key: str, most: float, default: float = 0.0) -> float:
        text = str(metadata.get(key, ""))[:40]
        try:
            value = float(text or default)
        except ValueError:
            value = math.nan
        if 0 <= value <= most:
            return value
        problems.append(f"its {key} is {one_line(text)!r}")
        return default

    epoch = number("epoch", MAX_EPOCH)
    if epoch != int(epoch):
        problems.append(f"its epoch is {epoch!r}")
    return LeaderInfo(
        name=name,
        holder=one_line(unquote(str(metadata.get("holder", "")))),
        epoch=int(epoch),
        since=number("since", LAST_MOMENT),
        nonce=str(metadata.get("nonce", "")),
        lease_state=str(properties.lease.state or "available"),
        etag=str(properties.etag),
        date=date,
        lease_seconds=number("lease", 60),
        renew_seconds=number("renew", 60),
        problem="; ".join(problems),
    )


def _unchanged_since(etag: str) -> dict[str, Any]:
    return {"etag": etag, "match_condition": MatchConditions.IfNotModified} if etag else {}


def _refuse_empty(lease_id: str) -> str:
    if not lease_id:
        raise ValueError("an empty lease id would make the request unconditional")
    return lease_id
