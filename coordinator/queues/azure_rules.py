"""Scaling rules as blobs: ``{prefix}rules/{queue}``, JSON, changed from the dashboard while workers run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.core import MatchConditions

from coordinator.bus import Hint
from coordinator.creating import in_container
from coordinator.errors import NotFound
from coordinator.queues.rules import ScalingRule, decode_rule, encode_rule
from coordinator.service_errors import translated

if TYPE_CHECKING:
    from coordinator.storage import Storage


class BlobRules:
    """`RuleStore` in the account. A read of an unchanged rule carries no body; all are one request."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._container = storage.config.container("rules")

    def _blob(self, queue: str) -> Any:
        return self._storage.aio.blobs.get_blob_client(self._container, queue)

    async def read(self, queue: str, etag: str) -> tuple[ScalingRule | None, str] | None:
        from azure.core.exceptions import HttpResponseError

        condition: dict[str, Any] = (
            {"etag": etag, "match_condition": MatchConditions.IfModified} if etag else {}
        )
        try:
            with translated("read the scaling rule of", queue):
                try:
                    download = await self._blob(queue).download_blob(**condition)
                    content = await download.readall()
                except HttpResponseError as error:
                    if error.status_code == 304:
                        return None
                    raise
        except NotFound:
            return None if not etag else (None, "")
        return decode_rule(content), download.properties.etag

    async def write(self, queue: str, rule: ScalingRule, *, by: str) -> None:
        async def upload() -> None:
            with translated("write the scaling rule of", queue):
                await self._blob(queue).upload_blob(encode_rule(rule), overwrite=True)

        await in_container(self._storage, self._container, upload)
        await self._storage.bus.publish(Hint(topic=f"rule:{queue}", origin=by))

    async def remove(self, queue: str) -> None:
        try:
            with translated("remove the scaling rule of", queue):
                await self._blob(queue).delete_blob()
        except NotFound:
            return
        await self._storage.bus.publish(Hint(topic=f"rule:{queue}"))
