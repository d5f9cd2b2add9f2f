"""Claims as blobs: ``{prefix}claims/{queue}/{name}``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from coordinator.creating import in_container
from coordinator.errors import NotFound
from coordinator.queues.claims import check_length
from coordinator.service_errors import translated

if TYPE_CHECKING:
    from coordinator.storage import Storage

_READ_SECONDS = 60.0
_PAGE = 5000
_OFF_LOOP_BYTES = 1024 * 1024


class OldClaim(NamedTuple):
    """A claim that expired, or (`lasts`) that never does and was written a while ago."""

    queue: str
    name: str
    lasts: bool


async def old_claims(
    storage: Storage, *, before: float, start: str = "", pages: int = 10, page: int = _PAGE
) -> tuple[list[OldClaim], str]:
    """The claims of all queues that expired, or were last written if they never do, before that moment.

    Asks for at most so many pages, a request each; returns also where the next call starts, "" after the last page.
    """
    found: list[OldClaim] = []
    container = storage.aio.blobs.get_container_client(storage.config.container("claims"))
    try:
        with translated("list the claims of", "all queues"):
            listing: Any = container.list_blobs(include=["metadata"], results_per_page=page).by_page(
                start or None
            )
            async for blobs in listing:
                async for blob in blobs:
                    queue, _, name = blob.name.partition("/")
                    expires = (blob.metadata or {}).get("expires", "")
                    if not expires.isdigit():
                        continue  # not ours
                    lasts = int(expires) == 0
                    if (blob.last_modified.timestamp() if lasts else int(expires)) < before:
                        found.append(OldClaim(queue, name, lasts))
                start, pages = listing.continuation_token or "", pages - 1
                if not start or not pages:
                    break
    except NotFound:
        return [], ""
    return found, start


class BlobClaims:
    """`ClaimStore` of one queue. The container is made on first use."""

    def __init__(self, storage: Storage, queue: str) -> None:
        self._storage = storage
        self._queue = queue
        self._container = storage.config.container("claims")

    def _blob(self, name: str) -> Any:
        return self._storage.aio.blobs.get_blob_client(self._container, f"{self._queue}/{name}")

    async def put(self, name: str, content: bytes, *, expires_at: float) -> None:
        options: dict[str, Any] = {
            "overwrite": True,
            "metadata": {"expires": str(int(expires_at))},
            "read_timeout": _READ_SECONDS,
        }

        async def upload() -> None:
            with translated("write the claim", name):
                if len(content) <= _OFF_LOOP_BYTES:
                    await self._blob(name).upload_blob(content, **options)
                else:  # sending this much at once would hold up the event loop
                    blocking: Any = self._storage.blocking.blobs.get_blob_client(
                        self._container, f"{self._queue}/{name}"
                    )
                    await asyncio.to_thread(blocking.upload_blob, content, **options)

        await in_container(self._storage, self._container, upload)

    async def get(self, name: str, *, at_most: int) -> bytes:
        with translated("read the claim", name):
            download = await self._blob(name).download_blob(read_timeout=_READ_SECONDS)
            check_length(name, download.size, at_most)
            content: bytes = await download.readall()
        return content

    async def keep(self, name: str) -> None:
        with translated("keep the claim", name):
            await self._blob(name).set_blob_metadata({"expires": "0"})

    async def delete(self, name: str) -> None:
        try:
            with translated("delete the claim", name):
                await self._blob(name).delete_blob()
        except NotFound:
            return

    async def expired(self, before: float) -> list[str]:
        return [name for name, expires, _ in await self._all() if 0 < expires < before]

    async def lasting(self, before: float) -> list[str]:
        return [name for name, expires, written in await self._all() if not expires and written < before]

    async def _all(self) -> list[tuple[str, int, float]]:
        """Name, when it expires (0: never), when it was last written."""
        found = []
        container = self._storage.aio.blobs.get_container_client(self._container)
        try:
            with translated("list the claims of", self._queue):
                async for blob in container.list_blobs(
                    name_starts_with=f"{self._queue}/", include=["metadata"]
                ):
                    expires = (blob.metadata or {}).get("expires", "")
                    if expires.isdigit():
                        name = blob.name.removeprefix(f"{self._queue}/")
                        found.append((name, int(expires), blob.last_modified.timestamp()))
        except NotFound:
            return []
        return found
