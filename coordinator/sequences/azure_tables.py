"""A counter in one entity of a table, for accounts where the workers may use tables alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from azure.core import MatchConditions
from azure.data.tables import UpdateMode

from coordinator.azure.account import Account
from coordinator.azure.errors import translated
from coordinator.errors import AlreadyExists, NotFound, PreconditionFailed
from coordinator.sequences.store import Snapshot

TABLE = "counters"


class TableCounterStore:
    """`OptimisticSyncStore` on one entity of the table ``{prefix}counters``, which is created when it is first missed.

    UniqueIdGenerator("orders", TableCounterStore(storage, "orders"), TableLedger(storage, "orders"))
    """

    def __init__(self, storage: Account, name: str) -> None:
        self._storage, self._name = storage, name

    def get_data(self) -> Snapshot:
        with translated("read the counter of sequence", self._name):
            entity = self._table().get_entity(self._name, "counter")
        return Snapshot(
            str(entity["data"]), str(entity.metadata["etag"]), json.loads(entity.get("metadata") or "{}")
        )

    def try_optimistic_write(self, data: str, *, etag: str | None, metadata: Mapping[str, str]) -> str | None:
        entity = {
            "PartitionKey": self._name,
            "RowKey": "counter",
            "data": data,
            "metadata": json.dumps(dict(metadata)),
        }
        try:
            return self._write(entity, etag)
        except (AlreadyExists, PreconditionFailed):
            return None
        except NotFound:
            if etag is not None:
                return None
        with suppress(AlreadyExists), translated("create the table for sequence", self._name):
            self._storage.blocking.tables.create_table(self._storage.config.table(TABLE))
        try:
            return self._write(entity, None)
        except AlreadyExists:
            return None

    def _write(self, entity: dict[str, Any], etag: str | None) -> str:
        with translated("write the counter of sequence", self._name):
            if etag is None:
                return str(self._table().create_entity(entity)["etag"])
            answer = self._table().update_entity(
                entity, mode=UpdateMode.REPLACE, etag=etag, match_condition=MatchConditions.IfNotModified
            )
            return str(answer["etag"])

    def _table(self) -> Any:
        return self._storage.blocking.tables.get_table_client(self._storage.config.table(TABLE))
