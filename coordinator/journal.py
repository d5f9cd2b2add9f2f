"""A journal in append blobs: lines are added and never changed, by the service's own rule where a policy says so.

Guarantees that a line that was acknowledged is in the journal, after those acknowledged before it. Does not guarantee that
it is there once: when an answer was lost, the line may be there although an error was raised. An immutability policy on
the container that allows protected append writes keeps lines from being removed by anybody.
"""

from __future__ import annotations

from coordinator.azure.account import Account, ensure_container
from coordinator.azure.errors import translated
from coordinator.errors import NotFound


class Journal:
    """The journal in the blobs of `{prefix}{kind}`; one blob for each `part`, such as a month. Made without I/O."""

    def __init__(self, storage: Account, kind: str) -> None:
        self._storage = storage
        self.container = storage.config.container(kind)

    async def append(self, part: str, line: str) -> None:
        """Add a line; one request, three for the first of a part."""
        data = line.encode() + b"\n"

        async def write() -> None:
            blob = self._storage.aio.blobs.get_blob_client(self.container, part)
            with translated("append to the journal", part):
                await blob.append_block(data)

        async def create() -> None:
            blob = self._storage.aio.blobs.get_blob_client(self.container, part)
            with translated("create the journal", part):
                # Never over one that is there.
                await blob.create_append_blob(headers={"If-None-Match": "*"})

        try:
            await write()
        except NotFound:
            await ensure_container(self._storage, self.container, create)
            await write()

    async def lines(self) -> list[str]:
        """All lines of all parts, the oldest part first; empty if there is none."""
        found: list[str] = []
        try:
            with translated("read the journal", self.container):
                container = self._storage.aio.blobs.get_container_client(self.container)
                names = [blob.name async for blob in container.list_blobs()]
                for name in sorted(names):
                    download = await container.get_blob_client(name).download_blob()
                    found += (await download.readall()).decode(errors="replace").splitlines()
        except NotFound:
            return []
        return found
