"""The highest epoch of each gate and lock in a table: one row each."""

from __future__ import annotations

import hashlib
from typing import Any

from azure.core import MatchConditions
from azure.data.tables import UpdateMode

from coordinator.azure.account import Account, ensure_table
from coordinator.azure.errors import translated
from coordinator.epochs import COUNTED, EpochRecord
from coordinator.errors import AlreadyExists, NotFound, PreconditionFailed, StorageBusy

_PARTITION = "highest"
_LONGEST_KEY = 400
"""Characters; the service allows 512."""


def table_key(text: str) -> str:
    """`text` as a key of a table: shortened where it is too long for one, and still different from any other."""
    if len(text) <= _LONGEST_KEY:
        return text
    return f"{text[: _LONGEST_KEY - 65]} {hashlib.sha256(text.encode()).hexdigest()}"


class TableEpochs:
    """The highest epoch of one gate or lock, in the table `{prefix}epochs`. See `EpochLog`.

    `key`: what no other gate or lock of the account has. `former_key`: the key of a row that served before; where there is
    no row of `key` yet, its epoch and those below it count as used. One request for each epoch as long as this process is
    the only one that changes it, else up to three.
    """

    def __init__(self, storage: Account, key: str, *, former_key: str = "") -> None:
        self._storage = storage
        self._table = storage.config.table("epochs")
        self._key = table_key(key)
        self._former_key = former_key
        self._known: tuple[int, str, str] | None = None  # epoch, nonce, ETag of the row as last seen
        self._floor = 0

    async def claim(self, record: EpochRecord) -> int:
        if self._former_key:
            self._known = await self._read(self._key)
            former = None if self._known else await self._read(self._former_key)
            self._former_key, self._floor = "", former[0] if former else 0
        for _ in range(20):
            known = self._known
            if known is not None and (record.epoch, record.nonce) == known[:2]:
                return 0
            if record.epoch <= (highest := max(self._floor, known[0] if known else 0)):
                return highest
            try:
                self._known = (record.epoch, record.nonce, await self._write(record, known))
                return 0
            except (AlreadyExists, PreconditionFailed, NotFound):
                self._known = await self._read(self._key)
        raise StorageBusy(
            f"record epoch {record.epoch} of {record.name}: other writers were first at each attempt; try again",
            resource=self._key,
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

    async def _read(self, key: str) -> tuple[int, str, str] | None:
        try:
            with translated("read the highest epoch of", key):
                row = await self._client().get_entity(_PARTITION, key)
        except NotFound:
            return None
        text = str(row.get("epoch", ""))
        # A row that somebody damaged remembers nothing; it is replaced.
        epoch = int(text) if text.isascii() and text.isdecimal() and len(text) <= 16 else 0
        return epoch if epoch <= COUNTED else 0, str(row.get("nonce", "")), str(row.metadata["etag"])

    def _client(self) -> Any:
        return self._storage.aio.tables.get_table_client(self._table)
