"""Leases, terms, runs and fencing in an Azure storage account."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypedDict, Unpack
from urllib.parse import quote, unquote

from azure.core import MatchConditions
from azure.data.tables import UpdateMode
from azure.storage.blob.aio import BlobClient, BlobLeaseClient

from coordinator.azure.account import Account, ensure_container, ensure_table
from coordinator.azure.epochs import TableEpochs, table_key
from coordinator.azure.errors import translated
from coordinator.azure.listing import BlobListing, ListedBlob
from coordinator.bounds import LAST_MOMENT, MAX_COUNT, is_moment, one_line
from coordinator.clock import parse_date
from coordinator.config import check_blob, check_container
from coordinator.epochs import EpochRecord
from coordinator.errors import (
    AlreadyExists,
    ConfigurationError,
    LeadershipLost,
    LeaseHeld,
    LeaseNotHeld,
    NotFound,
    PreconditionFailed,
)
from coordinator.leadership.election import Election, Health, Role
from coordinator.leadership.lease import LeaderInfo, Successor
from coordinator.leadership.mutex import BlobDistributedMutex
from coordinator.leadership.semaphore import BlobDistributedSemaphore
from coordinator.leadership.term import LeaseConfig, Term
from coordinator.leadership.terms import RAN_OUT, TermLog, TermRecord
from coordinator.realtime.bus import Hint

# Beside the leased blob, because only the leader may write that. Names of elections have no dot.
_STANDBY = ".standby"
MAX_EPOCH = 10**11
"""The largest epoch that the table of terms has a key for."""


class BlobLeaseStore:
    """One election in the blob `{prefix}leases/{name}`: empty, leased, with the record in its metadata.

    `container` and `blob` name another place.
    """

    def __init__(self, storage: Account, name: str, *, container: str = "", blob: str = "") -> None:
        self.name = name
        self._storage = storage
        self._container = check_container(container) or storage.config.container("leases")
        self._blob_name = check_blob(blob) or name

    @property
    def key(self) -> str:
        """What no other lease of the account has, as a key of a table."""
        return table_key(f"{self._container} {quote(self._blob_name, safe='')}")

    @property
    def is_listed(self) -> bool:
        """Whether it is where Kennel puts leases, and on the blob of its name."""
        return (self._container, self._blob_name) == (self._storage.config.container("leases"), self.name)

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
        return _info(
            self.name,
            properties.metadata or {},
            str(properties.lease.state or "available"),
            str(properties.etag),
            dates[-1] if dates else None,
        )

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

    async def nominate(self, nominee: Successor) -> None:
        with translated("nominate a successor for", self.name):
            await self._blob(_STANDBY).upload_blob(
                b"", overwrite=True, metadata={"standby": quote(nominee.identity), "lease": nominee.lease_id}
            )

    async def nominee(self) -> Successor | None:
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
        return Successor(one_line(unquote(metadata.get("standby", ""))), lease_id)

    async def _create(self) -> None:
        async def upload() -> None:
            with translated("create the lease blob of", self.name):
                await self._blob().upload_blob(b"")

        with suppress(AlreadyExists, LeaseHeld):  # another candidate made it, and may lead already
            await ensure_container(self._storage, self._container, upload)

    def _blob(self, suffix: str = "") -> BlobClient:
        return self._storage.aio.blobs.get_blob_client(self._container, self._blob_name + suffix)

    def _lease(self, lease_id: str) -> BlobLeaseClient:
        return BlobLeaseClient(self._blob(), lease_id=_refuse_empty(lease_id))


class _ElectionRest(TypedDict, total=False):
    lease_seconds: int | None
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


class _LockRest(TypedDict, total=False):
    lease_seconds: int
    config: LeaseConfig | None
    rng: random.Random | None


class LockOptions(_LockRest, total=False):
    """What `storage.mutex` takes beside name and identity, and `storage.semaphore` beside name, places and identity.

    See `BlobDistributedMutex` and `BlobDistributedSemaphore`. `container`, `blob`: where the lease is stored, default
    `{prefix}leases` and the name; the places of a semaphore have ".0", ".1", … behind the name of the blob.
    """

    container: str
    blob: str


def make_election(
    storage: Account,
    name: str,
    *,
    identity: str,
    container: str = "",
    blob: str = "",
    **options: Unpack[_ElectionRest],
) -> Election:
    """The election of that name; options are `ElectionOptions`."""
    store = BlobLeaseStore(storage, name, container=container, blob=blob)
    options.setdefault("history", TableTermLog(storage, "" if store.is_listed else store.key))
    return Election(
        store,
        identity=identity,
        bus=lambda: storage.bus,
        clock=storage.clock,
        portal=lambda: storage.portal,
        **options,
    )


def make_mutex(
    storage: Account,
    name: str,
    *,
    identity: str,
    container: str = "",
    blob: str = "",
    **options: Unpack[_LockRest],
) -> BlobDistributedMutex:
    """The mutex of that name; options are `LockOptions`."""
    store = BlobLeaseStore(storage, name, container=container, blob=blob)
    return BlobDistributedMutex(
        store,
        identity=identity,
        bus=lambda: storage.bus,
        clock=storage.clock,
        portal=lambda: storage.portal,
        epochs=_epochs(storage, store),
        **options,
    )


def make_semaphore(
    storage: Account,
    name: str,
    places: int,
    *,
    identity: str,
    container: str = "",
    blob: str = "",
    **options: Unpack[_LockRest],
) -> BlobDistributedSemaphore:
    """The semaphore of that name and number of places; options are `LockOptions`."""
    check_blob(blob)
    stores = {
        f"{name}.{number}": BlobLeaseStore(
            storage, f"{name}.{number}", container=container, blob=f"{blob or name}.{number}"
        )
        for number in range(places)
    }

    async def look() -> list[LeaderInfo]:
        listed = await list_leaders(storage, container=container, prefix=f"{blob or name}.")
        return [replace(info, name=name + info.name.removeprefix(blob or name)) for info in listed]

    return BlobDistributedSemaphore(
        name,
        list(stores.values()),
        look,
        identity=identity,
        bus=lambda: storage.bus,
        clock=storage.clock,
        portal=lambda: storage.portal,
        epochs=lambda place: _epochs(storage, stores[place]),
        **options,
    )


def _epochs(storage: Account, store: BlobLeaseStore) -> TableEpochs:
    # One row served all locks of a name before, whatever their container.
    return TableEpochs(storage, f"lock {store.key}", former_key=f"lock {store.name}")


class LeaderListing:
    """All elections, mutexes and places of semaphores of a container, for those who list them again and again.

    `container`: default `{prefix}leases`. `prefix`: how the names begin. One request for up to 5,000 of them; only what has
    changed is decoded.
    """

    def __init__(self, storage: Account, *, container: str = "", prefix: str = "") -> None:
        self._container = container or storage.config.container("leases")
        self._listing = BlobListing(storage, self._container, prefix=prefix)
        self._last: dict[str, tuple[ListedBlob, LeaderInfo]] = {}

    async def read(self) -> list[LeaderInfo]:
        """What they are now, by the name of their blob; none if the container does not exist."""
        try:
            with translated("list the leaders in", self._container):
                blobs = await self._listing.read()
        except NotFound:
            blobs = []
        found: dict[str, tuple[ListedBlob, LeaderInfo]] = {}
        for blob in blobs:
            if not blob.name.endswith(_STANDBY):
                last = self._last.get(blob.name)
                found[blob.name] = last if last is not None and last[0] == blob else (blob, _listed(blob))
        self._last = found
        return sorted((info for _, info in found.values()), key=lambda info: info.name)


async def list_leaders(storage: Account, *, container: str = "", prefix: str = "") -> list[LeaderInfo]:
    """All elections, mutexes and places of semaphores of a container, once; see `LeaderListing`."""
    return await LeaderListing(storage, container=container, prefix=prefix).read()


async def break_lease(storage: Account, name: str, by: str) -> LeaderInfo:
    """Take the lease from whoever has it, and raise the epoch, so that fenced writes of the old leader fail at once.

    Does not stop the old leader from acting unfenced until its next renewal.
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


def _listed(blob: ListedBlob) -> LeaderInfo:
    """As `_info`; what cannot be read costs its own row."""
    info = _info(blob.name, blob.metadata, blob.lease_state, blob.etag, None)
    return replace(info, problem=f"unreadable: {info.problem}") if info.problem else info


def _info(
    name: str, metadata: Mapping[str, str], lease_state: str, etag: str, date: float | None
) -> LeaderInfo:
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
        lease_state=lease_state,
        etag=etag,
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


_LAST = 10**12


class TableTermLog:
    """Terms in the table `{prefix}terms`; two to four requests a term. Row keys count down, so that the newest come
    first. The newest row remembers the highest epoch.

    `partition`: where the terms are; default the name of each election. As long as there is none in it, epochs that were
    recorded under the name count as used.
    """

    def __init__(self, storage: Account, partition: str = "") -> None:
        self._storage = storage
        self._table = storage.config.table("terms")
        self._partition = partition
        self._known: dict[str, tuple[int, str]] = {}

    async def claim(self, record: EpochRecord) -> int:
        if known := self._known.get(record.name):
            if known == (record.epoch, record.nonce):
                return 0
            if record.epoch <= known[0]:
                return known[0]
        elif record.epoch <= (floor := await self._floor(record.name)):
            return floor
        term = TermRecord(record.name, record.epoch, record.holder, record.since)
        with suppress(AlreadyExists):  # used before, or the answer to our own insertion was lost
            await ensure_table(self._storage, self._table, lambda: self._insert(term, record.nonce))
        newest = await self._newest_row(self._partition or record.name)
        epoch, nonce = (
            (_epoch_of(newest), str(newest.get("nonce", ""))) if newest else (record.epoch, record.nonce)
        )
        self._known[record.name] = (epoch, nonce)
        return 0 if (epoch, nonce) == (record.epoch, record.nonce) else epoch

    async def _floor(self, name: str) -> int:
        """The highest epoch that was recorded under the name before this election had a partition of its own."""
        if not self._partition:
            return 0
        with suppress(NotFound):  # there is no table yet
            if await self._newest_row(self._partition) is None:
                former = await self._newest_row(name)
                return _epoch_of(former) if former else 0
        return 0

    async def _newest_row(self, partition: str) -> Any:
        with translated("read the newest term of", partition):
            query = self._client().query_entities(
                "PartitionKey eq @partition", parameters={"partition": partition}, results_per_page=1
            )
            async for row in query:
                if _epoch_of(row):
                    return row
        return None

    async def began(self, record: TermRecord) -> None:
        if self._known.get(record.name, (0, ""))[0] != record.epoch:
            with suppress(AlreadyExists):  # the answer to our own insertion was lost
                await ensure_table(self._storage, self._table, lambda: self._insert(record))
        await self._end(record.name, record.epoch - 1, record.since, RAN_OUT)

    async def ended(self, record: TermRecord) -> None:
        await self._end(record.name, record.epoch, record.ended or record.since, record.how)

    async def newest(self, name: str, limit: int) -> list[TermRecord]:
        found: list[TermRecord] = []
        if limit < 1:
            return found
        try:
            with translated("list the terms of", name):
                query = self._client().query_entities(
                    "PartitionKey eq @partition",
                    parameters={"partition": self._partition or name},
                    results_per_page=limit,
                )
                async for row in query:
                    found.append(_listed_azure_terms(name, row))
                    if len(found) == limit:
                        break
        except NotFound:
            return []
        return found

    async def _insert(self, record: TermRecord, nonce: str = "") -> None:
        with translated("record the term of", record.name):
            await self._client().create_entity(
                {
                    "PartitionKey": self._partition or record.name,
                    "RowKey": _row(record.epoch),
                    "epoch": record.epoch,
                    "holder": record.holder,
                    "since": record.since,
                    "nonce": nonce,
                }
            )

    async def _end(self, name: str, epoch: int, ended: float, how: str) -> None:
        partition = self._partition or name
        try:
            with translated("record the end of the term of", name):
                row = await self._client().get_entity(partition, _row(epoch))
                known = row.get("ended")
                if known is None or (row.get("how") == RAN_OUT and how != RAN_OUT):
                    ended = ended if known is None else min(ended, float(known))
                    await self._client().update_entity(
                        {"PartitionKey": partition, "RowKey": _row(epoch), "ended": ended, "how": how},
                        mode=UpdateMode.MERGE,
                        etag=row.metadata["etag"],
                        match_condition=MatchConditions.IfNotModified,
                    )
        except (NotFound, PreconditionFailed):
            return  # nothing to end, or ended by the other side of the succession

    def _client(self) -> Any:
        return self._storage.aio.tables.get_table_client(self._table)


def _row(epoch: int) -> str:
    return f"{_LAST - epoch:012d}"


def _listed_azure_terms(name: str, row: Any) -> TermRecord:
    """As `_record`; a row that makes no sense costs itself alone and says so in `how`."""
    try:
        record = _record(name, row)
        if not 0 <= record.epoch <= MAX_COUNT:
            raise ValueError("its epoch is out of bounds")
        if not is_moment(record.since) or not (record.ended is None or is_moment(record.ended)):
            raise ValueError("a moment is out of bounds")
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        return TermRecord(name, 0, "", 0.0, None, f"unreadable: {one_line(str(error))}")
    return record


def _record(name: str, row: Any) -> TermRecord:
    ended = row.get("ended")
    return TermRecord(
        name=name,
        epoch=int(row["epoch"]),
        holder=str(row["holder"]),
        since=float(row["since"]),
        ended=None if ended is None else float(ended),
        how=str(row.get("how", "")),
    )


def _epoch_of(row: Any) -> int:
    """As the row's key says, which nobody changes without making another row; 0 if it says nothing."""
    key = str(row["RowKey"])
    return _LAST - int(key) if key.isascii() and key.isdecimal() and len(key) == 12 else 0


async def list_terms(storage: Account, name: str, *, limit: int = 50) -> list[TermRecord]:
    """The newest terms of the election on the blob of that name in `{prefix}leases`, newest first; one request."""
    return await TableTermLog(storage).newest(name, limit)


class TableRunLog:
    """Runs in the table `{prefix}runs`. Partition = name of the election; with `container` or `blob`, its place."""

    def __init__(self, storage: Account, election: str, *, container: str = "", blob: str = "") -> None:
        store = BlobLeaseStore(storage, election, container=container, blob=blob)
        self._storage = storage
        self._election = election if store.is_listed else store.key
        self._table = storage.config.table("runs")

    async def newest(self, job: str) -> tuple[float | None, str]:
        try:
            with translated("read the newest run of", job):
                row = await self._client().get_entity(self._election, job)
        except NotFound:
            return None, ""
        return float(row["scheduled"]), str(row.metadata["etag"])

    async def claim(self, job: str, scheduled_at: float, version: str, holder: str) -> None:
        row = {"PartitionKey": self._election, "RowKey": job, "scheduled": scheduled_at, "holder": holder}
        if version:
            with translated("claim a run of", job):
                await self._client().update_entity(
                    row, mode=UpdateMode.REPLACE, etag=version, match_condition=MatchConditions.IfNotModified
                )
            return
        try:
            await ensure_table(self._storage, self._table, lambda: self._insert(row))
        except AlreadyExists as error:
            raise PreconditionFailed(
                str(error), resource=job, status=error.status, code=error.code
            ) from error

    async def _insert(self, row: dict[str, Any]) -> None:
        with translated("claim a run of", row["RowKey"]):
            await self._client().create_entity(row)

    def _client(self) -> Any:
        return self._storage.aio.tables.get_table_client(self._table)


_EPOCH = "kennelepoch"
_EPOCH_ROW = "kennel-epoch"
_MAX_OPERATIONS = 100


async def write_fenced(storage: Account, term: Term, container: str, blob: str, data: bytes) -> None:
    """Write a blob unless a later term has: one request, conditional on the epoch in the blob's tag.

    A blob without such a tag that exists already is refused too: nobody knows who wrote it. Needs an account with
    blob tags (not one with a hierarchical namespace).
    """
    term.check()
    epoch = f"{term.epoch:020d}"  # tags compare as text
    client = storage.aio.blobs.get_blob_client(container, blob)
    with translated("write", blob):
        try:
            with translated("write", blob):
                await client.upload_blob(
                    data,
                    overwrite=True,
                    tags={_EPOCH: epoch},
                    if_tags_match_condition=f"\"{_EPOCH}\" <= '{epoch}'",
                )
        except (PreconditionFailed, NotFound):
            # Also what a blob that does not exist yet answers.
            try:
                with translated("write", blob):
                    await client.upload_blob(data, overwrite=False, tags={_EPOCH: epoch})
            except (AlreadyExists, PreconditionFailed) as error:
                raise _refused(term, blob) from error


class LeasedBlob:
    """A blob that only the current leader can write, by an endless lease under the leader's own id.

    Guarantees that after the first write of a term no write of an earlier term lands. Costs three or four requests for
    the first write of a term and one for each further. The lease outlives the leader and is broken by the next one.
    """

    def __init__(self, storage: Account, container: str, blob: str) -> None:
        self._storage = storage
        self._container = container
        self._name = blob
        self._claimed = ""

    async def write(self, term: Term, data: bytes) -> None:
        """Replace the content. Raises `LeadershipLost` if a later term has claimed the blob."""
        term.check()
        if self._claimed != term.lease_id:
            await self._claim(term)
        try:
            with translated("write", self._name):
                await self._blob().upload_blob(
                    data, overwrite=True, lease=term.lease_id, metadata={_EPOCH: str(term.epoch)}
                )
        except (LeaseHeld, LeaseNotHeld, PreconditionFailed) as error:
            raise _refused(term, self._name) from error

    async def _claim(self, term: Term) -> None:
        # Each step is conditional on what the step before saw, and the epoch is raised before the first write: a later
        # claim makes every earlier one fail, wherever that one stands.
        for _ in range(5):
            blob = self._blob()
            try:
                with translated("claim", self._name):
                    properties = await blob.get_blob_properties()
                if int((properties.metadata or {}).get(_EPOCH, "0")) > term.epoch:
                    raise _refused(term, self._name)
                unchanged = {"etag": properties.etag, "match_condition": MatchConditions.IfNotModified}
                lease = BlobLeaseClient(blob, lease_id=term.lease_id)
                with suppress(LeaseNotHeld), translated("break the lease of", self._name):
                    await BlobLeaseClient(blob).break_lease(lease_break_period=0, **unchanged)
                with translated("claim", self._name):
                    await lease.acquire(lease_duration=-1, **unchanged)
                with translated("claim", self._name):
                    await blob.set_blob_metadata({_EPOCH: str(term.epoch)}, lease=term.lease_id, **unchanged)
                self._claimed = term.lease_id
                return
            except NotFound:
                with suppress(AlreadyExists, LeaseHeld), translated("create", self._name):
                    await blob.upload_blob(b"")
            except (LeaseHeld, LeaseNotHeld, PreconditionFailed):
                term.check()
        raise _refused(term, self._name)

    def _blob(self) -> Any:
        return self._storage.aio.blobs.get_blob_client(self._container, self._name)


async def transact_fenced(
    storage: Account, term: Term, table: str, partition: str, operations: Iterable[tuple[Any, ...]]
) -> None:
    """Carry out table operations in one transaction, together with the partition's epoch row.

    `operations` are as for the SDK's `submit_transaction`, at most 99, all in `partition`; the row key "kennel-epoch"
    is ours. All or nothing is stored; nothing if a later term has written to the partition. Two requests.
    """
    wanted = list(operations)
    if not 0 < len(wanted) < _MAX_OPERATIONS:
        raise ConfigurationError(
            f"a fenced transaction takes 1 to {_MAX_OPERATIONS - 1} operations, got {len(wanted)}"
        )
    client = storage.aio.tables.get_table_client(table)
    key = {"PartitionKey": partition, "RowKey": _EPOCH_ROW}
    for _ in range(10):
        term.check()
        row = key | {"epoch": term.epoch}
        try:
            with translated("read the epoch of", partition):
                known = await client.get_entity(partition, _EPOCH_ROW)
        except NotFound:
            guard: tuple[Any, ...] = ("create", row)
        else:
            if int(known["epoch"]) > term.epoch:
                raise _refused(term, f"{table}/{partition}")
            guard = (
                "update",
                row,
                {
                    "mode": "replace",
                    "etag": known.metadata["etag"],
                    "match_condition": MatchConditions.IfNotModified,
                },
            )
        try:
            with translated("write to", partition):
                await client.submit_transaction([guard, *wanted])
            return
        except (AlreadyExists, PreconditionFailed):
            # Another transaction came between, of this term or a later one; or an operation of the caller's failed.
            with translated("read the epoch of", partition):
                now = await client.get_entity(partition, _EPOCH_ROW)
            if guard[0] == "update" and now.metadata["etag"] == known.metadata["etag"]:
                raise
    raise _refused(term, f"{table}/{partition}")


def _refused(term: Term, what: str) -> LeadershipLost:
    return LeadershipLost(
        f"{term.name}: a later term than {term.epoch} has written {what}; this write was refused"
    )
