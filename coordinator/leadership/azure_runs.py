"""The newest run of each job in a table: one row a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.core import MatchConditions
from azure.data.tables import UpdateMode

from coordinator.creating import in_table
from coordinator.errors import AlreadyExists, NotFound, PreconditionFailed
from coordinator.service_errors import translated

if TYPE_CHECKING:
    from coordinator.storage import Storage


class TableRunLog:
    """Runs in the table `{prefix}runs`, partition = name of the election."""

    def __init__(self, storage: Storage, election: str) -> None:
        self._storage = storage
        self._election = election
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
            await in_table(self._storage, self._table, lambda: self._insert(row))
        except AlreadyExists as error:
            raise PreconditionFailed(
                str(error), resource=job, status=error.status, code=error.code
            ) from error

    async def _insert(self, row: dict[str, Any]) -> None:
        with translated("claim a run of", row["RowKey"]):
            await self._client().create_entity(row)

    def _client(self) -> Any:
        return self._storage.aio.tables.get_table_client(self._table)
