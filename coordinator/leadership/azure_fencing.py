"""Fenced writes to blobs and tables; see `coordinator.leadership.fencing`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from azure.core import MatchConditions
from azure.storage.blob.aio import BlobLeaseClient

from coordinator.errors import (
    AlreadyExists,
    ConfigurationError,
    LeadershipLost,
    LeaseHeld,
    LeaseNotHeld,
    NotFound,
    PreconditionFailed,
)
from coordinator.leadership.term import Term
from coordinator.service_errors import translated

if TYPE_CHECKING:
    from coordinator.storage import Storage

_EPOCH = "kennelepoch"
_EPOCH_ROW = "kennel-epoch"
_MAX_OPERATIONS = 100


async def write_fenced(storage: Storage, term: Term, container: str, blob: str, data: bytes) -> None:
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

    def __init__(self, storage: Storage, container: str, blob: str) -> None:
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
    storage: Storage, term: Term, table: str, partition: str, operations: Iterable[tuple[Any, ...]]
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
