"""Terms in a table: partition = election, newest row first."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from azure.core import MatchConditions
from azure.data.tables import UpdateMode

from coordinator.bounds import MAX_COUNT, is_moment, one_line
from coordinator.creating import in_table
from coordinator.epochs import EpochRecord
from coordinator.errors import AlreadyExists, NotFound, PreconditionFailed
from coordinator.leadership.terms import RAN_OUT, TermRecord
from coordinator.service_errors import translated

if TYPE_CHECKING:
    from coordinator.storage import Storage

_LAST = 10**12


class TableTermLog:
    """Terms in the table `{prefix}terms`; two to four requests a term. Row keys count down, so that the newest come
    first. The newest row remembers the highest epoch."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._table = storage.config.table("terms")
        self._known: dict[str, tuple[int, str]] = {}

    async def claim(self, record: EpochRecord) -> int:
        if known := self._known.get(record.name):
            if known == (record.epoch, record.nonce):
                return 0
            if record.epoch <= known[0]:
                return known[0]
        term = TermRecord(record.name, record.epoch, record.holder, record.since)
        with suppress(AlreadyExists):  # used before, or the answer to our own insertion was lost
            await in_table(self._storage, self._table, lambda: self._insert(term, record.nonce))
        newest = await self._newest_row(record.name)
        epoch, nonce = (
            (_epoch_of(newest), str(newest.get("nonce", ""))) if newest else (record.epoch, record.nonce)
        )
        self._known[record.name] = (epoch, nonce)
        return 0 if (epoch, nonce) == (record.epoch, record.nonce) else epoch

    async def _newest_row(self, name: str) -> Any:
        with translated("read the newest term of", name):
            query = self._client().query_entities(
                "PartitionKey eq @name", parameters={"name": name}, results_per_page=1
            )
            async for row in query:
                if _epoch_of(row):
                    return row
        return None

    async def began(self, record: TermRecord) -> None:
        if self._known.get(record.name, (0, ""))[0] != record.epoch:
            with suppress(AlreadyExists):  # the answer to our own insertion was lost
                await in_table(self._storage, self._table, lambda: self._insert(record))
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
                    "PartitionKey eq @name", parameters={"name": name}, results_per_page=limit
                )
                async for row in query:
                    found.append(_listed(name, row))
                    if len(found) == limit:
                        break
        except NotFound:
            return []
        return found

    async def _insert(self, record: TermRecord, nonce: str = "") -> None:
        with translated("record the term of", record.name):
            await self._client().create_entity(
                {
                    "PartitionKey": record.name,
                    "RowKey": _row(record.epoch),
                    "epoch": record.epoch,
                    "holder": record.holder,
                    "since": record.since,
                    "nonce": nonce,
                }
            )

    async def _end(self, name: str, epoch: int, ended: float, how: str) -> None:
        try:
            with translated("record the end of the term of", name):
                row = await self._client().get_entity(name, _row(epoch))
                known = row.get("ended")
                if known is None or (row.get("how") == RAN_OUT and how != RAN_OUT):
                    ended = ended if known is None else min(ended, float(known))
                    await self._client().update_entity(
                        {"PartitionKey": name, "RowKey": _row(epoch), "ended": ended, "how": how},
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


def _listed(name: str, row: Any) -> TermRecord:
    """As `_record`; a row that makes no sense costs itself alone and says so in `how`."""
    try:
        record = _record(row)
        if not 0 <= record.epoch <= MAX_COUNT:
            raise ValueError("its epoch is out of bounds")
        if not is_moment(record.since) or not (record.ended is None or is_moment(record.ended)):
            raise ValueError("a moment is out of bounds")
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        return TermRecord(name, 0, "", 0.0, None, f"unreadable: {one_line(str(error))}")
    return record


def _record(row: Any) -> TermRecord:
    ended = row.get("ended")
    return TermRecord(
        name=row["PartitionKey"],
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


async def list_terms(storage: Storage, name: str, *, limit: int = 50) -> list[TermRecord]:
    """The newest terms of an election, newest first; one request."""
    return await TableTermLog(storage).newest(name, limit)
