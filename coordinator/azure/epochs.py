"""The highest epoch of each gate and lock in a table: one row each."""

from __future__ import annotations

from typing import Any

from azure.core import MatchConditions
from azure.data.tables import UpdateMode

from coordinator.azure.account import Account
from coordinator.azure.ensure import ensure_table
from coordinator.azure.errors import translated
from coordinator.epochs import COUNTED, EpochRecord
from coordinator.errors import AlreadyExists, NotFound, PreconditionFailed, StorageBusy

_PARTITION = "highest"


class TableEpochs:
    """The highest epoch of one name, in the table `{prefix}epochs`. See `EpochLog`.

    One request for each epoch as long as this process is the only one that changes it, else up to three.
    """

    def __init__(self, storage: Account, key: str) -> None:
        self._storage = storage
        self._table = storage.config.table("epochs")
        self._key = key
        self._known: tuple[int, str, str] | None = None  # epoch, nonce, ETag of the row as last seen

    async def claim(self, record: EpochRecord) -> int:
        for _ in range(20):
            known = self._known
            if known is not None:
                if (record.epoch, record.nonce) == known[:2]:
                    return 0
                if record.epoch <= known[0]:
                    return known[0]
            try:
                self._known = (record.epoch, record.nonce, await self._write(record, known))
                return 0
            except (AlreadyExists, PreconditionFailed, NotFound):
                self._known = await self._read()
        raise StorageBusy(
            f"record epoch {record.epoch} of {record.name}: others were faster each time", resource=self._key
        )

    async def _write(self, record: EpochRecord, known: tuple[int, str, str] | None) -> str:
        row = {
            "PartitionKey": _PARTITION,
            "RowKey": self._key,
            "epoch": str(record.epoch),
            "nonce": record.nonce,
            "holder": record.holder,
            "since": record.since,
        }

        async def insert() -> Any:
            with translated("record the epoch of", record.name):
                return await self._client().create_entity(row)

        if known is None:
            written = await ensure_table(self._storage, self._table, insert)
        else:
            with translated("record the epoch of", record.name):
                written = await self._client().update_entity(
                    row, mode=UpdateMode.REPLACE, etag=known[2], match_condition=MatchConditions.IfNotModified
                )
        return str(written["etag"])

    async def _read(self) -> tuple[int, str, str] | None:
        try:
            with translated("read the highest epoch of", self._key):
                row = await self._client().get_entity(_PARTITION, self._key)
        except NotFound:
            return None
        text = str(row.get("epoch", ""))
        # A row that somebody damaged remembers nothing; it is replaced.
        epoch = int(text) if text.isascii() and text.isdecimal() and len(text) <= 16 else 0
        return epoch if epoch <= COUNTED else 0, str(row.get("nonce", "")), str(row.metadata["etag"])

    def _client(self) -> Any:
        return self._storage.aio.tables.get_table_client(self._table)
