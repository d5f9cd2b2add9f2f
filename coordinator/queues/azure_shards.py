"""How many shards a queue has, as blobs: ``{prefix}rules/shards/{name}``, JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from azure.core import MatchConditions

from coordinator.creating import in_container
from coordinator.errors import ConfigurationError, NotFound
from coordinator.queues.shards import Layout
from coordinator.service_errors import translated

if TYPE_CHECKING:
    from coordinator.storage import Storage


class BlobShards:
    """`ShardStore` in the account; each call is one request."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._container = storage.config.container("rules")

    def _blob(self, name: str) -> Any:
        return self._storage.aio.blobs.get_blob_client(self._container, f"shards/{name}")

    async def read(self, name: str) -> tuple[Layout | None, str]:
        try:
            with translated("read the shards of", name):
                download = await self._blob(name).download_blob()
                content = await download.readall()
        except NotFound:
            return None, ""
        try:
            return msgspec.json.decode(content, type=Layout), download.properties.etag
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f"what is stored for the shards of {name} is damaged: {error}"
            ) from error

    async def write(self, name: str, layout: Layout, etag: str) -> None:
        condition: dict[str, Any] = (
            {"etag": etag, "match_condition": MatchConditions.IfNotModified, "overwrite": True}
            if etag
            else {"overwrite": False}
        )

        async def upload() -> None:
            with translated("write the shards of", name):
                await self._blob(name).upload_blob(msgspec.json.encode(layout), **condition)

        await in_container(self._storage, self._container, upload)
